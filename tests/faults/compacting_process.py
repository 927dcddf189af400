"""A run whose history outgrows its window, in a process of its own: ``python -m tests.faults.compacting_process URL [hang]``.

``hang``: the process says ``there`` and waits for its death, ``summary`` in the first call for a summary, ``turn`` in the call
of the turn that follows it. Without, it brings the run to its end and prints what came of it.
"""

from __future__ import annotations

import asyncio
import json
import sys

from deuz_workers import Agent, CompactionPolicy, Deuz, Settings, tool
from deuz_workers.core.compaction import is_summary
from deuz_workers.core.history import History
from deuz_workers.core.messages import Message, TextPart, ToolUsePart
from deuz_workers.core.summary_request import INSTRUCTIONS
from deuz_workers.core.usage import Usage
from deuz_workers.ports.model import ModelReply, ModelRequest, OnText

TURNS = 8
WINDOW_TOKENS = 2_000
LEASE_TTL_MS = 1_000
RUN_ID = "r"


@tool(replay="idempotent")
async def look() -> str:
    """Reads a page that is not worth leaving out."""
    return "seen"


class Reader:
    """A `Model` that looks at pages, and waits where it is told to."""

    name = "mock:reader"

    def __init__(self, hang: str | None) -> None:
        self._hang = hang
        self.asked: list[str] = []
        """`summary`, or the number of the turn."""
        self.are_paired = True

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        usage = Usage(max(1, History(request.messages).size_bytes // 4), 5, cost_micros=None)
        if request.messages[0].text == INSTRUCTIONS:
            self.asked.append("summary")
            await self._wait("summary")
            return ModelReply(Message("assistant", (TextPart("in short"),)), "stop", usage, self.name)
        turn = int(request.request_id.split(":")[1])
        self.asked.append(str(turn))
        self.are_paired = self.are_paired and History(request.messages).is_paired
        if any(map(is_summary, request.messages)):
            await self._wait("turn")
        text = TextPart("I read on. " * 80)
        made = (ToolUsePart(f"c{turn}", "look", {}),) if turn <= TURNS else ()
        return ModelReply(Message("assistant", (text, *made)), "tool_calls" if made else "stop", usage, self.name)

    async def close(self) -> None:
        """Nothing is held."""

    async def _wait(self, place: str) -> None:
        if self._hang == place:
            print("there", flush=True)
            await asyncio.Event().wait()


async def main(url: str, hang: str | None) -> None:
    reader = Reader(hang)
    policy = CompactionPolicy(context_window_tokens=WINDOW_TOKENS)
    agent = Agent("x", model=reader, tools=[look], compaction=policy)
    app = Deuz([agent], settings=Settings(database_url=url, lease_ttl_ms=LEASE_TTL_MS))
    if hang is None:
        result = await app.aio.resume_embedded(RUN_ID)
    else:
        result = await app.aio.run_embedded("x", "read everything", run_id=RUN_ID)
    events = [event async for event in app.aio.handle(RUN_ID).events(follow=False)]
    await app.aclose()
    told = {
        "status": result.status,
        "asked": reader.asked,
        "are_paired": reader.are_paired,
        "summaries": sum(map(is_summary, result.messages)),
        "transcript": len(result.transcript),
        "abandoned": [event.data.get("purpose") for event in events if event.type == "model.abandoned"],
        "layers": [event.data["layer"] for event in events if event.type == "history.compacted"],
    }
    print(json.dumps(told, default=str))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
