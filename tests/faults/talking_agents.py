"""Agents that write their answer while somebody reads: they say where they are, and go on when they are let go."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.ports.asides import Aside, TellsAsides
from deuz_workers.ports.model import ModelReply, ModelRequest, OnText
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import call, calls
from deuz_workers.tools.decorator import tool
from tests.workers.agents import TRACES, many, nothing, read, sign, trace, turn_of, write

ANSWER = "first half, second half"


class Talker(MockModel):
    """Writes its process id and the first half of its answer, and the second half when it is let go.

    A later attempt does the same; what the first one wrote before it died is not part of any answer.
    """

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        assert on_text is not None
        if request.attempt == 1:
            on_text(f"of {os.getpid()}: ")
        on_text("first half, ")
        trace("spoke", f"{request.attempt} {os.getpid()}")
        go = Path(os.environ[TRACES]) / f"{request.messages[0].text}.go"
        while not go.exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.01)
        on_text("second half")
        answer = ANSWER if request.attempt > 1 else f"of {os.getpid()}: {ANSWER}"
        return await MockModel([answer]).call(request)


class Thinker(MockModel):
    """Thinks, and writes half of the arguments of a call; the other half, and the call itself, when it is let go."""

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        assert on_text is not None
        if turn_of(request) > 1:
            return await MockModel(["done"]).call(replace(request, messages=request.messages[:1]), on_text)
        assert isinstance(on_text, TellsAsides)
        on_text.aside(Aside("reasoning", f"thought {request.attempt}"))
        on_text.aside(Aside("arguments", '{"n": ', 0, "write"))
        trace("thought", f"{request.attempt} {os.getpid()}")
        go = Path(os.environ[TRACES]) / f"{request.messages[0].text}.go"
        while not go.exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.01)
        on_text.aside(Aside("arguments", "7}", 0, "write"))
        return await MockModel([calls(call("write", n=7))]).call(request)


@tool
def large() -> str:
    """A result that is too large for a live stream."""
    return "x" * 50_000


def application(settings: Settings | None = None) -> Deuz:
    """Agents: one that talks, one that thinks, one of many turns, one that waits for people."""
    large_once = MockModel.function(lambda request: "seen" if turn_of(request) > 1 else calls(call("large")))
    signs = MockModel.function(lambda request: "it is done" if turn_of(request) > 1 else calls(call("sign", name="it")))
    return Deuz(
        [
            Agent("talker", model=Talker([ANSWER])),
            Agent("thinker", model=Thinker([]), tools=[write]),
            Agent("worker", model=many("write", "read", "write"), tools=[read, write, nothing]),
            Agent("signer", model=signs, tools=[sign]),
            Agent("large", model=large_once, tools=[large]),
        ],
        settings=settings,
    )


app = application()
