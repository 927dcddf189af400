"""Agents whose runs have something to show: text in fragments, tools, people who are asked."""

from __future__ import annotations

import asyncio
from typing import Any

from deuz_workers import Agent, MockModel, client_tool, tool
from deuz_workers.ports.model import ModelReply, ModelRequest, OnText
from deuz_workers.providers.script import call, calls


class Fragments(MockModel):
    """Writes its answers word by word; a word `~` waits for `gate`."""

    def __init__(self, script: Any, gate: asyncio.Event | None = None) -> None:
        super().__init__(script)
        self.gate = gate or asyncio.Event()
        self.waits = asyncio.Event()
        """It stands before a `~`."""

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        reply = await super().call(request)
        for word in reply.message.text.split(" "):
            if word == "~":
                self.waits.set()
                await self.gate.wait()
            if on_text is not None:
                on_text(word if reply.message.text.startswith(word) else f" {word}")
            await asyncio.sleep(0)
        return reply


@tool(replay="idempotent")
async def look(n: int) -> str:
    """Look something up."""
    return f"raw-result-{n}"


@tool(needs_approval=True)
async def pay(to: str) -> str:
    """Pay somebody."""
    return f"paid {to}"


ask = client_tool("ask", "Ask the client.", {"type": "object", "properties": {"what": {"type": "string"}}})


def talker(*words: str, gate: asyncio.Event | None = None, name: str = "talker") -> Agent:
    """Looks something up, then says `words`."""
    script = [calls(call("look", n=1), text="let me see"), " ".join(words or ("it", "is", "done"))]
    return Agent(name, model=Fragments(script, gate), tools=[look])


def asker(name: str = "asker") -> Agent:
    """Wants an approval and a client's result at once, then says `thanks to both`."""
    script = [calls(call("pay", to="bob").with_id("p"), call("ask", what="name").with_id("a")), "thanks to both"]
    return Agent(name, model=MockModel(script), tools=[pay, ask])
