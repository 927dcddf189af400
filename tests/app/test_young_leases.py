"""Leases that have just begun, and may have forgotten who holds a run that was interrupted in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from deuz_workers import Agent, MockModel, tool
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.leases import open_leases
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import World

TTL_MS = 1_000
LOOKS = 2 * TTL_MS // 200
"""One every 200 ms, and as many again for what rings beside them."""


async def test_an_interrupted_run_is_looked_at_with_everything_else_until_its_leases_are_old(
    memory: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver waits between looks, and goes on with it afterwards: the tool is repeated once."""
    dies, postponed = [True], [0]

    @tool(replay="idempotent")
    async def work() -> str:
        if dies:
            raise ProcessDied
        return "worked"

    made = Agent("x", model=MockModel([calls(call("work")), "done"]), tools=[work])
    with pytest.raises(ProcessDied):
        await memory.process(made).aio.run_embedded("x", "go", run_id="r")
    dies.clear()

    async def postpone(scope: str, run_id: str, ms: int) -> None:
        postponed[0] += 1
        await original(scope, run_id, ms)

    original = memory.store.postpone
    monkeypatch.setattr(memory.store, "postpone", postpone)
    url = f"sqlite:///{tmp_path}/leases.db"
    settings = Settings(database_url=memory.url, redis_url=None, broker_url=None, leases_url=url, lease_ttl_ms=TTL_MS)
    made = Agent("x", model=MockModel([calls(call("work")), "done"]), tools=[work])
    later = Deuz((made,), settings=settings, store=memory.store, leases=open_leases(url))
    memory.opened.append(later)
    result = await later.aio.resume_embedded("r")
    assert (result.status, [message.role for message in result.messages]) == (
        "completed",
        ["user", "assistant", "tool", "assistant"],
    )
    assert 1 <= postponed[0] <= LOOKS
