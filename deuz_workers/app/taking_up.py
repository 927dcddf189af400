"""Taking a failed run up again, for whoever asks for it: a caller that drives it itself, a client of workers."""

from __future__ import annotations

from collections.abc import Collection

from deuz_workers.app.access import Access, not_found
from deuz_workers.core.change import Applied, Bell, Head
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.run import Run, read_run, to_change
from deuz_workers.core.shared_budget import SharedBudget
from deuz_workers.core.taking_up import check_retryable as _check_retryable
from deuz_workers.core.taking_up import reopened, unsettled
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.runtime import Ids
from deuz_workers.ports.store import Loaded, RunStore


async def reopen(
    store: RunStore,
    ids: Ids,
    loaded: Loaded,
    policy: ExecutionPolicy | None = None,
    shared: tuple[SharedBudget, ...] = (),
) -> bool:
    """Save the failed run as being at work again; False: somebody else did, and nothing was written here.

    From this commit on it is held to `policy` and charged to `shared`, whoever goes on with it.

    The commit is the whole of it: a worker, or whoever drives the run, goes on from the record. Raises `RetryRefusedError`.
    """
    run = reopened(_run_of(loaded), policy, shared)
    return isinstance(await store.commit(to_change(run, ids.commit_id())), Applied)


def is_unsettled(loaded: Loaded, settled: Collection[str]) -> bool:
    """An interrupted call of the failed run is neither idempotent nor among `settled` (MDL-008)."""
    return bool(unsettled(_run_of(loaded), frozenset(settled)))


async def take_up(access: Access, scope: str, run_id: str, policy: ExecutionPolicy | None = None) -> bool:
    """Take a failed run up again, held to `policy` too, and ring for it; False, without effect, where it has not failed
    (MDL-012).

    Raises `RetryRefusedError` for a lasting cause; `ConfigurationError` where an effect is unknown; `RunNotFoundError`. Nothing
    was written then.
    """
    while True:
        loaded = await access.store.load(scope, run_id)
        if loaded is None:
            raise not_found(scope, run_id)
        if loaded.head.status != "failed":
            return False
        if is_unsettled(loaded, ()):
            raise ConfigurationError(
                f"run {run_id!r} has calls of which nobody knows what became; resume it with retry_failed and say so",
                code="tool-reconciliation-required",
            )
        if await reopen(access.store, access.ids, loaded, policy):
            await access.ring([_bell(loaded.head)])
            return True


def check_retryable(loaded: Loaded) -> None:
    """Raises `RetryRefusedError` for a failed run that may not be taken up again."""
    _check_retryable(_run_of(loaded))


def _run_of(loaded: Loaded) -> Run:
    return read_run(loaded.head, loaded.messages, loaded.receipts)


def _bell(head: Head) -> Bell:
    return Bell(head.scope, head.run_id, head.queue, head.revision + 1, head.priority, head.agent)
