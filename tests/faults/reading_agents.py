"""An agent that reads 2 KB in each of 2,000 turns, and whose history is compacted over and over.

For workers as an application; on its own, ``python -m tests.faults.reading_agents``, it carries the run out in its process.
Settings come from the environment.
"""

from __future__ import annotations

import asyncio
import secrets

from deuz_workers import Agent, CompactionPolicy, Deuz, Limits, Settings, tool
from deuz_workers.core.compaction import is_summary
from deuz_workers.core.history import History
from deuz_workers.core.messages import Message, TextPart, ToolUsePart
from deuz_workers.core.summary_request import INSTRUCTIONS
from deuz_workers.core.usage import Usage
from deuz_workers.ports.model import ModelReply, ModelRequest, OnText

TURNS = 2_000
SIZE = 2_048
WINDOW_TOKENS = 40_000
RUN_ID = "long"


@tool(replay="idempotent")
async def look() -> str:
    """Looks something up that nobody can compress."""
    return secrets.token_urlsafe(SIZE)[:SIZE]


class Reader:
    """A `Model` that fails the run when a request is not paired, or longer than its window."""

    name = "mock:reader"
    context_window_tokens = WINDOW_TOKENS

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """A call of `look`; after `TURNS` of them, whether there was a summary."""
        history = History(request.messages)
        tokens = history.size_bytes // 4
        assert history.is_paired
        assert tokens <= WINDOW_TOKENS
        usage = Usage(max(1, tokens), 5, cost_micros=None)
        if request.messages[0].text == INSTRUCTIONS:
            return ModelReply(Message("assistant", (TextPart("in short"),)), "stop", usage, self.name)
        turn = int(request.request_id.split(":")[1])
        if turn > TURNS:
            said = "summarized" if any(map(is_summary, request.messages)) else "whole"
            return ModelReply(Message("assistant", (TextPart(said),)), "stop", usage, self.name)
        return ModelReply(Message("assistant", (ToolUsePart(f"c{turn}", "look", {}),)), "tool_calls", usage, self.name)

    async def close(self) -> None:
        """Nothing is held."""


def application(settings: Settings | None = None) -> Deuz:
    limits = Limits(max_steps=TURNS + 1)
    return Deuz(
        [Agent("reader", model=Reader(), tools=[look], limits=limits, compaction=CompactionPolicy())], settings=settings
    )


app = application()


async def main() -> None:
    result = await app.aio.run_embedded("reader", "read everything", run_id=RUN_ID)
    print(result.status, result.steps, result.output)
    await app.aclose()


if __name__ == "__main__":
    asyncio.run(main())
