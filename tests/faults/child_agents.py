"""A parent that delegates many calls at once, over a store that notes every time a root is loaded."""

from __future__ import annotations

import inspect
from typing import Any, cast

from deuz_workers.app.agent import Agent
from deuz_workers.app.connections import store_of
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.core.limits import Limits
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.store import Known, Loaded, RunStore
from deuz_workers.ports.tool import ToolContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, call, calls, reply
from deuz_workers.tools.agent import AgentTool
from deuz_workers.tools.decorator import tool
from tests.workers.agents import trace, turns_of

THINK_MS = 40


class NotingStore:
    """Passes everything on to `inner`; each load of a run that nobody delegated leaves a line."""

    def __init__(self, inner: RunStore) -> None:
        self._inner = inner

    async def load(self, scope: str, run_id: str, known: Known | None = None) -> Loaded | None:
        loaded = await self._inner.load(scope, run_id, known)
        if loaded is not None and "/" not in run_id:
            trace("loads", f"{run_id} {loaded.head.revision}")
        return loaded

    def __getattr__(self, name: str) -> Any:
        reached = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(reached):
            return reached

        async def attempt(*args: Any, **kwargs: Any) -> object:
            return await reached(*args, **kwargs)

        return attempt


@tool(replay="idempotent")
async def touch(context: ToolContext) -> str:
    """Leaves a line with its key."""
    trace("touch", context.idempotency_key)
    return "touched"


def fan_out(request: ModelRequest) -> Entry:
    """Asks as many children as the prompt says turns, in its first turn."""
    if any(message.role == "assistant" for message in request.messages):
        results = [part.text for message in request.messages for part in message.tool_results]
        return reply(f"{results.count('touched it')} of {len(results)}")
    return calls(*(call("child", prompt=f"child {number}") for number in range(turns_of(request))))


def touching(request: ModelRequest) -> Entry:
    if any(message.role == "assistant" for message in request.messages):
        return reply("touched it", delay_ms=THINK_MS)
    return reply("", call("touch"), delay_ms=THINK_MS)


def application(settings: Settings | None = None) -> Deuz:
    """For workers; every load of a root is noted."""
    settings = settings or Settings()
    child = Agent("child", model=MockModel.function(touching), tools=[touch])
    parent = Agent("parent", model=MockModel.function(fan_out), tools=[child], limits=Limits(max_steps=4))
    talker = Agent("talker", model=MockModel.function(lambda request: "hello"))
    assert isinstance(parent.tools["child"], AgentTool)
    return Deuz([parent, talker], settings=settings, store=cast(RunStore, NotingStore(store_of(settings))))


app = application()
