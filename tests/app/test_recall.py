"""What a run is told of earlier ones: once, ahead of its first model call."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any, cast

import pytest

from deuz_workers import (
    Agent,
    ConfigurationError,
    Memory,
    MemoryScope,
    MemorySeams,
    MockModel,
    RunFacts,
    ScopeMismatchError,
    reconcile_agent_run,
    run_agent,
    tool,
)
from deuz_workers.core.memory import RECALL_FLAG, MemoryQuery, MemoryRecord, is_recall, recall_message
from deuz_workers.core.messages import TextPart, user
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.remembering import ANN, BOB, TEA, memory_of, model_of, remembered, remembering, says, state_of
from tests.app.test_record_versions import Saves
from tests.app.world import Effects, World


class Counting:
    """A memory store that counts its searches; or fails at each."""

    def __init__(self, inner: Any, error: Exception | None = None) -> None:
        self._inner = inner
        self._error = error
        self.searched: list[tuple[str, MemoryScope, MemoryQuery]] = []

    async def find_memories(self, scope: str, within: MemoryScope, query: MemoryQuery) -> tuple[MemoryRecord, ...]:
        self.searched.append((scope, within, query))
        if self._error is not None:
            raise self._error
        return cast("tuple[MemoryRecord, ...]", await self._inner.find_memories(scope, within, query))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def told(agent: Agent) -> list[list[str]]:
    """Recalls in each request of the agent's model."""
    return [[message.text for message in request.messages if is_recall(message)] for request in model_of(agent).requests]


@pytest.mark.spec("MEM-002", "MEM-003")
async def test_a_run_is_told_once_and_keeps_what_it_was_told(world: World) -> None:
    """One search with the text of the newest user message, over turns, an approval and another process. The memories are the
    last message of the first request, and stand there, the same, in every later one."""

    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    @tool
    async def look() -> str:
        return "seen"

    await world.store.write_memories("default", [remembered("likes tea"), remembered("hates rain", scope=BOB)])
    store = Counting(world.store)
    made = [
        remembering(says(), "", calls(call("look")), calls(call("pay")), "done", tools=[pay, look], memory=memory)
        for memory in [memory_of(says(), store=store, extract=False) for _ in range(2)]
    ]
    messages = [user("old"), {"role": "assistant", "content": "so?"}, user("what tea?")]
    waiting = await world.process(made[0]).aio.run_embedded("x", messages=messages, run_id="r")
    assert waiting.status == "suspended"
    approvals = {item.approval_id: True for item in waiting.pending_approvals}
    result = await world.process(made[1]).aio.resume_embedded("r", approvals=approvals)
    assert (result.status, len(store.searched)) == ("completed", 1)
    scope, within, query = store.searched[0]
    assert (scope, within, query.text) == ("default", ANN, "what tea?")
    requests = [request.messages for agent in made for request in model_of(agent).requests]
    assert len(requests) == 3
    expected = recall_message([remembered("likes tea")])
    assert requests[0][-1] == expected
    assert "likes tea" in expected.text
    assert expected.parts == (TextPart(expected.text, RECALL_FLAG),)
    assert [request[:4] for request in requests] == [requests[0]] * 3
    assert result.messages[3] == expected


@pytest.mark.spec("MEM-004")
async def test_what_was_recalled_is_not_recalled_again(memory: World) -> None:
    """Neither by a resume nor by a run whose history ends with it; a user turn behind it asks for another one."""
    await memory.store.write_memories("default", [remembered("likes tea")])
    store = Counting(memory.store)
    agent = remembering(says(), "done", "done", memory=memory_of(says(), store=store, extract=False))
    with pytest.raises(ProcessDied):
        await memory.dying(agent, at=2).aio.run_embedded("x", "go", run_id="r")
    assert len(store.searched) == 1
    await memory.later(60_000)
    first = await memory.process(agent).aio.resume_embedded("r")
    assert (first.status, len(store.searched)) == ("completed", 1)
    again = await memory.process(agent).aio.run_embedded("x", messages=first.messages[:-1], run_id="s")
    assert (again.status, len(store.searched)) == ("completed", 1)
    assert [len(one) for one in told(agent)] == [1] * 3
    state = await state_of(memory, "s")
    assert state.recall == {"status": "present"}
    more = [*first.messages, user("and now?")]
    await memory.process(agent).aio.run_embedded("x", messages=more, run_id="t")
    assert (len(store.searched), store.searched[-1][2].text) == (2, "and now?")


