"""Narrowing what a stored run may do: a note of its own, written ahead of whatever else is said to the run.

A step that takes in what was stored later takes the note in with it, whichever process executes the step. A death between the
two writes leaves a run that may do less, and nothing else.
"""

from __future__ import annotations

from deuz_workers.app.access import Access
from deuz_workers.core.change import Bell
from deuz_workers.core.codec import encode
from deuz_workers.core.envelope import decode_envelope
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.ports.store import Loaded, RunStore


async def narrow(store: RunStore, loaded: Loaded, policy: ExecutionPolicy | None) -> Bell | None:
    """Store `policy`, unless the run may do no more than that anyway; the bell that makes somebody look.

    Raises `CheckpointVersionError`, `CodecError`, store errors; nothing was written then.
    """
    if policy is None:
        return None
    saved = decode_envelope(loaded.head).policy
    if saved.narrowed(policy) == saved:
        return None
    return await store_policy(store, loaded.head.scope, loaded.head.run_id, policy)


async def store_policy(store: RunStore, scope: str, run_id: str, policy: ExecutionPolicy) -> Bell | None:
    """One statement. None: there is no such run, or it has ended."""
    noted = await store.add_note(scope, run_id, "policy", encode(policy.to_record()))
    return None if noted is None else noted.bell


async def narrow_run(access: Access, scope: str, run_id: str, policy: ExecutionPolicy) -> bool:
    """Store `policy` and ring for the run; False: it has ended. Raises `RunNotFoundError`."""
    bell = await store_policy(access.store, scope, run_id, policy)
    if bell is None:
        await access.head(scope, run_id)
        return False
    await access.ring([bell])
    return True
