"""Bells, and ringing for runs that a commit made due: while their queue has room, else the sweep feeds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from deuz_workers.core.build import shared_queue
from deuz_workers.core.change import Bell, Head
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


def stays(bell: Bell, run_id: str, at: str) -> Bell:
    """A bell for the next step of a run that was rung in the own queue of a build; other builds would only pass it on."""
    return replace(bell, queue=at) if bell.run_id == run_id and bell.queue == shared_queue(at) else bell


def rings_for(bells: Sequence[Bell], run_id: str) -> bool:
    """One of them is for that run."""
    return any(bell.run_id == run_id for bell in bells)


def bell_of(head: Head, revision: int | None = None) -> Bell:
    """For its next step; `revision` None: the one that it was read at."""
    return Bell(head.scope, head.run_id, head.queue, head.revision if revision is None else revision, head.priority, head.agent)
