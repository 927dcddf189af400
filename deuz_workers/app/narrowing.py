"""Narrowing what a stored run may do: a note of its own, written ahead of whatever else is said to the run.

A step that takes in what was stored later takes the note in with it, whichever process executes the step. A death between the
two writes leaves a run that may do less, and nothing else.
"""

from __future__ import annotations

from deuz_workers.app.access import Access
from deuz_workers.core.change import Bell
from deuz_workers.core.codec import encode
from deuz_workers.core.envelope import decode_envelope
from deuz_workers.core.names import narrowing_id
from deuz_workers.core.narrowing import narrowing_record
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.shared_budget import SharedBudget, tightened
from deuz_workers.ports.store import Loaded, RunStore


async def narrow(
    store: RunStore, loaded: Loaded, policy: ExecutionPolicy | None, shared: tuple[SharedBudget, ...] = ()
) -> tuple[Bell, ...]:
    """Store `policy` and `shared`, unless the run may do no more than that anyway; the bells that make somebody look.

    Raises `CheckpointVersionError`, `CodecError`, store errors; nothing was written then.
    """
    saved = decode_envelope(loaded.head)
    is_narrower = policy is not None and saved.policy.narrowed(policy) != saved.policy
    if not is_narrower and tightened(saved.shared, shared) == saved.shared:
        return ()
    return await store_policy(store, loaded.head.scope, loaded.head.run_id, policy, shared)


async def store_policy(
    store: RunStore, scope: str, run_id: str, policy: ExecutionPolicy | None, shared: tuple[SharedBudget, ...] = ()
) -> tuple[Bell, ...]:
    """Of the run, and then of all that it delegated, from above. No bell: there is no such run, or it has ended.

    One statement for each, and one that lists them. After a death in here the run's next step tells those below it.
    """
    body = encode(narrowing_record(policy, shared))
    noted = await store.add_note(scope, run_id, "policy", body)
    if noted is None:
        return ()
    bells = [noted.bell]
    for below in (await store.tree(scope, run_id))[1:]:
        once = narrowing_id(below.rid, body)
        if (noted := await store.add_note(scope, below.run_id, "policy", body, note_id=once)) is not None:
            bells.append(noted.bell)
    return tuple(bells)


async def narrow_run(access: Access, scope: str, run_id: str, policy: ExecutionPolicy) -> bool:
    """Store `policy` and ring for the run and those below; False: it has ended. Raises `RunNotFoundError`."""
    bells = await store_policy(access.store, scope, run_id, policy)
    if not bells:
        await access.head(scope, run_id)
        return False
    await access.ring(bells)
    return True