@pytest.mark.spec("MEM-005", "MEM-007")
@pytest.mark.parametrize("case", ["found", "empty", "failed"])
async def test_the_record_says_what_was_recalled(world: World, case: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is there with the first save after the recall, and the run goes on whatever it says: with memories, without any, and
    past a store that raises, which is logged without what it said."""
    if case == "found":
        await world.store.write_memories("default", [remembered("likes tea"), remembered("has a dog")])
    store = Counting(world.store, RuntimeError("secret") if case == "failed" else None)
    agent = remembering(says(), memory=memory_of(says(), store=store, extract=False))
    with caplog.at_level(logging.WARNING), pytest.raises(ProcessDied):
        await world.dying(agent, at=1, applied=True).aio.run_embedded("x", "go", run_id="r")
    head = await world.head("r")
    state = await state_of(world)
    records: dict[str, object] = {
        "found": {"status": "found", "count": 2},
        "empty": {"status": "empty", "count": 0},
        "failed": {"status": "failed", "error": {"name": "RuntimeError", "code": "memory_store"}},
    }
    assert (head.revision, head.version, state.recall) == (1, 2, records[case])
    assert (await world.loaded("r")).messages[-1].seq == (1 if case == "found" else 0)
    await world.later(60_000)
    result = await world.process(agent).aio.resume_embedded("r")
    assert (result.status, len(store.searched)) == ("completed", 1)
    logged = [record.getMessage() for record in caplog.records if "memory_unavailable" in record.getMessage()]
    assert [("RuntimeError" in text, "secret" in text) for text in logged] == ([(True, False)] if case == "failed" else [])


async def test_a_search_that_hangs_is_a_search_that_failed(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on without it."""
    monkeypatch.setattr("deuz_workers.engine.recalling.SEARCH_LIMIT_MS", 20)

    class Hanging(Counting):
        async def find_memories(self, scope: str, within: MemoryScope, query: MemoryQuery) -> tuple[MemoryRecord, ...]:
            await asyncio.Event().wait()
            raise AssertionError

    agent = remembering(says(), memory=memory_of(says(), store=Hanging(memory.store), extract=False))
    result = await memory.process(agent).aio.run_embedded("x", "go", run_id="r")
    recall = (await state_of(memory)).recall
    assert (result.status, recall) == (
        "completed",
        {"status": "failed", "error": {"name": "LimitPassed", "code": "memory_store"}},
    )


@pytest.mark.spec("MEM-007")
@pytest.mark.parametrize(
    "found", [None, 5, "abc", [None], [{"text": "x"}], [replace(remembered("x"), text=cast(Any, 5))]], ids=repr
)
async def test_what_is_no_list_of_memories_is_a_search_that_failed(memory: World, found: Any) -> None:
    """Whatever a memory store of the application's returns: the run goes on with its history as it was, and so it is with the
    search of its extraction."""

    class Odd(Counting):
        async def find_memories(self, scope: str, within: MemoryScope, query: MemoryQuery) -> tuple[MemoryRecord, ...]:
            return found

    llm = says(*TEA)
    agent = remembering(llm, memory=memory_of(llm, store=Odd(memory.store)))
    result = await memory.process(agent).aio.run_embedded("x", "go", run_id="r")
    state = await state_of(memory)
    assert (result.status, len(model_of(agent).requests[0].messages)) == ("completed", 1)
    assert state.recall == {"status": "failed", "error": {"name": "TypeError", "code": "memory_store"}}
    assert state.extraction is not None
    assert (state.extraction.status, (state.extraction.error or {})["code"]) == ("failed", "memory_store")


async def test_whose_memories_a_run_has_may_follow_from_its_tags(world: World) -> None:
    """Asked once, in the first step; the record keeps the answer. What raises fails the run, which says so."""
    asked: list[RunFacts] = []

    async def whose(facts: RunFacts) -> MemoryScope:
        asked.append(facts)
        return MemoryScope(user_id=facts.tags["user"])

    await world.store.write_memories("default", [remembered("likes tea"), remembered("hates rain", scope=BOB)])
    agent = remembering(says(), memory=memory_of(says(), scope=whose, extract=False))
    app = world.process(agent)
    for user_id, text in (("ann", "likes tea"), ("bob", "hates rain")):
        result = await app.aio.run_embedded("x", "go", run_id=user_id, tags={"user": user_id})
        assert result.status == "completed"
        assert text in told(agent)[-1][0]
        assert (await state_of(world, user_id)).scope == MemoryScope(user_id=user_id)
    failed = await app.aio.run_embedded("x", "go", run_id="nobody")
    assert (failed.status, (failed.error or {})["name"], len(asked)) == ("failed", "HookError", 3)
    assert len(model_of(agent).requests) == 2


@pytest.mark.spec("BND-005")
async def test_a_run_is_not_resumed_with_the_memories_of_another(world: World) -> None:
    """Another scope in the agent, or none, is another binding: refused before anything is written."""

    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    def made(memory: Memory | None) -> Agent:
        return Agent("x", model=MockModel([calls(call("pay")), "done"]), tools=[pay], memory=memory)

    own = memory_of(says(), extract=False)
    waiting = await world.process(made(own)).aio.run_embedded("x", "go", run_id="r")
    approvals = {item.approval_id: True for item in waiting.pending_approvals}
    before = (await world.head("r")).revision
    narrower = MemoryScope(user_id="ann", chat_id="c")
    for memory in (memory_of(says(), scope=BOB, extract=False), memory_of(says(), scope=narrower, extract=False), None):
        refused = await world.process(made(memory)).aio.resume_embedded("r", approvals=approvals)
        assert "Native agent binding changed across resume." in str((refused.error or {})["message"])
        assert (await world.head("r")).revision == before
    assert (await world.process(made(own)).aio.resume_embedded("r", approvals=approvals)).status == "completed"


@pytest.mark.spec("SUB-007")
async def test_a_sub_agent_has_no_memory_of_its_own(world: World) -> None:
    """Its agent remembers when it is asked directly; delegated to, it is told nothing and extracts nothing."""
    await world.store.write_memories("default", [remembered("likes tea")])
    llm = says()
    sub = remembering(llm, name="sub")
    boss = Agent("boss", model=MockModel([calls(call("sub", prompt="tea?")), "done"]), tools=[sub])
    result = await world.process(boss).aio.run_embedded("boss", "go", run_id="r")
    assert (result.status, told(sub), llm.asked) == ("completed", [[]], [])


@pytest.mark.spec("MEM-001")
async def test_without_a_store_of_runs_there_is_still_a_memory(memory: World) -> None:
    """A run that nobody keeps is told what is remembered and adds to it."""
    await memory.store.write_memories("default", [remembered("likes tea")])
    llm = says('{"facts": ["has a dog"]}', '{"memory": [{"event": "ADD", "text": "has a dog"}]}')
    agent = remembering(llm, memory=memory_of(llm, store=memory.store))
    result = await run_agent(agent, "go", run_id="r")
    assert (result.status, len(told(agent)[0]), len(llm.asked)) == ("completed", 1, 2)
    found = await memory.store.find_memories("default", ANN, MemoryQuery("", 10, now_ms=0))
    assert {record.text for record in found} == {"likes tea", "has a dog"}
    for store in ("sqlite://:memory:", memory.store):
        with pytest.raises(ScopeMismatchError):
            await reconcile_agent_run("r", agent=agent, store=store)


@pytest.mark.parametrize(
    "memory",
    [
        "yes",
        Memory(cast(Any, None)),
        Memory(ANN, cast(Any, {})),
        Memory(ANN, MemorySeams(store=cast(Any, object()))),
        Memory(ANN, MemorySeams(llm=cast(Any, 5))),
        Memory(ANN, write_policy=cast(Any, "never")),
        Memory(ANN, sweep=cast(Any, "daily")),
        Memory(ANN, limit=0),
    ],
)
def test_a_memory_that_cannot_be_meant_is_refused(memory: Any) -> None:
    """By the agent's name, when it is made."""
    with pytest.raises(ConfigurationError, match="agent 'x'"):
        Agent("x", model=MockModel(["done"]), memory=memory)


async def test_a_store_of_runs_that_keeps_no_memories_recalls_none(memory: World) -> None:
    """The recall fails like that of one that is away."""

    class RunsAlone:
        def __getattr__(self, name: str) -> Any:
            if "memories" in name:
                raise AttributeError(name)
            return getattr(memory.store, name)

    agent = remembering(says(), memory=memory_of(says(), extract=False))
    done = Effects()
    app = memory.process(agent, store=cast(Any, RunsAlone()))
    result = await app.aio.run_embedded("x", "go", run_id="r")
    recall = (await state_of(memory)).recall or {}
    assert (result.status, recall.get("status"), dict(done.done)) == ("completed", "failed", {})


@pytest.mark.spec("ENV-003")
async def test_a_record_with_a_memory_is_version_2(world: World) -> None:
    """At every save; that of the same run without one is version 1."""
    for memory, version in ((memory_of(says(), extract=False), 2), (None, 1)):
        saves = Saves(world)
        agent = Agent("x", model=MockModel(["done"]), memory=memory)
        await world.process(agent, store=saves.as_store).aio.run_embedded("x", "go", run_id=f"v{version}")
        assert {saved for _, saved, _ in saves.saved} == {version}
