"""Agents whose tools raise what is no `Exception`, or end the event loop when they run for the first time."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.ports.tool import ToolContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import call, calls
from deuz_workers.tools.decorator import tool
from tests.workers.agents import TRACES, held, trace, turn_of


class Base(BaseException):
    """An error that `except Exception` lets pass."""


def break_down() -> str:
    raise Base("b")


def break_down_over(value: Any) -> str:
    raise Base("b")


async def break_down_later() -> str:
    raise Base("b")


@tool(replay="idempotent")
async def leave(context: ToolContext, name: str) -> str:
    """A task of its own ends the event loop, unless the file `<name>.go` is there."""
    trace("leave", f"{context.idempotency_key} {os.getpid()}")

    async def end() -> None:
        sys.exit(0)

    if not (Path(os.environ[TRACES]) / f"{name}.go").exists():
        await asyncio.create_task(end())
    return "stayed"


def once(name: str) -> MockModel:
    return MockModel.function(lambda request: "done" if turn_of(request) > 1 else calls(call(name)))


agents = [
    Agent("thread", model=once("thread"), tools=[tool(break_down, name="thread")]),
    Agent("loop", model=once("loop"), tools=[tool(break_down_later, name="loop")]),
    Agent("shown", model=once("shown"), tools=[tool(lambda: 7, name="shown", to_model_output=break_down_over)]),
    Agent("asking", model=once("asking"), tools=[tool(lambda: 7, name="asking", needs_approval=break_down_over)]),
    Agent("leaver", model=held("leave"), tools=[leave]),
]
app = Deuz(agents)
