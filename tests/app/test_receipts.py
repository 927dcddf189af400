"""Receipts of tool calls, seen from outside: processes that die and others that go on, over every store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from deuz_workers import Agent, MockModel, ToolContext, tool
from deuz_workers.core.messages import ToolResultPart
from deuz_workers.core.receipts import Receipt
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import CrashingStore, ProcessDied
from tests.app.world import Effects, World


def results_of(model: MockModel) -> list[ToolResultPart]:
    """Tool results in the newest request."""
    return [part for message in model.requests[-1].messages for part in message.tool_results]


async def until(read: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition of the store; the test's own time limit ends it."""
    while not await read():  # noqa: ASYNC110 - another process' store has no event to wait for
        await asyncio.sleep(0.002)


@pytest.mark.spec("RCP-001")
async def test_every_call_of_a_run_has_a_receipt_of_its_own(world: World) -> None:
    """The same id in two turns, equal ids in one turn and no ids at all: one receipt and one execution each."""
    done = Effects()

    @tool
    def touch(what: str) -> str:
        done(what)
        return f"touched {what}"

    model = MockModel(
        [
            calls(call("touch", what="a").with_id("same")),
            calls(call("touch", what="b").with_id("same")),
            calls(call("touch", what="c").with_id("twin"), call("touch", what="d").with_id("twin")),
            calls(call("touch", what="e").without_id(), call("touch", what="f").without_id()),
            "done",
        ]
    )
    result = await world.process(Agent("x", model=model, tools=[touch])).aio.run_embedded("x", "go", run_id="r")
    assert result.status == "completed"
    assert done.done == dict.fromkeys("abcdef", 1)
    receipts = await world.receipts("r")
    assert [receipt.value for receipt in receipts.values()].count("touched a") == 1
    assert {step: sum(key[0] == step for key in receipts) for step in (1, 2, 3, 4)} == {1: 1, 2: 1, 3: 2, 4: 2}
    assert [part.text for part in results_of(model)] == [f"touched {what}" for what in "abcdef"]


@pytest.mark.spec("RCP-003", "PTH-007")
async def test_executing_is_stored_before_the_tool_runs(world: World) -> None:
    """The body of the tool reads the store and finds its own receipt, in `executing`."""
    seen: list[Receipt] = []

    @tool
    async def look(context: ToolContext) -> str:
        receipts = await world.receipts(context.run_id)
        seen.append(receipts[context.model_step, context.tool_call_id])
        return "looked"

    agent = Agent("x", model=MockModel([calls(call("look")), "done"]), tools=[look])
    assert (await world.process(agent).aio.run_embedded("x", "go")).status == "completed"
    assert [receipt.stage for receipt in seen] == ["executing"]


@pytest.mark.spec("RCP-004", "RCP-005")
@pytest.mark.parametrize("fatal", ["validate_result", "to_model_output"])
async def test_the_raw_result_is_stored_before_user_code_makes_it_readable(world: World, fatal: str) -> None:
    """Killed inside either function, the receipt holds the raw value; the next process does both and runs nothing again."""
    done = Effects()
    kills = [True]

    def check(value: dict[str, int]) -> dict[str, int]:
        if fatal == "validate_result" and kills.pop():
            raise ProcessDied
        return {"sum": value["sum"] * 10}

    def show(value: dict[str, int]) -> str:
        if fatal == "to_model_output" and kills.pop():
            raise ProcessDied
        return f"{value['sum']} in words"

    def agent() -> Agent:
        @tool(validate_result=check, to_model_output=show)
        def add(a: int, b: int) -> dict[str, int]:
            done("add")
            return {"sum": a + b}

        return Agent("x", model=model, tools=[add])

    model = MockModel([calls(call("add", a=1, b=2)), "done"])
    with pytest.raises(ProcessDied):
        await world.process(agent()).aio.run_embedded("x", "go", run_id="r")
    [receipt] = (await world.receipts("r")).values()
    assert (receipt.stage, receipt.value) == ("executed", {"sum": 3})

    kills.append(False)
    result = await world.process(agent()).aio.resume_embedded("r")
    assert result.status == "completed"
    assert done.done["add"] == 1
    assert [part.text for part in results_of(model)] == ["30 in words"]


