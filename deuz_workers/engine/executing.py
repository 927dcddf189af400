"""The execution context that code of a run is given, for the runs that it starts itself."""

from __future__ import annotations

from deuz_workers.core.change import Head
from deuz_workers.core.delegation import depth_of
from deuz_workers.core.names import run_scope_key
from deuz_workers.core.run import Run
from deuz_workers.core.shared_budget import SharedBudget
from deuz_workers.engine.stop import Stop
from deuz_workers.ports.execution import Execution, Link
from deuz_workers.ports.signal import Signal


def execution_of(application: object, head: Head, run: Run, signal: Signal, stop: Stop) -> Execution:
    """For one call or question of the run, as long as `signal` is not set.

    A run without a budget of its own has a part in the ledger all the same, which only runs in its context are charged to.
    """
    envelope = run.envelope
    key = run_scope_key(envelope.rid)
    own = () if key in envelope.scopes else (SharedBudget(key, inherited=True),)
    above = envelope.parent or envelope.nested

    def left_ms() -> int | None:
        return None if head.ends_in_ms is None else head.ends_in_ms - stop.elapsed_ms

    return Execution(
        envelope.limits,
        envelope.scopes,
        envelope.policy,
        scope=envelope.scope,
        run_id=envelope.run_id,
        root=envelope.run_id if above is None else above.root,
        depth=depth_of(envelope),
        scope_id=envelope.run_id if envelope.nested is None else f"{envelope.nested.scope_id}/{envelope.run_id}",
        shared=(*envelope.shared, *own),
        ledger_key=key,
        memory=envelope.memory.scope if envelope.memory is not None else envelope.nested.memory if envelope.nested else None,
        link=Link(application, signal, left_ms),
    )
