"""What a completed run leaves in the memory: once, after its end, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from pydantic import BaseModel

from deuz_workers import (
    Agent,
    AgentRunLeaseError,
    Budget,
    Chat,
    ConfigurationError,
    Embedding,
    ExecutionPolicy,
    Inconclusive,
    Limits,
    Memory,
    MemoryReply,
    MockModel,
    ModelUnavailableError,
    Rejected,
    Usage,
    Verified,
    VerifyContext,
    create_execution_context,
    inspect_run,
    reconcile_agent_run,
    tool,
)
from deuz_workers.app.embedded import driver
from deuz_workers.core.change import Change, Outcome
from deuz_workers.core.codec import decode
from deuz_workers.core.envelope import decode_body, decode_envelope
from deuz_workers.core.extraction_plan import ASK_CHANGES, ASK_FACTS
from deuz_workers.core.memory import is_recall
from deuz_workers.core.names import run_lease_key
from deuz_workers.core.run_memory import PARTIAL
from deuz_workers.core.usage import Budget as Amounts
from deuz_workers.leases import memory_leases
from deuz_workers.ports.leases import Lease
from deuz_workers.ports.store import Loaded, RunStore
from deuz_workers.providers.script import Entry, call, calls, fails
from deuz_workers.testing.crashing_store import CrashingStore, ProcessDied
from tests.app.remembering import (
    ANN,
    NOW_MS,
    TEA,
    add,
    changes,
    delete,
    extraction_of,
    facts,
    memory_of,
    model_of,
    remembered,
    remembering,
    says,
    state_of,
    stored,
    texts,
    update,
)
from tests.app.test_brakes import until_held
from tests.app.world import World

MIXED = (facts("moved to Rome", "has two dogs"), changes(delete(0), update(1, "has two dogs"), add("lives in Rome")))
"""Answers that plan one deletion and two writes, among memories of `two`."""


async def two(world: World) -> None:
    """Memories in the order in which the memory LLM is shown them."""
    city = remembered("lives in Oslo, moved there", "city", at_ms=2)
    await world.store.write_memories("default", [city, remembered("has a dog", "dog", at_ms=1)])


async def run(world: World, agent: Agent, run_id: str = "r", **given: Any) -> Any:
    return await world.process(agent).aio.run_embedded(agent.name, "go", run_id=run_id, **given)


async def repaired(world: World, agent: Agent, run_id: str = "r") -> Any:
    return (await reconcile_agent_run(run_id, agent=agent, store=world.store, leases=memory_leases())).record


async def dies(world: World, agent: Agent, at: int, *, applied: bool = True, run_id: str = "r") -> None:
    """The process ends at its commit number `at`; with one turn and no tool the second one is the terminal one."""
    with pytest.raises(ProcessDied):
        await world.dying(agent, at=at, applied=applied).aio.run_embedded(agent.name, "go", run_id=run_id)
    await world.later(600_000)


class Saves(CrashingStore):
    """Remembers what of the extraction each commit had."""

    def __init__(self, inner: RunStore, at: int = 0, error: Exception | None = None) -> None:
        super().__init__(inner, at, error=error)
        self.saved: list[tuple[str, Any]] = []

    async def commit(self, change: Change) -> Outcome:
        outcome = await super().commit(change)
        memory = cast("dict[str, Any]", decode_body(change.body).get("memory", {}))
        self.saved.append((change.status, memory.get("extraction")))
        return outcome


# -- what is stored ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("MEM-034", "MEM-035", "MEM-011")
async def test_a_run_leaves_a_fact(world: World) -> None:
    """The memory LLM is asked for facts, then what becomes of the memory; id and time of the record are of the seams, and it
    says which run and which extraction wrote it."""
    llm = says(*TEA)
    result = await run(world, remembering(llm))
    [record] = await stored(world)
    extraction = await extraction_of(world)
    assert (result.status, result.output, len(llm.asked)) == ("completed", "done", 2)
    assert (record.record_id, record.text, record.scope) == ("id-1", "likes tea", ANN)
    assert (record.created_at_ms, record.updated_at_ms) == (NOW_MS, NOW_MS)
    assert record.metadata == {"deuz": {"run_id": "r", "operation_id": extraction.operation_id}}
    assert (extraction.status, extraction.planned, extraction.mutations, extraction.error) == ("completed", 1, 1, None)
    assert '"likes tea"' in llm.asked[1][1]


@pytest.mark.spec("MEM-035")
async def test_without_facts_there_is_no_second_question(world: World) -> None:
    """And nothing changes."""
    llm = says(facts())
    assert (await run(world, remembering(llm))).status == "completed"
    extraction = await extraction_of(world)
    assert (len(llm.asked), extraction.status, extraction.planned, extraction.mutations) == (1, "completed", 0, 0)
    assert await texts(world) == []


@pytest.mark.spec("MEM-024")
async def test_an_update_takes_the_ids_of_what_updated_it(world: World) -> None:
    """And keeps its own id, its place in time, and what else was said about it."""
    metadata = {"deuz": {"run_id": "old", "operation_id": "before"}, "source": "form"}
    await world.store.write_memories("default", [remembered("has a dog", "dog", metadata=metadata)])
    await run(world, remembering(says(facts("two dogs"), changes(update(0, "has two dogs"), update(7, "nonsense")))))
    [record] = await stored(world)
    own = {"run_id": "r", "operation_id": (await extraction_of(world)).operation_id}
    assert (record.record_id, record.text, record.created_at_ms, record.updated_at_ms) == ("dog", "has two dogs", 1, NOW_MS)
    assert record.metadata == {"source": "form", "deuz": own}


@pytest.mark.spec("MEM-022")
async def test_the_same_words_twice_are_one_memory(world: World) -> None:
    """Two runs that extract the same fact leave one record; both count it as stored."""
    for run_id in ("r", "s"):
        await run(world, remembering(says(*TEA)), run_id)
        extraction = await extraction_of(world, run_id)
        assert (extraction.status, extraction.mutations) == ("completed", 1)
    [record] = await stored(world)
    assert record.operation_id == (await extraction_of(world, "s")).operation_id


@pytest.mark.spec("MEM-012")
async def test_what_the_memory_llm_reads(world: World) -> None:
    """The last user turn that was given, and what the run produced; not what was said before, nor what the engine said: what
    was recalled, the request for the answer, what was wrong with it, what the verifier said."""

    class Answer(BaseModel):
        n: int

    verdicts = [Rejected("too small"), Verified()]

    @tool
    async def look() -> str:
        return "the river is high"

    await world.store.write_memories("default", [remembered("likes tea")])
    llm = says(facts())
    script: list[Entry] = ["", calls(call("look")), "looked", '{"m": 1}', '{"n": 1}', '{"n": 2}']

    def verify(output: Answer, context: VerifyContext) -> Any:
        return verdicts.pop(0)

    agent = remembering(llm, *script, tools=[look], output_type=Answer, verify=verify)
    messages = [
        user_turn("earlier question"),
        {"role": "assistant", "content": "earlier answer"},
        user_turn("how is the river?"),
    ]
    app = world.process(agent)
    result = await app.aio.run_embedded("x", messages=messages, run_id="r")
    assert (result.status, result.output) == ("completed", Answer(n=2))
    [(_, text)] = llm.asked
    for part in ("how is the river?", "the river is high", "looked", '{"m": 1}', '{"n": 1}', '{"n": 2}'):
        assert part in text
    for part in ("earlier", "likes tea", "final answer", "cannot be accepted", "was not accepted", "too small"):
        assert part not in text


def user_turn(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


# -- when it happens ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("MEM-008")
@pytest.mark.parametrize("ending", ["stopped", "failed", "cancelled", "suspended"])
async def test_only_a_completed_run_is_extracted(world: World, ending: str) -> None:
    """The memory LLM is not asked, nothing is stored, and no extraction is pending."""

    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    waits = ending in ("cancelled", "suspended")
    script: Entry = calls(call("pay")) if waits else fails(ModelUnavailableError("away")) if ending == "failed" else "so"

    def doubt(output: object, context: VerifyContext) -> Inconclusive:
        return Inconclusive("no idea")

    llm = says(*TEA)
    limits = Limits(max_retries=0)
    agent = remembering(llm, script, tools=[pay], verify=doubt if ending == "stopped" else None, limits=limits)
    app = world.process(agent)
    result = await app.aio.run_embedded("x", "go", run_id="r")
    if ending == "cancelled":
        await app.aio.handle("r").cancel()
        result = await app.aio.resume_embedded("r")
        assert result.reason == "aborted"
    assert result.status == ("stopped" if ending == "cancelled" else ending)
    assert (llm.asked, await texts(world), (await state_of(world)).extraction) == ([], [], None)


@pytest.mark.spec("MEM-009")
async def test_nothing_is_written_before_the_end_is_saved(world: World) -> None:
    """A terminal commit that fails leaves memory and memory LLM alone; the one that is saved has the extraction as pending,
    with the id under which everything will be written."""
    llm = says(*TEA)
    agent = remembering(llm)
    await dies(world, agent, 2, applied=False)
    assert (llm.asked, await texts(world), (await state_of(world)).extraction) == ([], [], None)
    store = Saves(world.store)
    result = await world.process(agent, store=store.as_store).aio.resume_embedded("r")
    status, extraction = next(saved for saved in store.saved if saved[0] == "completed")
    assert (result.status, status, extraction["status"]) == ("completed", "completed", "pending")
    assert "planned" not in extraction
    assert extraction["operation_id"] == (await extraction_of(world)).operation_id


@pytest.mark.spec("MEM-006")
@pytest.mark.parametrize(("answers", "saves"), [(TEA, 2), (MIXED, 3)])
async def test_how_often_an_extraction_is_saved(world: World, answers: tuple[str, str], saves: int) -> None:
    """Behind the terminal commit: the plan, the deletions where writes follow them, the outcome."""
    await two(world)
    store = Saves(world.store)
    await world.process(remembering(says(*answers)), store=store.as_store).aio.run_embedded("x", "go", run_id="r")
    ended = [extraction for status, extraction in store.saved if status == "completed"]
    assert len(ended) == 1 + saves
    assert [one["status"] for one in ended] == ["pending"] * saves + ["completed"]
    assert [one.get("planned") for one in ended] == [None] + [len(answers) - 1 if saves == 2 else 3] * saves
    assert ended[-2]["mutations"] == saves - 2


@pytest.mark.spec("MEM-010")
@pytest.mark.parametrize("said", [RuntimeError("secret"), "nothing of use", '{"facts": 5}', cast(Any, None)])
async def test_an_extraction_that_fails_is_none_of_the_runs_business(world: World, said: Any) -> None:
    """The run is completed with its output; the record says that the extraction failed, and not what an error said."""
    result = await run(world, remembering(says(cast(str, said) if said is not None else cast(Any, lambda: _none()))))
    extraction = await extraction_of(world)
    assert (result.status, result.output, result.error) == ("completed", "done", None)
    assert extraction.status == "failed"
    assert extraction.error is not None
    assert "secret" not in str(extraction.error)
    head = await world.head("r")
    assert (head.due_in_ms, head.phase, head.mid_step) == (None, "loop", False)


async def _none() -> Any:
    return None


@pytest.mark.spec("MEM-013")
@pytest.mark.parametrize(
    "options", [{"extract": False}, {"recall": False}, {"write_policy": "manual"}, {"write_policy": "session-end"}]
)
async def test_options_leave_things_out(world: World, options: dict[str, Any]) -> None:
    """Without `recall` nothing is told; without `extract`, and under either policy, the run extracts nothing."""
    await world.store.write_memories("default", [remembered("hates rain")])
    llm = says(*TEA)
    agent = remembering(llm, memory=memory_of(llm, **options))
    assert (await run(world, agent)).status == "completed"
    recalls = "recall" not in options
    assert [message.role for message in model_of(agent).requests[0].messages] == ["user", "system"][: 1 + recalls]
    assert await texts(world) == (["hates rain"] if recalls else ["hates rain", "likes tea"])
    assert bool(llm.asked) is not recalls


@pytest.mark.spec("MEM-013")
@pytest.mark.parametrize("fails_to", [False, True])
async def test_what_has_expired_is_removed_after_an_extraction(
    world: World, fails_to: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """And a store that cannot is only logged."""

    class Unswept:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.store, name)

        async def delete_expired_memories(self, *given: Any) -> int:
            raise RuntimeError("no")

    await world.store.write_memories("default", [remembered("old", expires_at_ms=NOW_MS - 1)])
    llm = says(*TEA)
    store: Any = Unswept() if fails_to else None
    with caplog.at_level(logging.WARNING):
        result = await run(world, remembering(llm, memory=memory_of(llm, sweep="on-extract", store=store)))
    left = await world.store.delete_expired_memories("default", ANN, NOW_MS)
    assert (result.status, (await extraction_of(world)).status, left) == ("completed", "completed", int(fails_to))
    assert ("memory_sweep_failed" in caplog.text) is fails_to


@pytest.mark.spec("MEM-014", "LEA-008", "MEM-027")
async def test_the_run_is_waited_for_until_its_extraction_has_ended(world: World) -> None:
    """Its end is saved long before; meanwhile its lease is held, so that nobody else settles it."""
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        asked.set()
        await go.wait()
        return facts()

    agent = remembering(says(slow))
    app = world.process(agent)
    waiting = asyncio.ensure_future(app.aio.run_embedded("x", "go", run_id="r"))
    await asked.wait()
    head = await world.head("r")
    assert (head.status, head.phase, head.has_report, waiting.done()) == ("completed", "extracting", False, False)
    with pytest.raises(AgentRunLeaseError) as refused:
        await reconcile_agent_run("r", agent=agent, store=world.store, leases=app.leases)
    assert refused.value.code == "lease_held"
    assert (await app.leases.peek(run_lease_key("default", "r"))).ms_left is not None
    go.set()
    assert (await waiting).status == "completed"
    assert (await app.leases.peek(run_lease_key("default", "r"))).ms_left is None
    assert (await extraction_of(world)).status == "completed"


@pytest.mark.spec("MEM-027")
async def test_a_reconciliation_that_loses_its_lease_saves_nothing_more(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given to somebody else while the memory LLM is asked: `lease_lost`, nothing is stored from there on, and the lease
    stays with who has it."""
    monkeypatch.setenv("DEUZ_LEASE_TTL_MS", "1000")
    leases, key, stored_then = memory_leases(), run_lease_key("default", "r"), list[Loaded]()
    await dies(memory, remembering(says()), 2)

    async def steals() -> str:
        owner = (await leases.peek(key)).owner
        for token in range(1, 4):  # of whichever claim this is
            await leases.release(Lease(key, owner, token, "", 1_000, "none"))
        assert isinstance(await leases.acquire(key, "thief", 60_000), Lease)
        stored_then.append(await memory.loaded("r"))
        await asyncio.Event().wait()
        return facts("never")

    with pytest.raises(AgentRunLeaseError) as lost:
        await reconcile_agent_run("r", agent=remembering(says(steals)), store=memory.store, leases=leases)
    assert (lost.value.code, (await leases.peek(key)).owner) == ("lease_lost", "thief")
    assert ([await memory.loaded("r")], await texts(memory)) == (stored_then, [])
    assert (await extraction_of(memory)).status == "pending"