@pytest.mark.spec("RCP-006", "RCP-008")
async def test_what_is_recorded_answers_its_call_after_a_crash(world: World) -> None:
    """A failed and a completed call keep their answers when a third one dies with the process; neither runs again."""
    done = Effects()
    dies = [True]

    def agent() -> Agent:
        @tool
        async def fail() -> str:
            done("fail")
            raise ValueError("no luck")

        @tool
        async def work() -> str:
            done("work")
            return "worked"

        @tool(replay="idempotent")
        async def die(context: ToolContext) -> str:
            done("die")
            if not dies.pop():
                return "alive"
            await until(lambda: both_recorded(context.run_id))
            raise ProcessDied

        return Agent("x", model=model, tools=[fail, work, die])

    async def both_recorded(run_id: str) -> bool:
        stages = sorted(receipt.stage for receipt in (await world.receipts(run_id)).values())
        return stages == ["completed", "executing", "failed"]

    model = MockModel([calls(call("fail"), call("work"), call("die")), "done"])
    with pytest.raises(ProcessDied):
        await world.process(agent()).aio.run_embedded("x", "go", run_id="r")
    assert (await world.head("r")).version == 2, "a failed receipt in a turn without answers"
    dies.append(False)
    result = await world.process(agent()).aio.resume_embedded("r")
    assert result.status == "completed"
    assert done.done == {"fail": 1, "work": 1, "die": 2}
    assert [(part.text, part.is_error) for part in results_of(model)] == [
        ("ValueError: no luck", True),
        ("worked", False),
        ("alive", False),
    ]


@pytest.mark.spec("RCP-007", "REC-001")
async def test_an_interrupted_effect_is_neither_repeated_nor_reported(world: World) -> None:
    """The resume stops for reconciliation and names the call; no model request has a result of it and nothing is written."""
    done = Effects()

    def agent() -> Agent:
        @tool
        async def pay(amount: int) -> str:
            done("pay")
            raise ProcessDied

        return Agent("x", model=model, tools=[pay])

    model = MockModel([calls(call("pay", amount=7).with_id("c1")), "done"])
    with pytest.raises(ProcessDied):
        await world.process(agent()).aio.run_embedded("x", "go", run_id="r")
    before = await world.loaded("r")
    for _ in range(2):
        result = await world.process(agent()).aio.resume_embedded("r")
        assert (result.status, result.reason) == ("stopped", "tool-reconciliation-required")
        assert [(effect.tool_call_id, effect.tool_name, effect.arguments) for effect in result.unknown_effects] == [
            ("c1", "pay", {"amount": 7})
        ]
    assert done.done["pay"] == 1
    assert len(model.requests) == 1
    after = await world.loaded("r")
    assert (after.head.revision, after.head.body) == (before.head.revision, before.head.body)
    assert (after.messages, after.receipts) == (before.messages, before.receipts)


@pytest.mark.spec("RSM-003")
async def test_what_became_of_an_interrupted_effect_can_be_said(world: World) -> None:
    """One call gets the outcome that somebody found, another may run again; an answer to only one of them changes nothing."""
    done = Effects()
    dies = [True]

    def agent() -> Agent:
        @tool
        async def pay(to: str) -> str:
            done(to)
            if dies:
                await until(lambda: both_executing("r"))
                raise ProcessDied
            return f"paid {to}"

        return Agent("x", model=model, tools=[pay])

    async def both_executing(run_id: str) -> bool:
        return [receipt.stage for receipt in (await world.receipts(run_id)).values()] == ["executing"] * 2

    model = MockModel([calls(call("pay", to="ann").with_id("a"), call("pay", to="bob").with_id("b")), "done"])
    with pytest.raises(ProcessDied):
        await world.process(agent()).aio.run_embedded("x", "go", run_id="r")
    dies.clear()
    app = world.process(agent())
    assert (await app.aio.resume_embedded("r")).reason == "tool-reconciliation-required"
    revision = (await world.head("r")).revision
    half = await app.aio.resume_embedded("r", retry_tool_call_ids=["a"])
    assert [effect.tool_call_id for effect in half.unknown_effects] == ["a", "b"]
    assert (await world.head("r")).revision == revision
    result = await app.aio.resume_embedded("r", retry_tool_call_ids=["a"], reconciled_tool_results={"b": "was paid"})
    assert result.status == "completed"
    assert done.done == {"ann": 2, "bob": 1}
    assert [part.text for part in results_of(model)] == ["paid ann", "was paid"]


