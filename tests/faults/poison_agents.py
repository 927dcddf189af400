"""An agent whose tool ends its own process, and one that does no harm."""

from __future__ import annotations

import asyncio
import os
import signal

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.tool import ToolContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, call, calls, reply
from deuz_workers.tools.decorator import tool
from tests.workers.agents import trace, turn_of

TURNS = 6
WORK_S = 0.02


@tool(replay="idempotent")
def end_it_all(context: ToolContext) -> str:
    """As a tool that eats all memory ends."""
    trace("poison", f"{context.run_id} {os.getpid()}")
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


@tool(replay="idempotent")
async def put(context: ToolContext) -> str:
    """Takes a moment."""
    trace("put", f"{context.run_id} {context.model_step}")
    await asyncio.sleep(WORK_S)
    return "put"


def innocent(request: ModelRequest) -> Entry:
    return calls(call("put")) if turn_of(request) <= TURNS else reply("done")


def application(settings: Settings | None = None) -> Deuz:
    poison = Agent("poison", model=MockModel([calls(call("end_it_all")), "never"]), tools=[end_it_all])
    return Deuz([poison, Agent("innocent", model=MockModel.function(innocent), tools=[put])], settings=settings)


app = application()
