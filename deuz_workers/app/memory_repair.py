"""An extraction that nobody goes on with, looked at again by whoever has the agent: `reconcile_agent_run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deuz_workers.app.access import not_found
from deuz_workers.app.driven import answered
from deuz_workers.app.embedded import driver
from deuz_workers.app.repair import RunRepair
from deuz_workers.app.results import ResultWarning
from deuz_workers.core.change import Applied
from deuz_workers.core.envelope import decode_envelope
from deuz_workers.core.evolve import evolve
from deuz_workers.core.memory_events import ExtractionReopened
from deuz_workers.core.run import read_run, to_change
from deuz_workers.core.run_memory import PARTIAL, Extraction
from deuz_workers.errors import RevisionConflictError
from deuz_workers.ports.store import Loaded

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz


async def reconcile_memory(app: Deuz, scope: str, run_id: str) -> RunRepair:
    """Judge a pending or failed extraction by the memory store, and execute it where nothing of it was done; a settled one is
    reported, and nothing is written.

    Steps of the engine do it, under the run's lease. Raises `AgentRunLeaseError`, `RevisionConflictError`,
    `ExecutionPolicyError` for an agent that did not begin the run, store errors.
    """
    loaded = await _loaded(app, scope, run_id)
    extraction = _extraction(loaded)
    if extraction is None or extraction.is_settled:
        return _report(run_id, extraction)
    if extraction.status == "failed":
        run = evolve(read_run(loaded.head, loaded.messages, loaded.receipts), ExtractionReopened())
        if not isinstance(await app.store.commit(to_change(run, app.ids.commit_id())), Applied):
            raise RevisionConflictError(f"somebody else wrote run {run_id!r} meanwhile; look again", run_id=run_id)
    async with driver(app) as driving:
        with answered(app.store, scope, run_id, driving.doorbell):
            refusals = await driving.drive([(scope, run_id)])
    if error := refusals.get((scope, run_id)):
        raise error
    return _report(run_id, _extraction(await _loaded(app, scope, run_id)))


async def _loaded(app: Deuz, scope: str, run_id: str) -> Loaded:
    loaded = await app.store.load(scope, run_id)
    if loaded is None:
        raise not_found(scope, run_id)
    return loaded


def _extraction(loaded: Loaded) -> Extraction | None:
    memory = decode_envelope(loaded.head).memory
    return None if memory is None else memory.extraction


def _report(run_id: str, extraction: Extraction | None) -> RunRepair:
    if extraction is None:
        return RunRepair(run_id)
    error = extraction.error or {}
    is_partial = error.get("code") == PARTIAL
    warnings = (ResultWarning(PARTIAL, str(error.get("message"))),) if is_partial else ()
    return RunRepair(run_id, extraction.status, warnings)
