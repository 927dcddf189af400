"""The application that is measured: a model that answers at once, a tool that does nothing.

At the turns that a prompt names the model waits at a gate, so that whoever measures can read counters while nothing moves.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import Message, TextPart, ToolUsePart
from deuz_workers.core.usage import Usage
from deuz_workers.ports.model import ModelReply, ModelRequest, OnText
from deuz_workers.ports.store import RunStore
from deuz_workers.tools.decorator import tool

GATES = "BENCH_GATES"
"""Environment variable: the folder through which workers and the bench meet at gates."""
POLL_S = 0.001

AGENT = "bench"
USAGE = Usage(100, 10, cost_micros=None)
Gate = Callable[[int], Awaitable[None]]
"""Called with the number of the turn whose model call has begun; returns when it may go on."""


def prompt_for(turns: int, gates: Sequence[int] = ()) -> str:
    """What makes a run of `turns` turns with a tool call, and one more to end, stop at `gates`."""
    return f"{turns} {','.join(map(str, gates))}"


@cache
def _read(prompt: str) -> tuple[int, frozenset[int]]:
    turns, _, gates = prompt.partition(" ")
    return int(turns), frozenset(int(gate) for gate in gates.split(",") if gate)


class AtOnce:
    """A `Model`. Like `MockModel` but for its look at every message of a request, which is no cost of the product's."""

    name = "mock:at-once"

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """A call of `nothing`, until the turns that the prompt asks for are over."""
        turns, gates = _read(request.messages[0].text)
        turn = len(request.messages) // 2 + 1
        if turn in gates:
            await self._gate(turn)
        if turn > turns:
            return ModelReply(Message("assistant", (TextPart("done"),)), "stop", USAGE, self.name)
        asked = ToolUsePart(f"call_{turn}", "nothing", {"word": "none"})
        return ModelReply(Message("assistant", (asked,)), "tool_calls", USAGE, self.name)

    async def close(self) -> None:
        """Nothing is held."""


@tool(replay="idempotent")
async def nothing(word: str) -> str:
    """Do nothing."""
    return word


def application(gate: Gate, settings: Settings | None = None, store: RunStore | None = None) -> Deuz:
    agent = Agent(AGENT, model=AtOnce(gate), tools=[nothing], limits=Limits(max_steps=1_000_000))
    return Deuz([agent], settings=settings, store=store)


async def gate_of_files(turn: int) -> None:
    """Say when the run came to the gate, wait until the bench lets it through, say when it went on."""
    folder = Path(os.environ[GATES])
    write_whole(folder / f"{turn}.came", str(time.monotonic_ns()))
    while not (folder / f"{turn}.go").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(POLL_S)
    write_whole(folder / f"{turn}.went", str(time.monotonic_ns()))


def write_whole(path: Path, text: str) -> None:
    """The file is there with all of its text, or not at all."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text)
    unfinished.rename(path)


app = application(gate_of_files)
