"""Runs whose model's stream is cut: anywhere, on every wire."""

from __future__ import annotations

import asyncio
import os
import re
from collections import defaultdict
from typing import Any

import pytest

from deuz_workers import Agent, ToolContext, stream_agent, tool
from deuz_workers.core.usage import Usage
from deuz_workers.providers.script import ScriptedReply
from deuz_workers.testing.model_faults import Served, cut
from deuz_workers.testing.model_server import ModelServer, ReceivedRequest
from tests.providers.wires import WIRES

EVERY_BYTE = "TEST_EVERY_BYTE"
"""Environment variable: set, runs are cut at every byte, which takes a minute and a half; `test_faults.py` cuts calls at every
byte always."""
STRIDE = 13
"""Else at so many bytes from each other."""
SIDE_BY_SIDE = 100
"""Runs: each waits a moment before it asks again."""
DONE = ScriptedReply("done", usage=Usage(30, 1, cost_micros=None))


@pytest.mark.spec("FR-27")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("wire", WIRES)
async def test_a_run_survives_a_cut_at_any_byte(wire: str) -> None:
    """The first stream of the turn ends after so many bytes; the second is whole.

    Each call of the tool runs once, with the arguments of the whole stream. A reader has in the end the text of the whole one
    once: what it was shown of the first it was told to drop. The first call counts as what it may have cost, the second as
    what it used.
    """
    stream = WIRES[wire].short_stream
    paid: dict[str, list[tuple[int, str]]] = defaultdict(list)

    @tool
    async def pay(context: ToolContext, usd: int, to: str = "") -> str:
        """Pays."""
        paid[context.run_id].append((usd, to))
        return "paid"

    def answer(request: ReceivedRequest) -> Served | ScriptedReply:
        if request.turn > 1:
            return DONE
        at = re.search(rb"cut at (\d+)", request.raw)
        assert at is not None
        return cut(stream, int(at[1])) if request.attempt == 1 else Served(stream)

    estimates: set[int] = set()
    with ModelServer(answer) as server:
        model = WIRES[wire].model(server, max_retries=0)
        agent = Agent("x", model=model, tools=[pay], max_output_tokens=100)

        async def run(at: int) -> None:
            running = stream_agent(agent, f"cut at {at}", run_id=f"r{at}")
            shown = await _shown(running)
            result = await running.result
            assert (result.status, result.text, result.error, shown) == ("completed", "done", None, ["Paying.", "done"])
            assert sorted(paid[f"r{at}"]) == [(7, ""), (1250, "é")]
            assert result.accounting.spent.tokens == 29 + 31
            estimates.add(result.accounting.unknown.tokens)

        places = range(0, len(stream), 1 if os.environ.get(EVERY_BYTE) else STRIDE)
        for first in range(0, len(places), SIDE_BY_SIDE):
            await asyncio.gather(*map(run, places[first : first + SIDE_BY_SIDE]))
        await model.close()
        assert server.received == 3 * len(places)
    assert all(estimate > 100 for estimate in estimates)


async def _shown(running: Any) -> list[str]:
    """By turn: the text that a reader has in the end."""
    turns: dict[int, str] = {}
    async for event in running.events:
        match event.type:
            case "phase" | "discard":
                turns[event.step] = ""
            case "part" if event.part.type == "text-delta":
                turns[event.step] += event.part.text
            case _:
                pass
    return [turns[step] for step in sorted(turns)]
