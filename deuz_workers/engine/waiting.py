"""Since when a run waits: asked where traces are collected, and nowhere else."""

from __future__ import annotations

from deuz_workers.core.change import Head
from deuz_workers.core.codec import encode
from deuz_workers.engine.gear import Gear
from deuz_workers.errors import StoreUnavailableError

LOOK_BACK = 100
"""Journal rows among which the newest suspension is looked for; what came since are notes and answers."""
SUSPENDED = encode("run.suspended")


async def waits_since_ms(gear: Gear, head: Head) -> int | None:
    """For its first step, or for answers; Unix time by the store's clock. None: it does not, or nobody collects it."""
    if not gear.telemetry.is_on:
        return None
    if head.status == "queued":
        return head.created_at_ms
    if head.status != "suspended":
        return None
    try:
        rows = await gear.store.journal(head.scope, head.run_id, max(0, head.journal_seq - LOOK_BACK), LOOK_BACK)
    except StoreUnavailableError:
        return None  # the step finds out by itself
    return next((row.at_ms for row in reversed(rows) if SUSPENDED in row.body), None)
