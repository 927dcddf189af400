"""Taking a failed run up again: who may, and the change that does (MDL-007, MDL-012)."""

from __future__ import annotations

from deuz_workers.core.events import PolicyNarrowed, Reopened
from deuz_workers.core.evolve import evolve_all
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.receipts import Receipt
from deuz_workers.core.reconciliation import unknown_effects
from deuz_workers.core.run import Run
from deuz_workers.core.shared_budget import SharedBudget, tightened
from deuz_workers.errors import RetryRefusedError


def check_retryable(run: Run) -> None:
    """Raises `RetryRefusedError` for a failed run whose cause is a lasting one, or that others have counted as ended."""
    envelope = run.envelope
    why = (envelope.error or {}).get("code") or (envelope.error or {}).get("name")
    if envelope.retry is None:
        raise RetryRefusedError(
            f"run {envelope.run_id!r} failed with {why}, which does not pass by waiting; mend the cause and start a new run",
            run_id=envelope.run_id,
        )
    if envelope.task_id is not None:
        raise RetryRefusedError(
            f"run {envelope.run_id!r} is task {envelope.task_id!r} of a swarm, which has gone on without it; "
            "start a new swarm, or fork the run",
            code="task_ended",
            run_id=envelope.run_id,
        )
    if envelope.parent is not None:
        raise RetryRefusedError(
            f"run {envelope.run_id!r} was delegated by {envelope.parent.run_id!r}, which was told that it failed and went on; "
            "what it would do now nobody waits for; start a new run",
            code="parent_told",
            run_id=envelope.run_id,
        )


def reopened(run: Run, policy: ExecutionPolicy | None = None, shared: tuple[SharedBudget, ...] = ()) -> Run:
    """The failed run at work again, in the phase that it failed in, allowed no more than `policy` allows too, and charged to
    `shared` as well.

    Raises as `check_retryable`.
    """
    check_retryable(run)
    saved = run.envelope.policy
    narrower = saved.narrowed(policy)
    is_same = narrower == saved and tightened(run.envelope.shared, shared) == run.envelope.shared
    return evolve_all(run, (Reopened(),) if is_same else (Reopened(), PolicyNarrowed(narrower, shared)))


def unsettled(run: Run, settled: frozenset[str]) -> tuple[Receipt, ...]:
    """Interrupted calls of which neither the record nor `settled`, ids of calls, says what is to become of them."""
    return tuple(receipt for receipt in unknown_effects(run) if receipt.call_id not in settled)
