"""A policy that is given late: stored before the answers that it comes with, and held to by whoever goes on with the run."""

from __future__ import annotations

from typing import Any, cast

import pytest

from deuz_workers import Agent, Deuz, ExecutionPolicy, MockModel, tool
from deuz_workers.core.policy import NO_POLICY
from deuz_workers.errors import AnswerConflictError, AnswerRefusedError, ConfigurationError, RunNotFoundError
from deuz_workers.ports.store import RunStore
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import Effects, World

READS = ExecutionPolicy(allowed_tools={"read"})
WRITES = ("commit", "add_note", "answer_items")


class Desk:
    """An agent that asks before it pays, and what it paid."""

    def __init__(self) -> None:
        self.paid = Effects()

    @property
    def agent(self) -> Agent:
        @tool
        async def read() -> str:
            return "read"

        @tool(needs_approval=True)
        async def pay() -> str:
            self.paid("pay")
            return "paid"

        return Agent("x", model=MockModel([calls(call("pay").with_id("p")), "done"]), tools=[read, pay])

    async def suspended(self, world: World, run_id: str = "r") -> str:
        """A run that waits for the verdict on its payment; the id of the request."""
        [asked] = (await world.process(self.agent).aio.run_embedded("x", "go", run_id=run_id)).pending_approvals
        return asked.approval_id


class DyingStore:
    """Ends its process at write number `at` of any kind: before the database saw it, or right after."""

    def __init__(self, inner: RunStore, at: int, *, applied: bool) -> None:
        self._inner, self._at, self._applied, self.writes = inner, at, applied, 0

    def __getattr__(self, name: str) -> Any:
        reached = getattr(self._inner, name)
        if name not in WRITES:
            return reached

        async def write(*args: Any, **kwargs: Any) -> object:
            self.writes += 1
            if self.writes > self._at or (self.writes == self._at and not self._applied):
                raise ProcessDied
            answer = await reached(*args, **kwargs)
            if self.writes == self._at:
                raise ProcessDied
            return answer

        return write


@pytest.mark.spec("SET-004")
async def test_a_death_between_any_two_writes_lets_nothing_run_that_the_policy_forbids(world: World) -> None:
    """A resume brings a verdict and a narrower policy and dies at each of its writes; the next executor knows neither, and the
    approved call still does not run. Where the verdict had not been stored, the run waits for it as before."""
    desk = Desk()
    ends: list[str] = []
    at, died = 1, True
    while died:
        died = False
        for applied in (False, True):
            run_id = f"r-{at}-{applied}"
            asked = await desk.suspended(world, run_id)
            dying = cast(RunStore, DyingStore(world.store, at, applied=applied))
            try:
                app = world.process(desk.agent, store=dying)
                await app.aio.resume_embedded(run_id, approvals={asked: True}, policy=READS)
            except ProcessDied:
                died = True
            result = await world.process(desk.agent).aio.resume_embedded(run_id)
            ends.append(result.status)
            if result.status == "failed":
                assert dict(result.error or {})["code"] == "tool_not_allowed"
            else:
                assert [one.approval_id for one in result.pending_approvals] == [asked]
        at += 1
    assert desk.paid.done == {}
    assert ends[:3] == ["suspended"] * 3  # the note before and after, the answer before
    assert set(ends[3:]) == {"failed"}
    assert at >= 4


class Overtaken:
    """As soon as an answer is stored, another process takes the run, and only then its sender learns that it is."""

    def __init__(self, inner: RunStore, other: Deuz, run_id: str) -> None:
        self._inner, self._other, self._run_id = inner, other, run_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def answer_items(self, *args: Any) -> object:
        answered = await self._inner.answer_items(*args)
        await self._other.aio.resume_embedded(self._run_id)
        return answered


@pytest.mark.parametrize("door", ["resume", "stream", "approve"])
async def test_another_executor_takes_the_run_in_between(world: World, door: str) -> None:
    """It was told nothing of the policy and has the run the moment the verdict is stored: it finds the policy there."""
    desk = Desk()
    asked = await desk.suspended(world)
    other = world.process(desk.agent)
    app = world.process(desk.agent, store=cast(RunStore, Overtaken(world.store, other, "r")))
    if door == "resume":
        await app.aio.resume_embedded("r", approvals={asked: True}, policy=READS)
    elif door == "stream":
        await app.aio.resume_stream("r", approvals={asked: True}, policy=READS).result
    else:
        await app.aio.handle("r").approve(asked, policy=READS)
    result = await app.aio.handle("r").result()
    assert (result.status, dict(result.error or {})["code"], desk.paid.done) == ("failed", "tool_not_allowed", {})
    assert (await app.aio.handle("r").envelope()).policy == READS


async def test_answers_that_leave_something_open_bring_no_policy(world: World) -> None:
    """Nothing is written by such a resume: neither a note nor a revision."""
    desk = Desk()
    await desk.suspended(world)
    before = await world.head("r")
    app = world.process(desk.agent)
    assert (await app.aio.resume_embedded("r", approvals={"another": True}, policy=READS)).status == "suspended"
    await app.aio.resume_stream("r", approvals={"another": True}, policy=READS).result
    after = await world.head("r")
    assert (after.revision, after.wake_seq) == (before.revision, before.wake_seq)


