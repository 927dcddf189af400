"""A long run in a process of its own, which is killed, and the process after it: ``python -m tests.bench.long_run``.

``begin URL TURNS``  runs until the model call after `TURNS` turns, says ``there`` and waits for its death.
``resume URL``       goes on and prints what passed from the call of `resume_embedded` to that of the model, in milliseconds: by
                     the clock, and of the processor as far as this process used it, which others on the machine do not
                     lengthen. Modules are imported before, the price list among them.

Each turn brings 2 KB that nobody can compress from a tool.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time

from deuz_workers import Agent, Deuz, Limits, Settings, tool
from deuz_workers.core.messages import Message, TextPart, ToolUsePart
from deuz_workers.core.usage import Usage
from deuz_workers.ports.model import ModelReply, ModelRequest, OnText

RESULT_BYTES = 2_048
LEASE_TTL_MS = 1_000
RUN_ID = "long"


@tool(replay="idempotent")
async def look() -> str:
    """Looks something up."""
    return secrets.token_urlsafe(RESULT_BYTES)[:RESULT_BYTES]


class Looking:
    """A `Model` that looks `turns` times; then it waits, or is done where `ends`."""

    name = "mock:looking"

    def __init__(self, turns: int, *, ends: bool) -> None:
        self._turns = turns
        self._ends = ends
        self.called: list[tuple[int, int]] = []
        """By the clock and by the processor, in nanoseconds."""
        self.sizes: list[int] = []

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """A call of `look`; the answer after as many as were asked for."""
        self.called.append((time.monotonic_ns(), time.process_time_ns()))
        self.sizes.append(len(request.messages))
        turn = len(request.messages) // 2 + 1
        usage = Usage(100, 10, cost_micros=None)
        if turn <= self._turns:
            asked = ToolUsePart(f"call_{turn}", "look", {})
            return ModelReply(Message("assistant", (asked,)), "tool_calls", usage, self.name)
        if not self._ends:
            print("there", flush=True)
            await asyncio.Event().wait()
        return ModelReply(Message("assistant", (TextPart("done"),)), "stop", usage, self.name)

    async def close(self) -> None:
        """Nothing is held."""


def application(url: str, model: Looking) -> Deuz:
    agent = Agent("long", model=model, tools=[look], limits=Limits(max_steps=1_000_000))
    return Deuz([agent], settings=Settings(database_url=url, lease_ttl_ms=LEASE_TTL_MS))


async def begin(url: str, turns: int) -> None:
    """Returns only if nobody kills it."""
    await application(url, Looking(turns, ends=False)).aio.run_embedded("long", "go", run_id=RUN_ID)


async def resume(url: str) -> dict[str, float]:
    """Figures of the run's last turn."""
    model = Looking(0, ends=True)
    app = application(url, model)
    app.prices.cost_micros(model.name, Usage(1, 1, cost_micros=None))
    began_ns, began_cpu_ns = time.monotonic_ns(), time.process_time_ns()
    result = await app.aio.resume_embedded(RUN_ID)
    await app.aclose()
    if result.status != "completed":
        raise RuntimeError(f"the run is {result.status}: {result.error}")
    [(called_ns, called_cpu_ns)] = model.called
    return {
        "resume_ms": (called_ns - began_ns) / 1e6,
        "resume_cpu_ms": (called_cpu_ns - began_cpu_ns) / 1e6,
        "resumed_messages": model.sizes[0],
    }


if __name__ == "__main__":
    if sys.argv[1] == "begin":
        asyncio.run(begin(sys.argv[2], int(sys.argv[3])))
    else:
        print(json.dumps(asyncio.run(resume(sys.argv[2]))))