@pytest.mark.spec("MEM-015")
async def test_a_resume_of_an_ended_run_extracts_nothing(world: World) -> None:
    """Whether its extraction has ended, failed or is pending."""
    llm = says(*TEA, "nonsense", *TEA)
    agent = remembering(llm)
    await run(world, agent, "ended")
    await run(world, agent, "failed")
    await dies(world, agent, 2)
    for run_id in ("ended", "failed", "r"):
        result = await world.process(agent).aio.resume_embedded(run_id)
        assert (result.status, result.output, len(llm.asked)) == ("completed", "done", 3)


# -- when something dies -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("MEM-016", "MEM-025")
async def test_a_plan_that_cannot_be_saved_is_not_carried_out(world: World) -> None:
    """Nothing is written and the extraction has failed; looked at again it is made once more, and the error is gone."""
    agent = remembering(says(*TEA, *TEA))
    store = Saves(world.store, 3, error=RuntimeError("disk full"))
    app = world.process(agent, store=store.as_store)
    result = await app.aio.run_embedded("x", "go", run_id="r")
    extraction = await extraction_of(world)
    assert (result.status, extraction.status, await texts(world)) == ("completed", "failed", [])
    assert extraction.error is not None
    assert await repaired(world, agent) == {"run_id": "r", "memory": "completed"}
    extraction = await extraction_of(world)
    assert (extraction.status, extraction.error, await texts(world)) == ("completed", None, ["likes tea"])


