"""An agent over HTTP, whose tool tells which event loop and process it ran on."""

from __future__ import annotations

import asyncio
import os

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.core.limits import Limits
from deuz_workers.providers.chat.model import ChatCompletionsModel
from deuz_workers.tools.decorator import tool
from tests.workers.agents import trace

MODEL_URL = "TEST_MODEL_URL"


@tool
async def where() -> str:
    """Tell the process, its event loop, and how many sockets it has open."""
    sockets = sum("socket:" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd))
    trace("where", f"{os.getpid()} {id(asyncio.get_running_loop())} {sockets}")
    return "here"


def _is_open(fd: str) -> bool:
    """The listing's own descriptor is closed by the time it is looked at."""
    return os.path.islink(f"/proc/self/fd/{fd}")


model = ChatCompletionsModel("any", os.environ.get(MODEL_URL, "http://127.0.0.1:9/v1"))
app = Deuz([Agent("caller", model=model, tools=[where], limits=Limits(max_steps=1_000))])
