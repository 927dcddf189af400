"""An agent with a memory whose LLM says when it is asked, and goes on when a file appears."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from deuz_workers import Agent, Deuz, Memory, MemoryScope, MemorySeams, MockModel, Settings
from deuz_workers.core.extraction_plan import ASK_FACTS
from tests.workers.agents import TRACES, trace

ANN = MemoryScope(user_id="ann")


async def extract(system: str, user: str) -> str:
    """Traces the question and the process; the first question waits for `facts.go`."""
    trace("asked", f"{'facts' if system == ASK_FACTS else 'changes'} {os.getpid()}")
    if system != ASK_FACTS:
        return '{"memory": [{"event": "ADD", "text": "likes tea"}]}'
    while not (Path(os.environ[TRACES]) / "facts.go").exists():  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.01)
    return '{"facts": ["likes tea"]}'


def application(settings: Settings | None = None) -> Deuz:
    memory = Memory(ANN, MemorySeams(llm=extract))
    return Deuz([Agent("clerk", model=MockModel.function(lambda request: "done"), memory=memory)], settings=settings)


app = application()