@pytest.mark.spec("MEM-017")
async def test_deletions_that_were_saved_are_not_made_again(world: World) -> None:
    """The record has counted them when the process dies before the writes; whoever looks next leaves the rest alone."""
    await two(world)
    llm = says(*MIXED)
    agent = remembering(llm)
    await dies(world, agent, 4)
    extraction = await extraction_of(world)
    assert (extraction.status, extraction.planned, extraction.mutations) == ("pending", 3, 1)
    assert await texts(world) == ["has a dog"]
    await world.store.write_memories("default", [remembered("lives in Oslo, moved there", "city")])
    assert (await repaired(world, agent))["memory"] == "failed"
    assert (await texts(world), len(llm.asked)) == (["has a dog", "lives in Oslo, moved there"], 2)


@pytest.mark.spec("MEM-018")
@pytest.mark.parametrize("answers", [TEA, MIXED])
async def test_what_was_done_is_found_to_be_done(world: World, answers: tuple[str, str]) -> None:
    """The process died when everything was written and nothing of that was saved: completed, without a question."""
    await two(world)
    llm = says(*answers)
    agent = remembering(llm)
    before_outcome = 4 if answers is TEA else 5
    await dies(world, agent, before_outcome, applied=False)
    left = await stored(world)
    assert (await extraction_of(world)).status == "pending"
    assert await repaired(world, agent) == {"run_id": "r", "memory": "completed"}
    extraction = await extraction_of(world)
    assert (extraction.mutations, extraction.planned) == ((1, 1) if answers is TEA else (3, 3))
    assert (await stored(world), len(llm.asked)) == (left, 2)


