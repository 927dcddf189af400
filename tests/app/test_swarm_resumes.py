"""Going on with a swarm: answers by task id, tasks that need somebody's word, and the state that the caller had seen."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from deuz_workers import (
    Agent,
    MockModel,
    ReducerContext,
    Swarm,
    SwarmConflictError,
    Task,
    ToolContext,
    client_tool,
    reducer,
    tool,
)
from deuz_workers.errors import ConfigurationError, ReconciliationError, RunNotFoundError
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import Effects, World


def agents(paid: Effects) -> tuple[Agent, ...]:
    """One that pays twice in one turn after approvals, one that asks a client."""

    @tool(needs_approval=True)
    async def pay(what: str) -> str:
        paid(what)
        return f"paid {what}"

    color = client_tool("color", description="Asks for a color.", parameters={"type": "object", "properties": {}})
    payer = Agent("payer", model=MockModel([calls(call("pay", what="a"), call("pay", what="b")), "done"]), tools=[pay])
    return payer, Agent("asker", model=MockModel([calls(call("color")), "thanks"]), tools=[color])


TASKS = [
    Task("one", agent="payer", prompt="pay"),
    Task("two", agent="payer", prompt="pay"),
    Task("ask", agent="asker", prompt="ask"),
]
CALLS = ("call_1_1", "call_1_2")
YES: Mapping[str, bool] = dict.fromkeys(CALLS, True)


@pytest.mark.spec("SRC-002", "SRC-003", "SRC-016", "SRC-017")
async def test_answers_are_given_by_task_and_a_set_that_leaves_something_open_changes_nothing(world: World) -> None:
    """One call answers two tasks and half of a third: that one stays as it was, to the last item."""
    paid = Effects()
    app = world.process(*agents(paid))
    result = await app.aio.run_swarm_embedded(Swarm("s", TASKS), run_id="s1")
    assert (result.status, result.counts) == ("suspended", {"suspended": 3})
    handle = world.process().aio.swarm_handle("s1")
    before = await world.store.open_items("default", "s1/two")
    assert await handle.resume(
        approvals={
            "one": {CALLS[0]: True, CALLS[1]: {"approved": False, "reason": "too dear"}},
            "two": {CALLS[0]: True},
        },
        client_tool_results={"ask": [{"tool_call_id": CALLS[0], "output": "blue"}]},
    )
    assert await world.store.open_items("default", "s1/two") == before
    result = await world.process(*agents(paid)).aio.resume_swarm_embedded("s1")
    assert (result.status, result.tasks) == ("suspended", {"one": "completed", "two": "suspended", "ask": "completed"})
    assert dict(paid.done) == {"a": 1}
    assert await handle.resume()
    result = await world.process(*agents(paid)).aio.resume_swarm_embedded("s1")
    assert result.tasks["two"] == "suspended", "nothing was said about it"
    assert await handle.resume(approvals={"two": YES})
    result = await world.process(*agents(paid)).aio.resume_swarm_embedded("s1")
    assert (result.status, dict(paid.done)) == ("completed", {"a": 2, "b": 1})
    assert not await handle.resume()


@pytest.mark.spec("SRC-012")
async def test_a_swarm_is_resumed_only_in_the_state_that_was_seen(world: World) -> None:
    """Another status or an older revision: a conflict, and nothing was stored; of two who saw the same, one resumes it."""
    app = world.process(*agents(Effects()))
    await app.aio.run_swarm_embedded(Swarm("s", TASKS[:1]), run_id="s1")
    handle = app.aio.swarm_handle("s1")
    seen = (await handle.snapshot()).revision
    yes = {"one": YES}
    for wrong in ({"expected_revision": seen - 1}, {"expected_status": "running"}):
        with pytest.raises(SwarmConflictError, match="look at it again"):
            await handle.resume(approvals=yes, **wrong)  # pyright: ignore[reportArgumentType]
    assert len(await world.store.open_items("default", "s1/one")) == 2
    assert (await handle.snapshot()).revision == seen

    async def resume() -> bool:
        try:
            return await handle.resume(expected_revision=seen, expected_status="suspended")
        except SwarmConflictError:
            return False

    assert sorted(await asyncio.gather(*(resume() for _ in range(4)))) == [False, False, False, True]


async def test_what_cannot_be_meant_is_refused_before_anything_is_stored(memory: World) -> None:
    """A task that is none, a verdict that is none: the other answers of the same call are not stored either."""
    app = memory.process(*agents(Effects()))
    await app.aio.run_swarm_embedded(Swarm("s", TASKS[:1]), run_id="s1")
    handle = app.aio.swarm_handle("s1")
    seen = (await handle.snapshot()).revision
    yes = YES
    with pytest.raises(RunNotFoundError):
        await handle.resume(approvals={"one": yes, "nosuch": yes})
    with pytest.raises(ConfigurationError):
        await handle.resume(approvals={"one": yes}, client_tool_results={"one": [{"output": "no id"}]})
    assert len(await memory.store.open_items("default", "s1/one")) == 2
    assert (await handle.snapshot()).revision == seen


async def interrupted(world: World, tool_ran: Effects) -> tuple[tuple[Agent, ...], str]:
    """A swarm whose task died in the middle of a tool that may not be repeated, and another task that had its result."""

    @tool
    async def send(context: ToolContext) -> str:
        tool_ran(context.run_id)
        return "sent"

    def made() -> tuple[Agent, ...]:
        sender = Agent("sender", model=MockModel([calls(call("send")), "done"]), tools=[send])
        return sender, Agent("x", model=MockModel.function(lambda request: "fine"))

    for at in range(1, 20):
        dying = world.dying(*made(), at=at)
        swarm = Swarm("s", [Task("send", agent="sender", prompt="go"), Task("end", agent="x", depends_on=["send"])])
        with pytest.raises(ProcessDied):
            await dying.aio.run_swarm_embedded(swarm, run_id=f"s{at}")
        if tool_ran.done[f"s{at}/send"]:
            break
    else:
        pytest.fail("the tool never ran")
    await world.later(60_000)
    result = await world.process(*made()).aio.resume_swarm_embedded(f"s{at}")
    assert (result.status, result.tasks) == ("suspended", {"send": "needs_reconciliation", "end": "pending"})
    return made(), f"s{at}"


@pytest.mark.spec("SRC-007", "SRC-009", "SRC-010")
async def test_an_unknown_effect_runs_again_only_if_task_and_call_are_named(world: World) -> None:
    """The task says why it waits; named alone neither is enough, both together begin another attempt."""
    ran = Effects()
    made, run_id = await interrupted(world, ran)
    handle = world.process().aio.swarm_handle(run_id)
    [event] = [event async for event in handle.swarm_events(follow=False) if event.type == "task.needs_reconciliation"]
    assert event.detail == {"reason": "tool-reconciliation-required"}
    result = await handle.task("send").result()
    assert (result.status, result.reason) == ("stopped", "tool-reconciliation-required")
    for too_little in ({"retry_task_ids": ["send"]}, {"retry_tool_call_ids": {"send": ["call_1_1"]}}):
        assert await handle.resume(**too_little)  # pyright: ignore[reportArgumentType]
        result = await world.process(*made).aio.resume_swarm_embedded(run_id)
        assert result.tasks["send"] == "needs_reconciliation"
    with pytest.raises(ReconciliationError):
        await handle.resume(retry_task_ids=["send"], retry_tool_call_ids={"send": ["call_9_9"]})
    assert ran.done[f"{run_id}/send"] == 1
    assert await handle.resume(retry_task_ids=["send"], retry_tool_call_ids={"send": ["call_1_1"]})
    result = await world.process(*made).aio.resume_swarm_embedded(run_id)
    assert (result.status, ran.done[f"{run_id}/send"]) == ("completed", 2)


@pytest.mark.spec("SRC-011")
async def test_an_outcome_that_somebody_found_out_is_given_by_task_and_call(world: World) -> None:
    """It counts as the tool's, which does not run."""
    ran = Effects()
    made, run_id = await interrupted(world, ran)
    handle = world.process().aio.swarm_handle(run_id)
    assert await handle.resume(reconciled_tool_results={"send": {"call_1_1": "sent after all"}})
    result = await world.process(*made).aio.resume_swarm_embedded(run_id)
    assert (result.status, ran.done[f"{run_id}/send"]) == ("completed", 1)
    assert any("sent after all" in row.body for row in await world.receipt_rows(f"{run_id}/send"))


@pytest.mark.spec("SRC-007")
async def test_a_reducer_that_died_and_may_not_be_repeated_waits_to_be_named(world: World) -> None:
    """Named, it runs once more; nothing else does."""
    ran = Effects()

    @reducer(name="once", replay_safe=False)
    def once(results: Mapping[str, object], context: ReducerContext) -> str:
        ran(context.run_id)
        return "done"

    swarm, at = Swarm("s", [Task("once", reducer="once")]), 0
    while not ran.done[f"s{at}/once"]:
        at += 1
        with pytest.raises(ProcessDied):
            await world.dying(at=at, reducers=[once]).aio.run_swarm_embedded(swarm, run_id=f"s{at}")
    await world.later(60_000)
    result = await world.process(reducers=[once]).aio.resume_swarm_embedded(f"s{at}")
    assert (result.status, result.tasks, ran.done[f"s{at}/once"]) == ("suspended", {"once": "needs_reconciliation"}, 1)
    handle = world.process().aio.swarm_handle(f"s{at}")
    assert await handle.resume(retry_task_ids=["once"])
    result = await world.process(reducers=[once]).aio.resume_swarm_embedded(f"s{at}")
    assert (result.status, ran.done[f"s{at}/once"]) == ("completed", 2)
