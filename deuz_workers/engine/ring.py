"""Ringing for runs that a commit made due: while their queue has room, else the sweep feeds them."""

from __future__ import annotations

from collections.abc import Sequence

from deuz_workers.core.build import shared_queue
from deuz_workers.core.change import Bell
from deuz_workers.ports.runtime import Doorbell
from deuz_workers.ports.store import RunStore


async def ring_or_ripen(store: RunStore, doorbell: Doorbell, bells: Sequence[Bell], *, spare: bool = False) -> None:
    """Every one of `bells` was rung, or the sweep may take its run at once. Raises `StoreUnavailableError`.

    Where nobody was rung for a run, this process looks for room in its queue from now on, if it feeds it; should it die, the
    next pass of the sweep does. After a death in here, or an error, the sweep finds the runs a lease TTL after they became due.
    """
    if not bells:
        return
    left = await doorbell.offer(bells, spare=spare)
    if left:
        await store.ripen([(bell.scope, bell.run_id) for bell in left])
        doorbell.leave({shared_queue(bell.queue) for bell in left})
