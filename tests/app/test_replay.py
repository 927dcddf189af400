"""Idempotent tools run again after an interruption, under the same identity; others wait for somebody's word."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from deuz_workers import Agent, MockModel, StepInfo, StepPlan, ToolContext, tool
from deuz_workers.core.codec import encode
from deuz_workers.core.messages import message_to_record, user
from deuz_workers.core.receipts import Receipt
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import Effects, World


class Board:
    """Something outside that keeps one entry per idempotency key, and a log of all that asked."""

    def __init__(self, deaths: int = 1) -> None:
        self.entries: dict[str, str] = {}
        self.asked: list[tuple[int, str, int]] = []
        self.deaths = deaths

    def agent(self, replay: Literal["idempotent"] | None = "idempotent") -> Agent:
        @tool(replay=replay)
        async def pin(text: str, context: ToolContext) -> str:
            self.asked.append((context.model_step, context.tool_call_id, context.attempt))
            self.entries[context.idempotency_key] = text
            if len(self.asked) <= self.deaths:
                raise ProcessDied
            return "pinned"

        @tool
        async def look() -> str:
            return "empty"

        script = [calls(call("look").with_id("c")), calls(call("pin", text="hello").with_id("c")), "done"]
        return Agent("x", model=MockModel(script), tools=[pin, look])


@pytest.mark.spec("IDM-001")
@pytest.mark.parametrize(
    ("replay", "status", "reason", "times"),
    [("idempotent", "completed", None, 2), (None, "stopped", "tool-reconciliation-required", 1)],
)
async def test_only_an_idempotent_call_runs_again_by_itself(
    world: World, replay: Literal["idempotent"] | None, status: str, reason: str | None, times: int
) -> None:
    """With the flag the resume repeats the call; without, it stops for reconciliation."""
    board = Board()
    with pytest.raises(ProcessDied):
        await world.process(board.agent(replay)).aio.run_embedded("x", "go", run_id="r")
    result = await world.process(board.agent(replay)).aio.resume_embedded("r")
    assert (result.status, result.reason, len(board.asked)) == (status, reason, times)


@pytest.mark.spec("IDM-002", "IDM-003", "IDM-006")
async def test_the_repetition_has_the_identity_of_the_first_execution(world: World) -> None:
    """Turn and call id are the same in whichever process runs it: one entry on the board, one receipt with two attempts."""
    board = Board(deaths=2)
    with pytest.raises(ProcessDied):
        await world.process(board.agent()).aio.run_embedded("x", "go", run_id="r")
    with pytest.raises(ProcessDied):
        await world.process(board.agent()).aio.resume_embedded("r")
    await world.later(120_000)
    assert (await world.process(board.agent()).aio.resume_embedded("r")).status == "completed"
    assert board.asked == [(2, "c", 1), (2, "c", 2), (2, "c", 3)]
    assert list(board.entries.values()) == ["hello"]
    receipts = await world.receipts("r")
    assert {key: (receipt.tool, receipt.stage, receipt.attempt) for key, receipt in receipts.items()} == {
        (1, "c"): ("look", "completed", 1),
        (2, "c"): ("pin", "completed", 3),
    }


async def test_the_flag_of_what_ran_is_on_the_receipt_for_both_values(world: World) -> None:
    """So that a missing one can only mean an old record."""
    seen: list[Receipt] = []

    @tool(replay="idempotent")
    async def safe() -> str:
        return ""

    @tool
    async def unsafe() -> str:
        return ""

    model = MockModel([calls(call("safe").with_id("s"), call("unsafe").with_id("u")), "done"])
    await world.process(Agent("x", model=model, tools=[safe, unsafe])).aio.run_embedded("x", "go", run_id="r")
    seen = list((await world.receipts("r")).values())
    assert {receipt.tool: receipt.idempotent for receipt in seen} == {"safe": True, "unsafe": False}


async def test_the_recorded_flag_decides_whatever_is_registered_now(world: World) -> None:
    """Switched on after the crash, the tool is still not repeated: the receipt says that what ran was not idempotent."""
    board = Board()
    with pytest.raises(ProcessDied):
        await world.process(board.agent(None)).aio.run_embedded("x", "go", run_id="r")
    result = await world.process(board.agent("idempotent")).aio.resume_embedded("r")
    assert (result.reason, len(board.asked)) == ("tool-reconciliation-required", 1)


@pytest.mark.spec("FR-04")
@pytest.mark.parametrize("applied", [False, True])
async def test_an_action_keeps_its_key_whatever_is_put_before_it(memory: World, applied: bool) -> None:
    """The process dies around every save; the next one has another hook that puts messages before the turn, and one arrived
    meanwhile: whatever is repeated has the key that it had."""
    for at in range(1, 20):
        keys: list[str] = []

        def agent(keys: list[str] = keys, *, inserts: bool = False) -> Agent:
            @tool(replay="idempotent")
            async def pin(text: str, ctx: ToolContext) -> str:
                keys.append(f"{text} {ctx.idempotency_key}")
                return "pinned"

            def insert(info: StepInfo) -> StepPlan:
                first, *others = info.messages
                return StepPlan(messages=[first, user("a step of its own came first"), *others])

            script = [
                calls(call("pin", text="one").with_id("tool_0")),
                calls(call("pin", text="two").with_id("tool_0")),
                "done",
            ]
            return Agent("x", model=MockModel(script), tools=[pin], prepare_step=insert if inserts else None)

        run_id = f"r{at}"
        try:
            await memory.dying(agent(), at=at, applied=applied).aio.run_embedded("x", "go", run_id=run_id)
        except ProcessDied:
            pass
        else:
            assert at > 5
            return
        await memory.later(60_000)
        note = encode({"message": message_to_record(user("by the way"))})
        await memory.store.add_note("default", run_id, "message", note)
        result = await memory.process(agent(inserts=True)).aio.resume_embedded(run_id)
        assert result.status == "completed", (at, result.error)
        assert set(keys) == {f"one {run_id}/1/tool_0", f"two {run_id}/2/tool_0"}
        assert len(keys) <= 3
    pytest.fail("the run has more commits than it should")


@pytest.mark.spec("FR-15")
async def test_five_parallel_tools_survive_fifty_crashes(memory: World) -> None:
    """Whatever order they end in and whenever the process dies: every result stands under the call that asked for it."""
    for seed in range(50):
        done = Effects()

        def agent(done: Effects = done, seed: int = seed) -> Agent:
            @tool(replay="idempotent")
            async def act(what: int) -> str:
                done(str(what))
                await asyncio.sleep(((seed * 7 + what * 13) % 10) / 10_000)
                return f"did {what}"

            script = [calls(*(call("act", what=what) for what in range(5))), "done"]
            return Agent("x", model=MockModel(script), tools=[act])

        run_id = f"r{seed}"
        try:
            app = memory.dying(agent(), at=2 + seed % 6, applied=seed % 2 == 0)
            result = await app.aio.run_embedded("x", "go", run_id=run_id)
        except ProcessDied:
            result = await memory.process(agent()).aio.resume_embedded(run_id)
        assert result.status == "completed", (seed, result.error)
        [asked] = [message.tool_uses for message in result.messages if message.tool_uses]
        [answers] = [message.tool_results for message in result.messages if message.role == "tool"]
        texts = {part.call_id: part.text for part in answers}
        assert texts == {use.call_id: f"did {(use.arguments or {})['what']}" for use in asked}
        assert max(done.done.values()) <= 2