@pytest.mark.spec("MEM-019")
async def test_what_was_done_in_part_stays_so(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """One of two records is gone: failed for good, with a warning, in the answer and in the log, as often as one looks."""
    llm = says(facts("a", "b"), changes(add("likes tea"), add("has a dog")))
    agent = remembering(llm)
    await dies(world, agent, 4, applied=False)
    tea = next(record for record in await stored(world) if record.text == "likes tea")
    await world.store.delete_memories("default", [tea.record_id])
    with caplog.at_level(logging.WARNING):
        answers = [await repaired(world, agent) for _ in range(2)]
    extraction, revision = await extraction_of(world), (await world.head("r")).revision
    assert (extraction.status, extraction.planned, extraction.mutations) == ("failed", 2, 1)
    assert (extraction.error or {}).get("code") == PARTIAL == "memory-extraction-partial"
    assert answers[0] == answers[1]
    [warning] = cast("list[dict[str, str]]", answers[0]["warnings"])
    assert (answers[0]["memory"], warning["setting"]) == ("failed", PARTIAL)
    assert PARTIAL in caplog.text
    assert (len(llm.asked), await texts(world)) == (2, ["has a dog"])
    await repaired(world, agent)
    assert (await world.head("r")).revision == revision


@pytest.mark.spec("MEM-020")
@pytest.mark.parametrize("at", [2, 3])
async def test_what_was_not_done_is_done_now(world: World, at: int) -> None:
    """The process died behind the terminal commit, or behind that of the plan: the extraction is executed."""
    llm = says(*TEA, *TEA)
    agent = remembering(llm)
    await dies(world, agent, at)
    assert await texts(world) == []
    asked = len(llm.asked)
    llm.script = [*llm.script[:asked], *TEA]
    assert await repaired(world, agent) == {"run_id": "r", "memory": "completed"}
    assert (await texts(world), len(llm.asked)) == (["likes tea"], asked + 2)


@pytest.mark.spec("MEM-021")
@pytest.mark.parametrize("is_there", [True, False])
async def test_a_record_without_a_plan_is_judged_by_what_is_there(world: World, is_there: bool) -> None:
    """As an older process would leave it: any record of the operation says that it was carried out."""
    llm = says(*TEA)
    agent = remembering(llm)
    await dies(world, agent, 2)
    assert (await extraction_of(world)).planned is None
    asked = len(llm.asked)
    if is_there:
        own = {"run_id": "r", "operation_id": (await extraction_of(world)).operation_id}
        await world.store.write_memories("default", [remembered("has a dog", metadata={"deuz": own})])
    assert await repaired(world, agent) == {"run_id": "r", "memory": "completed"}
    assert await texts(world) == (["has a dog"] if is_there else ["likes tea"])
    assert len(llm.asked) == asked + (0 if is_there else 2)
    assert (await extraction_of(world)).mutations == 1


@pytest.mark.spec("MEM-023", "MEM-036")
async def test_a_settled_run_is_only_reported(world: World) -> None:
    """Exactly what was asked about; nothing is written."""
    agent = remembering(says(*TEA))
    await run(world, agent)
    before = await world.head("r")
    assert await repaired(world, agent) == {"run_id": "r", "memory": "completed"}
    assert (await reconcile_agent_run("r", store=world.store, leases=memory_leases())).record == {"run_id": "r"}
    assert await world.head("r") == before
    plain = Agent("y", model=MockModel(["done"]))
    await run(world, plain, "s")
    assert await repaired(world, plain, "s") == {"run_id": "s"}


@pytest.mark.spec("MEM-033")
async def test_the_record_of_an_extraction(world: World) -> None:
    """Its fields in each state, as they are stored."""
    agent = remembering(says(*TEA, "nonsense"))

    async def fields(run_id: str) -> dict[str, Any]:
        body = cast("dict[str, Any]", decode((await world.head(run_id)).body))
        return cast("dict[str, Any]", body["memory"]["extraction"])

    await run(world, agent, "done")
    completed = await fields("done")
    assert {**completed, "operation_id": ""} == {
        "status": "completed",
        "operation_id": "",
        "planned": 1,
        "mutations": 1,
        "attempts": 1,
    }
    await run(world, agent, "failed")
    failed = await fields("failed")
    assert (failed["status"], failed["mutations"], failed["error"]["code"]) == ("failed", 0, "memory_reply")
    await dies(world, agent, 2)
    pending = await fields("r")
    assert (pending["status"], pending["mutations"], set(pending)) == (
        "pending",
        0,
        {"status", "operation_id", "mutations", "attempts"},
    )


async def test_another_process_goes_on_with_what_a_dead_one_left(world: World) -> None:
    """Without being asked: the ended run is due, and whoever drives anything over the store takes it up."""
    llm = says(*TEA)
    agent = remembering(llm)
    await dies(world, agent, 2)
    llm.script = [*llm.script[: len(llm.asked)], *TEA]
    async with driver(world.process(agent)) as driving:
        assert await driving.drive([("default", "r")]) == {}
    assert ((await extraction_of(world)).status, await texts(world)) == ("completed", ["likes tea"])


# -- what it costs -----------------------------------------------------------------------------------------------------------

USED = Usage(100, 20)


@pytest.mark.spec("MEM-026")
async def test_what_the_memory_llm_uses_is_part_of_the_run(world: World) -> None:
    """Both questions are; a function that does not say what it used leaves its estimate as unknown, and a warning."""
    told = remembering(says(MemoryReply(TEA[0], USED), MemoryReply(TEA[1], USED)))
    silent = remembering(says(*TEA))
    plain = await run(world, Agent("y", model=MockModel(["done"])), "plain")
    result = await run(world, told, budget=Budget.of(tokens=100_000))
    assert result.usage.total_tokens == plain.usage.total_tokens + 240
    assert result.accounting.spent.tokens == result.usage.total_tokens
    assert result.accounting.unknown.tokens == result.accounting.reserved.tokens == 0
    assert result.warnings == ()
    unsaid = await run(world, silent, "s", budget=Budget.of(tokens=100_000))
    assert unsaid.usage.total_tokens == plain.usage.total_tokens
    assert unsaid.accounting.unknown.tokens > 0
    assert [warning.setting for warning in unsaid.warnings] == ["unaccounted-usage"]


async def test_the_agents_own_model_extracts_where_no_other_is_named(world: World) -> None:
    """With its usage and under its name."""

    def answer(request: Any) -> Entry:
        return {ASK_FACTS: TEA[0], ASK_CHANGES: TEA[1]}.get(request.messages[0].text, "done")

    agent = Agent("x", model=MockModel.function(answer), memory=Memory(ANN))
    result = await run(world, agent)
    assert (result.status, await texts(world)) == ("completed", ["likes tea"])
    envelope = decode_envelope(await world.head("r"))
    assert envelope.usage_by_model["mock:scripted"] == envelope.usage
    assert len(model_of(agent).requests) == 3


async def test_an_extraction_that_no_budget_admits_has_failed(world: World) -> None:
    """The run is completed all the same; the memory LLM is never asked. With more room it is made up for."""
    llm = says(*TEA)
    agent = remembering(llm)
    result = await run(world, agent, budget=Amounts.of(tokens=6_000))
    extraction = await extraction_of(world)
    assert (result.status, extraction.status, llm.asked) == ("completed", "failed", [])
    assert (extraction.error or {})["code"] == "budget_exceeded"
    assert result.accounting.reserved.tokens == 0


@dataclass
class Letters:
    """An embedder that counts letters."""

    name: str = "embed:letters"
    usage: Usage | None = field(default_factory=lambda: Usage(7))
    asked: list[Sequence[str]] = field(default_factory=list[Sequence[str]])
    error: Exception | None = None

    async def embed(self, texts: Sequence[str]) -> Embedding:
        self.asked.append(texts)
        if self.error is not None:
            raise self.error
        return Embedding(tuple(tuple(float(text.count(letter)) for letter in "aeiou") for text in texts), self.usage)


@pytest.mark.spec("MEM-026")
async def test_what_the_embedder_uses_is_part_of_the_run(world: World) -> None:
    """One call for the recall, admitted before it, two for the extraction; what is stored has vectors of that embedder, and
    those of another one are compared by their words, with a warning."""
    await world.store.write_memories("default", [remembered("has a dog", vector=(1.0,), embedded_by="embed:other")])
    embedder = Letters()
    llm = says(MemoryReply(TEA[0], USED), MemoryReply(TEA[1], USED))
    agent = remembering(llm, memory=memory_of(llm, embedder=embedder))
    plain = await run(world, Agent("y", model=MockModel(["done"])), "plain")
    result = await run(world, agent, budget=Budget.of(tokens=100_000))
    assert embedder.asked == [["go"], ["likes tea"], ["likes tea"]]
    assert result.usage.total_tokens == plain.usage.total_tokens + 240 + 3 * 7
    assert result.accounting.spent.tokens == result.usage.total_tokens
    assert (result.accounting.unknown.tokens, result.accounting.reserved.tokens) == (0, 0)
    assert [warning.setting for warning in result.warnings] == ["embedding-mismatch"]
    [tea] = [record for record in await stored(world) if record.text == "likes tea"]
    assert (tea.embedded_by, tea.vector) == ("embed:letters", (1.0, 2.0, 1.0, 0.0, 0.0))
    embedder.usage = None
    unsaid = await run(world, remembering(says(facts()), memory=memory_of(says(facts()), embedder=embedder)), "s")
    assert "unaccounted-usage" in [warning.setting for warning in unsaid.warnings]


@pytest.mark.spec("MEM-026")
async def test_a_memory_with_an_execution_of_its_own_is_charged_there(world: World) -> None:
    """Neither usage nor accounting of the run knows of it; the budget that was named does."""
    llm, embedder = says(MemoryReply(TEA[0], USED), MemoryReply(TEA[1], USED)), Letters()
    elsewhere = create_execution_context(budget_key="memory:ann", tokens=50_000)
    agent = remembering(llm, memory=memory_of(llm, embedder=embedder, execution=elsewhere))
    plain = await run(world, Agent("y", model=MockModel(["done"])), "plain", budget=Budget.of(tokens=100_000))
    result = await run(world, agent, budget=Budget.of(tokens=100_000))
    assert (result.usage, result.accounting) == (plain.usage, plain.accounting)
    balance = await world.store.balance("memory:ann")
    assert balance is not None
    assert (balance.spent.tokens, balance.held.tokens, balance.unknown.tokens) == (240 + 3 * 7, 0, 0)
    assert await texts(world) == ["likes tea"]


@pytest.mark.spec("MEM-007")
@pytest.mark.parametrize("usage", ["much", Usage(-1_000), Usage(cast(Any, 1.5))], ids=repr)
async def test_an_embedder_that_says_nonsense_of_its_usage_is_one_that_failed(world: World, usage: Any) -> None:
    """Nothing of it is counted as spent; the estimate stays, as for any call of which nobody knows what it used."""
    llm = says(*TEA)
    agent = remembering(llm, memory=memory_of(llm, embedder=Letters(usage=usage)))
    result = await run(world, agent, budget=Budget.of(tokens=100_000))
    assert (result.status, result.accounting.spent.tokens) == ("completed", 15)
    assert (await state_of(world)).recall == {"status": "failed", "error": {"name": "EmbedderError", "code": "embedder"}}


@pytest.mark.spec("MEM-021")
async def test_a_store_that_counts_nonsense_fails_the_extraction_alone(memory: World) -> None:
    """Nobody knows then what was written, so nothing is; a look at a store that counts again finishes it."""

    class Odd:
        def __getattr__(self, name: str) -> Any:
            return getattr(memory.store, name)

        async def count_memories(self, *given: Any) -> Any:
            return None

    llm = says(*TEA)
    await dies(memory, remembering(llm), 2)
    asked = len(llm.asked)
    agent = remembering(llm, memory=memory_of(llm, store=Odd()))
    assert await repaired(memory, agent) == {"run_id": "r", "memory": "failed"}
    assert (((await extraction_of(memory)).error or {})["code"], len(llm.asked)) == ("memory_store", asked)
    llm.script = [*llm.script[:asked], *TEA]
    assert await repaired(memory, remembering(llm)) == {"run_id": "r", "memory": "completed"}


@pytest.mark.spec("MEM-007")
async def test_an_embedder_that_fails_costs_the_run_nothing_but_its_recall(world: World) -> None:
    """The history is as it was given, and the record says why."""
    await world.store.write_memories("default", [remembered("has a dog")])
    llm = says(*TEA)
    agent = remembering(llm, memory=memory_of(llm, embedder=Letters(error=RuntimeError("secret"))))
    result = await run(world, agent)
    state = await state_of(world)
    assert (result.status, len(model_of(agent).requests[0].messages)) == ("completed", 1)
    assert state.recall == {"status": "failed", "error": {"name": "RuntimeError", "code": "embedder"}}
    assert state.extraction is not None
    assert (state.extraction.status, (state.extraction.error or {})["code"]) == ("failed", "embedder")


# -- whoever does it ---------------------------------------------------------------------------------------------------------


def by_question(system: str) -> str:
    return TEA[0] if system == ASK_FACTS else TEA[1]


@pytest.mark.spec("MEM-020", "MEM-022")
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_wherever_a_process_dies_the_fact_is_there_once(world: World, at: int, applied: bool) -> None:
    """Before or behind any commit of the run and its extraction: the next process brings both to their ends."""

    async def answer(system: str, user: str) -> str:
        return by_question(system)

    agent = remembering(answer)
    await dies(world, agent, at, applied=applied)
    async with driver(world.process(agent)) as driving:
        assert await driving.drive([("default", "r")]) == {}
    head, extraction = await world.head("r"), await extraction_of(world)
    assert (head.status, head.phase, head.due_in_ms, extraction.status) == ("completed", "loop", None, "completed")
    assert (await texts(world), extraction.mutations) == (["likes tea"], 1)


async def test_of_two_executors_one_writes(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The first waits for the memory LLM while another one, that cannot see its lease, takes the extraction over. The plan that
    the first makes then is refused, and it writes nothing."""
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(system: str, user: str) -> str:
        asked.set()
        await go.wait()
        return by_question(system).replace("likes tea", "likes coffee")

    async def answer(system: str, user: str) -> str:
        return by_question(system)

    first = asyncio.ensure_future(world.elsewhere(remembering(slow)).aio.run_embedded("x", "go", run_id="r"))
    await asked.wait()
    async with driver(world.process(remembering(answer))) as driving:
        assert await driving.drive([("default", "r")]) == {}
    revision = (await world.head("r")).revision
    go.set()
    with caplog.at_level(logging.INFO):
        await first
    assert "was overtaken by" in caplog.text
    assert (await texts(world), (await world.head("r")).revision) == (["likes tea"], revision)
    assert (await extraction_of(world)).status == "completed"


async def test_a_brake_keeps_the_extraction_waiting(world: World) -> None:
    """The run has ended; the memory LLM is asked once the brake is lifted."""
    llm = says(*TEA)
    agent = remembering(llm)
    app = world.process(agent)
    await app.aio.operator.set_brake("model", "memory:Llm")
    running = asyncio.ensure_future(app.aio.run_embedded("x", "go", run_id="r"))
    await until_held(app, running)
    head = await world.head("r")
    assert (head.status, head.phase, llm.asked, running.done()) == ("completed", "extracting", [], False)
    await app.aio.operator.lift_brake("model", "memory:Llm")
    assert (await running).status == "completed"
    assert (len(llm.asked), await texts(world)) == (2, ["likes tea"])


async def test_a_fork_remembers_for_itself(world: World) -> None:
    """It goes on behind what was recalled, without another recall, and what it says is extracted under an id of its own."""

    @tool
    async def look() -> str:
        return "seen"

    async def answer(system: str, user: str) -> str:
        return by_question(system)

    await world.store.write_memories("default", [remembered("has a dog")])
    agent = remembering(answer, calls(call("look")), "done", tools=[look])
    await run(world, agent)
    app = world.process(agent)
    fork = await app.aio.fork("r", 1, new_run_id="s")
    async with driver(app) as driving:
        assert await driving.drive([("default", fork.run_id)]) == {}
    first, second = await state_of(world), await state_of(world, "s")
    assert first.extraction is not None
    assert second.extraction is not None
    assert (second.extraction.status, second.extraction.operation_id != first.extraction.operation_id) == ("completed", True)
    request = model_of(agent).requests[-1]
    assert [is_recall(message) for message in request.messages] == [False, True, False, False]
    [tea] = [record for record in await stored(world) if record.text == "likes tea"]
    assert tea.operation_id == second.extraction.operation_id


async def test_what_is_left_to_do_is_part_of_a_report(world: World) -> None:
    """A failed extraction says how it is looked at again; a run whose extraction is pending is not exported half way."""
    agent = remembering(says("nonsense"))
    await run(world, agent)
    report = await inspect_run("r", store=world.store)
    assert ["reconcile_agent_run" in task.what for task in report.to_do] == [True]
    await run(world, Agent("y", model=MockModel(["done"])), "plain")
    await dies(world, remembering(says(), name="z"), 2, run_id="s")
    app = world.process(agent)
    assert json.loads(await app.aio.export_run("plain"))["run"]["status"] == "completed"
    with pytest.raises(ConfigurationError, match="extracted"):
        await app.aio.export_run("s")


async def test_a_memory_llm_that_no_policy_allows_is_not_asked(world: World) -> None:
    """The run's policy holds for it, or that of the memory's own execution, which may allow what the run may not use."""
    llm = says(*TEA)
    policy = ExecutionPolicy(allowed_models={"mock:scripted"})
    assert (await run(world, remembering(llm), policy=policy)).status == "completed"
    extraction = await extraction_of(world)
    assert (extraction.status, (extraction.error or {})["code"], llm.asked) == ("failed", "model_not_allowed", [])
    own = create_execution_context(allowed_models={"memory:Llm"})
    await run(world, remembering(llm, memory=memory_of(llm, execution=own)), "s", policy=policy)
    assert ((await extraction_of(world, "s")).status, len(llm.asked)) == ("completed", 2)


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("at", [2, 3, 4])
async def test_a_run_with_a_chat_owes_both(world: World, at: int, applied: bool) -> None:
    """Wherever the process dies behind the end, the chat is written, the fact is there once, and nothing is due then."""

    async def answer(system: str, user: str) -> str:
        return by_question(system)

    agent = remembering(answer)
    with pytest.raises(ProcessDied):
        await world.dying(agent, at=at, applied=applied).aio.run_embedded("x", "go", run_id="r", chat=Chat("c"))
    await world.later(600_000)
    async with driver(world.process(agent)) as driving:
        assert await driving.drive([("default", "r")]) == {}
    head, kept = await world.head("r"), await world.store.load_chat("c")
    assert kept is not None
    assert [message.text for message in kept.messages if message.role != "system"] == ["go", "done"]
    assert (head.status, head.phase, head.due_in_ms) == ("completed", "loop", None)
    assert ((await extraction_of(world)).status, await texts(world)) == ("completed", ["likes tea"])
    answered = await reconcile_agent_run("r", agent=agent, store=world.store, leases=memory_leases())
    assert answered.record == {"run_id": "r", "memory": "completed", "chat": "saved"}