async def test_a_refused_answer_narrows_nothing(memory: World) -> None:
    """What does not fit is refused before anything is written; an answer that came second narrows nothing either, as far as
    that is known when it comes."""
    desk = Desk()
    asked = await desk.suspended(memory)
    handle = memory.process(desk.agent).aio.handle("r")
    with pytest.raises(AnswerRefusedError):
        await handle.approve(asked, by=" ", policy=READS)
    with pytest.raises(ConfigurationError, match="policy"):
        await handle.deny(asked, policy=cast(Any, {"allowed_tools": []}))
    assert (await memory.head("r")).wake_seq == 0
    await handle.approve(asked)
    with pytest.raises(AnswerConflictError):
        await handle.approve(asked, policy=READS)
    assert (await memory.head("r")).wake_seq == 0


async def test_a_waiting_run_is_narrowed_by_a_note(world: World) -> None:
    """`narrow` is taken in while the run waits, said in its journal once, and the call that is approved later does not run."""
    desk = Desk()
    asked = await desk.suspended(world)
    app = world.process(desk.agent)
    handle = app.aio.handle("r")
    assert await handle.narrow(READS)
    assert await handle.narrow(NO_POLICY)
    assert (await app.aio.resume_embedded("r")).status == "suspended"
    assert (await handle.envelope()).policy == READS
    told = [event async for event in handle.events(follow=False) if event.type == "run.policy_narrowed"]
    assert [event.data["allowed_tools"] for event in told] == [["read"]]
    await handle.approve(asked)
    result = await app.aio.resume_embedded("r")
    assert (result.status, desk.paid.done) == ("failed", {})
    assert not await handle.narrow(READS)
    with pytest.raises(RunNotFoundError):
        await app.aio.handle("nobody").narrow(READS)
    with pytest.raises(ConfigurationError, match="narrows nothing"):
        await handle.narrow(cast(Any, None))


async def test_an_executor_that_goes_on_takes_the_note_in_with_its_next_turn(memory: World) -> None:
    """In process many turns are one step; one that sees an unread note ends, and the next turn is held to the policy."""
    paid = Effects()

    @tool
    async def read() -> str:
        await app.aio.handle("r").narrow(READS)
        return "read"

    @tool
    async def pay() -> None:
        paid("pay")

    model = MockModel([calls(call("read")), calls(call("pay")), "done"])
    app = memory.process(Agent("x", model=model, tools=[read, pay]))
    result = await app.aio.run_embedded("x", "go", run_id="r")
    assert (result.status, dict(result.error or {})["code"], paid.done) == ("failed", "tool_not_allowed", {})


async def test_a_policy_that_this_build_cannot_read_stops_the_run_and_no_cancel(world: World) -> None:
    """A later build wrote a limit that is not known here: left out, the run would do what it forbids, so it waits."""
    desk = Desk()
    asked = await desk.suspended(world)
    app = world.process(desk.agent)
    await world.store.add_note("default", "r", "policy", '{"allowed_hours": [9, 17]}')
    before = await world.head("r")
    result = await app.aio.resume_embedded("r", approvals={asked: True})
    assert (result.status, dict(result.error or {})["name"]) == ("failed", "CodecError")
    after = await world.head("r")
    assert (after.status, after.revision, desk.paid.done) == ("suspended", before.revision, {})
    assert await app.aio.handle("r").cancel()
    assert (await app.aio.resume_embedded("r")).reason == "aborted"


async def test_a_waiting_run_wakes_when_a_narrower_deadline_passes(world: World) -> None:
    """The note brings a time that the run did not have: it is due then at the latest, and ends."""
    desk = Desk()
    await desk.suspended(world)
    app = world.process(desk.agent)
    assert (await world.head("r")).due_in_ms is None
    await app.aio.handle("r").narrow(ExecutionPolicy(deadline_ms=app.clock.unix_ms() + 3_600_000))
    assert (await app.aio.resume_embedded("r")).status == "suspended"
    due_in_ms = (await world.head("r")).due_in_ms
    assert due_in_ms is not None
    assert 0 < due_in_ms <= 3_600_000
    await app.aio.handle("r").narrow(ExecutionPolicy(deadline_ms=1))
    result = await app.aio.resume_embedded("r")
    assert (result.status, dict(result.error or {})["code"]) == ("failed", "deadline_exceeded")


@pytest.mark.parametrize("door", ["retry", "reconcile", "retry_failed"])
async def test_words_about_calls_and_failures_bring_one_too(memory: World, door: str) -> None:
    """Whoever frees a parked run or takes up a failed one can narrow it in the same call."""
    paid = Effects()

    @tool
    async def hold() -> str:
        raise ProcessDied

    @tool
    async def pay() -> None:
        paid("pay")

    script = [calls(call("hold").with_id("h")), calls(call("pay")), "done"]
    app = memory.process(Agent("x", model=MockModel(script), tools=[hold, pay]))
    with pytest.raises(ProcessDied):
        await app.aio.run_embedded("x", "go", run_id="r")
    again = memory.process(Agent("x", model=MockModel(script), tools=[hold, pay]))
    assert (await again.aio.resume_embedded("r")).unknown_effects
    handle, only = again.aio.handle("r"), ExecutionPolicy(allowed_tools={"hold"})
    if door == "reconcile":
        await handle.reconcile({"h": "held"}, policy=only)
    elif door == "retry":
        await handle.retry(policy=only)
        with pytest.raises(ProcessDied):
            await again.aio.resume_embedded("r")
    else:
        await handle.reconcile({"h": "held"})
        assert not await handle.retry_failed(only)
        return
    if door == "reconcile":
        assert dict((await again.aio.resume_embedded("r")).error or {})["code"] == "tool_not_allowed"
    assert ((await handle.envelope()).policy, paid.done) == (only, {})