@pytest.mark.parametrize("applied", [False, True])
async def test_a_step_of_three_calls_can_die_at_every_save(world: World, applied: bool) -> None:
    """Every resume ends with one result per call and one execution each, but for calls that are reported as unknown."""
    for at in range(1, 20):
        done = Effects()

        def agent(done: Effects = done) -> Agent:
            @tool
            async def act(what: str, pause_ms: int) -> str:
                done(what)
                await asyncio.sleep(pause_ms / 1000)
                return f"did {what}"

            wanted = (call("act", what=what, pause_ms=pause) for what, pause in (("a", 0), ("b", 2), ("c", 4)))
            return Agent("x", model=MockModel([calls(*wanted), "done"]), tools=[act])

        run_id = f"r{at}"
        app = world.dying(agent(), at=at, applied=applied)
        try:
            await app.aio.run_embedded("x", "go", run_id=run_id)
        except ProcessDied:
            pass
        else:
            assert at >= 5
            return
        alive = world.process(agent())
        result = await alive.aio.resume_embedded(run_id)
        unknown = {effect.tool_call_id: str(effect.arguments["what"]) for effect in result.unknown_effects}
        if unknown:
            result = await alive.aio.resume_embedded(run_id, reconciled_tool_results=dict.fromkeys(unknown, "asked around"))
        assert result.status == "completed", (at, applied, result.error)
        assert all(done.done[what] == 1 for what in "abc" if what not in unknown.values())
        assert all(done.done[what] <= 1 for what in unknown.values())
        [answers] = [message.tool_results for message in result.messages if message.role == "tool"]
        assert len(answers) == len({part.call_id for part in answers}) == 3
    pytest.fail("the run has more commits than it should")


async def test_a_refused_save_ends_the_run_here_and_leaves_it_to_be_resumed(world: World) -> None:
    """Whatever save is refused: a failed result, the stored status is none, and a plain resume goes on without repeating."""
    for at in range(1, 20):
        done = Effects()

        def agent(done: Effects = done) -> Agent:
            @tool(replay="idempotent")
            async def act() -> str:
                done("act")
                return "did it"

            return Agent("x", model=MockModel([calls(call("act")), "done"]), tools=[act])

        run_id = f"r{at}"
        store = CrashingStore(world.store, at, error=RuntimeError("disk full"))
        result = await world.process(agent(), store=store.as_store).aio.run_embedded("x", "go", run_id=run_id)
        if store.commits < at:
            assert result.status == "completed"
            return
        assert result.status == "failed"
        assert result.error is not None
        assert store.commits == at, "nothing was offered after the refusal"
        assert (await world.head(run_id)).status in ("queued", "running")
        await world.later(60_000)
        resumed = await world.process(agent()).aio.resume_embedded(run_id)
        assert resumed.status == "completed"
        assert done.done["act"] <= 2
    pytest.fail("the run has more commits than it should")


@pytest.mark.spec("RCP-016")
async def test_a_zombie_cannot_record_what_its_tool_did(world: World) -> None:
    """It finishes its tool after another process took the run over: its write is refused, the outcome stays unknown."""
    running, may_end = asyncio.Event(), asyncio.Event()

    @tool
    async def pay() -> str:
        running.set()
        await may_end.wait()
        return "paid"

    model = MockModel([calls(call("pay")), "done"])
    agent = Agent("x", model=model, tools=[pay])
    zombie = asyncio.ensure_future(world.process(agent).aio.run_embedded("x", "go", run_id="r"))
    await running.wait()
    taken_over = await world.elsewhere(agent).aio.resume_embedded("r")
    assert taken_over.reason == "tool-reconciliation-required"
    may_end.set()
    late = await zombie
    assert (late.status, (late.error or {})["code"]) == ("failed", "revision_conflict")
    assert [receipt.stage for receipt in (await world.receipts("r")).values()] == ["executing"]
    assert len(model.requests) == 1
