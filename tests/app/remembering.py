"""Agents that remember, with a scripted memory LLM that tells what it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from deuz_workers import Agent, Memory, MemoryQuery, MemoryRecord, MemoryReply, MemoryScope, MemorySeams, MockModel
from deuz_workers.core.envelope import decode_envelope
from deuz_workers.core.run_memory import Extraction, RunMemory
from deuz_workers.providers.script import Entry
from tests.app.world import World

ANN, BOB = MemoryScope(user_id="ann"), MemoryScope(user_id="bob")
NOW_MS = 1_000_000

Said = str | MemoryReply | BaseException | Callable[[], Any]


def facts(*texts: str) -> str:
    return json.dumps({"facts": texts})


def add(text: str) -> dict[str, str]:
    return {"event": "ADD", "text": text}


def update(place: int, text: str) -> dict[str, str]:
    return {"event": "UPDATE", "id": str(place), "text": text}


def delete(place: int) -> dict[str, str]:
    return {"event": "DELETE", "id": str(place)}


def changes(*events: dict[str, str]) -> str:
    return json.dumps({"memory": events})


TEA = (facts("likes tea"), changes(add("likes tea")))
"""Answers that store one fact."""


@dataclass
class Llm:
    """Says what `script` says, one after the other; remembers what it was asked."""

    script: list[Said]
    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    async def __call__(self, system: str, user: str) -> str | MemoryReply:
        self.asked.append((system, user))
        said = self.script[len(self.asked) - 1]
        if isinstance(said, BaseException):
            raise said
        return await said() if callable(said) else said


def says(*script: Said) -> Llm:
    return Llm(list(script))


def memory_of(
    llm: Any, *, scope: Any = ANN, store: Any = None, embedder: Any = None, execution: Any = None, **given: Any
) -> Memory:
    """Time stands still, and ids count."""
    ids = count(1)
    seams = MemorySeams(
        store=store,
        llm=llm,
        clock=lambda: NOW_MS,
        ids=lambda: f"id-{next(ids)}",
        embedder=embedder,
        execution=execution,
    )
    return Memory(scope, seams, **given)


def remembering(
    llm: Any, *script: Entry, memory: Memory | None = None, tools: Any = (), name: str = "x", **given: Any
) -> Agent:
    return Agent(name, model=MockModel(script or ("done",)), tools=tools, memory=memory or memory_of(llm), **given)


def model_of(agent: Agent) -> MockModel:
    assert isinstance(agent.model, MockModel)
    return agent.model


def remembered(text: str, record_id: str = "", scope: MemoryScope = ANN, **given: Any) -> MemoryRecord:
    return MemoryRecord(record_id or f"of {text}", text, scope, 1, given.pop("at_ms", 1), **given)


async def stored(world: World, scope: MemoryScope = ANN) -> list[MemoryRecord]:
    """All memories of somebody, by their texts."""
    found = await world.store.find_memories("default", scope, MemoryQuery("", 1_000, now_ms=NOW_MS))
    return sorted(found, key=lambda record: record.text)


async def texts(world: World, scope: MemoryScope = ANN) -> list[str]:
    return [record.text for record in await stored(world, scope)]


async def state_of(world: World, run_id: str = "r") -> RunMemory:
    state = decode_envelope(await world.head(run_id)).memory
    assert state is not None
    return state


async def extraction_of(world: World, run_id: str = "r") -> Extraction:
    extraction = (await state_of(world, run_id)).extraction
    assert extraction is not None
    return extraction
