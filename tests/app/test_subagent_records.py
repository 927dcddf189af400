"""What is stored of delegated calls, and what deaths leave of them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from deuz_workers import (
    Agent,
    ToolContext,
    tool,
)
from deuz_workers.core.change import Applied
from deuz_workers.core.codec import decode, encode
from deuz_workers.core.delegation import child_run_id
from deuz_workers.core.messages import message_from_record
from deuz_workers.errors import StoreUnavailableError
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import CrashingStore, ProcessDied
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.testing.store_conformance_bench import change_from
from tests.app.delegating import ask, boss, gated, requests, scripted, told
from tests.app.world import Effects, World


@pytest.mark.spec("SUB-003")
async def test_children_have_ids_of_their_calls(world: World) -> None:
    """Two calls of one agent side by side and a later one under the same id are three runs; resumed, they are the same."""
    sub = scripted("helper", "yes")
    two = calls(call("helper", prompt="a").with_id("x"), call("helper", prompt="b").with_id("y"))
    root = scripted("boss", two, calls(call("helper", prompt="c").with_id("x")), "done", tools=[sub])
    with pytest.raises(ProcessDied):
        await world.dying(root, at=4).aio.run_embedded("boss", "go", run_id="r")
    result = await world.process(root).aio.resume_embedded("r")
    assert result.status == "completed"
    names = [child_run_id("r", "helper", step, call_id) for step, call_id in ((1, "x"), (1, "y"), (2, "x"))]
    prompts = [message_from_record(decode((await world.loaded(name)).messages[0].body)).text for name in names]
    assert prompts == ["a", "b", "c"]
    page = await world.process().aio.list_runs()
    assert len(page.heads) == 4


@pytest.mark.spec("IDM-005")
async def test_a_tool_of_a_child_has_one_identity_across_resumes_of_the_parent(world: World) -> None:
    """The process dies in it, twice: turn, call and key are the child's own, below the parent's call, and the same each time;
    equal calls of the parent and of another child have others."""
    seen: list[tuple[str, int, str, str]] = []
    deaths = [True, True]

    @tool(replay="idempotent")
    async def put(context: ToolContext) -> str:
        seen.append((context.run_id, context.model_step, context.tool_call_id, context.idempotency_key))
        if context.run_id == child and deaths:
            deaths.pop()
            raise ProcessDied
        return "put"

    def root() -> Agent:
        sub = scripted("helper", calls(call("put").with_id("c")), "done", tools=[put])
        asks = [call("helper", prompt="a").with_id("x"), call("helper", prompt="b").with_id("y")]
        return scripted("boss", calls(call("put").with_id("c")), calls(asks[0]), calls(asks[1]), "done", tools=[sub, put])

    child, other = child_run_id("r", "helper", 2, "x"), child_run_id("r", "helper", 3, "y")
    with pytest.raises(ProcessDied):
        await world.process(root()).aio.run_embedded("boss", "go", run_id="r")
    with pytest.raises(ProcessDied):
        await world.process(root()).aio.resume_embedded("r")
    await world.later(600_000)
    assert (await world.process(root()).aio.resume_embedded("r")).status == "completed"
    assert [at[:3] for at in seen] == [("r", 1, "c"), *[(child, 1, "c")] * 3, (other, 1, "c")]
    assert len({at[3] for at in seen}) == 3


@pytest.mark.spec("ENV-011")
async def test_a_record_of_a_child_that_cannot_be_read_is_refused_before_any_write(world: World) -> None:
    """A nested loop checkpoint of version 2: the resume of its parent changes nothing."""
    root = boss(gated(Effects()))
    waiting = await world.process(root).aio.run_embedded("boss", "go", run_id="r")
    [asked] = waiting.pending_approvals
    await rewrite_checkpoint(world, asked.run_id)
    before = [await world.loaded(name) for name in ("r", asked.run_id)]
    result = await world.process(root).aio.resume_embedded("r", approvals={asked.approval_id: True})
    assert result.error is not None
    assert (result.error["name"], result.error["code"]) == ("CheckpointVersionError", "checkpoint_version_unsupported")
    after = [await world.loaded(name) for name in ("r", asked.run_id)]
    assert [loaded.items for loaded in before] == [loaded.items for loaded in after]
    assert [loaded.head.revision for loaded in before] == [loaded.head.revision for loaded in after]
    await rewrite_checkpoint(world, "r")
    result = await world.process(root).aio.resume_embedded("r")
    assert result.error is not None
    assert result.error["code"] == "checkpoint_version_unsupported"


async def rewrite_checkpoint(world: World, run_id: str) -> None:
    """Its loop checkpoint says version 2; nothing else changes."""
    head = await world.head(run_id)
    body: Any = decode(head.body)
    body["checkpoint"]["version"] = 2
    change = change_from(head, status=head.status, model_step=head.model_step, due_in_ms=None, body=encode(body))
    assert isinstance(await world.store.commit(change), Applied)


@pytest.mark.spec("ENV-004")
async def test_the_record_has_version_2_while_a_child_is_waited_for(world: World) -> None:
    """And the stage of its receipt is `suspended`; the turn that was answered has version 1 again."""
    root = boss(gated(Effects()), turns=1)
    waiting = await world.process(root).aio.run_embedded("boss", "go", run_id="r")
    assert (await world.head("r")).version == 2
    assert {receipt.stage for receipt in (await world.receipts("r")).values()} == {"suspended"}
    [asked] = waiting.pending_approvals
    await world.process(root).aio.resume_embedded("r", approvals={asked.approval_id: True})
    assert (await world.head("r")).version == 1


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("at", range(1, 16))
async def test_a_tree_survives_a_death_at_every_commit(memory: World, at: int, applied: bool) -> None:
    """Whoever dies where: each child is there once, each effect happened once, and the parent has all results."""
    done = Effects()

    @tool(replay="idempotent")
    async def look(context: ToolContext, what: str) -> str:
        done(context.idempotency_key)
        return f"saw {what}"

    sub = scripted("helper", calls(call("look", what="it")), "seen", tools=[look])
    root = scripted(
        "boss", calls(call("helper", prompt="a"), call("look", what="x"), call("helper", prompt="b")), "done", tools=[sub, look]
    )
    try:
        result = await memory.dying(root, at=at, applied=applied).aio.run_embedded("boss", "go", run_id="r")
    except ProcessDied:
        result = await memory.process(root).aio.resume_embedded("r")
    assert result.status == "completed", result
    page = await memory.process(root).aio.list_runs()
    assert sorted(head.run_id for head in page.heads) == ["r", ask("helper"), ask("helper", "call_1_3")]
    assert {head.status for head in page.heads} == {"completed"}
    assert len(done.done) == 3
    assert [text for text, _ in told(root)] == ["seen", "saw x", "seen"]


@pytest.mark.spec("FR-05")
async def test_a_fork_dispatches_no_child_again(world: World) -> None:
    """Its children are done: their results come from receipts, and nothing is delegated."""
    sub = scripted("helper", "yes")
    root = scripted("boss", calls(call("helper", prompt="a"), call("helper", prompt="b")), "done", tools=[sub])
    await world.process(root).aio.run_embedded("boss", "go", run_id="r")
    before = len((await world.process().aio.list_runs()).heads)
    app = world.process(root)
    await app.aio.fork("r", 1, new_run_id="f", queue="in-process")
    result = await app.aio.resume_embedded("f")
    assert (result.status, told(root)) == ("completed", [("yes", False)] * 2)
    assert len((await world.process().aio.list_runs()).heads) == before + 1
    assert len(requests(sub)) == 2


@pytest.mark.spec("RCP-013")
@pytest.mark.parametrize("way", ["dies", "applied", "refused"])
@pytest.mark.parametrize("at", range(1, 9))
async def test_a_stop_between_receipt_and_step(memory: World, at: int, way: str) -> None:
    """A turn of two tools and a child that suspends, stopped at each save: one result per call, and each effect once unless
    its call is reported."""
    done = Effects()

    @tool
    async def act(n: int) -> str:
        done(f"act {n}")
        return f"did {n}"

    sub = gated(done)
    asks = calls(call("act", n=1), call("payer", prompt="pay"), call("act", n=2))
    root = scripted("boss", asks, "done", tools=[act, sub])
    error = StoreUnavailableError("the disk is full") if way == "refused" else None
    store = CrashingStore(memory.store, at, applied=way == "applied", error=error)
    with contextlib.suppress(ProcessDied):
        await memory.process(root, store=store.as_store).aio.run_embedded("boss", "go", run_id="r")
    result = await memory.process(root).aio.resume_embedded("r")
    if result.reason == "tool-reconciliation-required":
        said = {effect.tool_call_id: f"did {effect.arguments['n']}" for effect in result.unknown_effects}
        assert said
        result = await memory.process(root).aio.resume_embedded("r", reconciled_tool_results=said)
    assert result.status == "suspended", result
    verdicts = {asked.approval_id: True for asked in result.pending_approvals}
    result = await memory.process(root).aio.resume_embedded("r", approvals=verdicts)
    assert result.status == "completed"
    assert told(root) == [("did 1", False), ("paid", False), ("did 2", False)]
    assert max(done.done.values()) == 1


@pytest.mark.spec("RCP-002")
async def test_every_stage_is_stored_under_its_name(world: World) -> None:
    """One turn with a call for each: what is stored of it on the way, and where each call ends."""

    def refuse(value: object) -> object:
        raise ValueError("not like this")

    @tool
    async def good() -> str:
        return "good"

    @tool
    async def bad() -> str:
        raise ValueError("bad")

    @tool(validate_result=refuse)
    async def invalid() -> str:
        return "invalid"

    @tool(to_model_output=refuse)
    async def unshown() -> str:
        return "unshown"

    names = ("good", "bad", "invalid", "unshown", "payer")
    asks = calls(*(call(name, **({"prompt": "pay"} if name == "payer" else {})) for name in names))
    root = scripted("boss", asks, "done", tools=[good, bad, invalid, unshown, gated(Effects())])
    assert (await world.process(root).aio.run_embedded("boss", "go", run_id="r")).status == "suspended"
    rows = await world.receipt_rows("r")
    newest = {receipt.tool: receipt.stage for receipt in (await world.receipts("r")).values()}
    assert newest == {
        "good": "completed",
        "bad": "failed",
        "invalid": "validation-failed",
        "unshown": "projection-failed",
        "payer": "suspended",
    }
    assert {row.stage for row in rows} == {*newest.values(), "executing", "executed"}


@pytest.mark.spec("PTH-020")
async def test_tools_are_of_one_step_and_children_have_their_own() -> None:
    """A turn of three tools is one step, which rings for the next one alone; two children are rung for, and it for nobody."""
    done = Effects()

    @tool
    async def act(n: int) -> str:
        done(f"act {n}")
        return f"did {n}"

    sub = scripted("helper", "yes")
    three = calls(*(call("act", n=n) for n in range(3)))
    two = calls(call("helper", prompt="a"), call("helper", prompt="b"))
    root = scripted("boss", three, two, "done", tools=[act, sub])
    simulation = Simulation({agent.name: agent.definition for agent in (root, sub)})
    await simulation.enqueue("boss", "r")
    engine = Process(simulation).engine
    first = await engine.step(SCOPE, "r")
    assert (len(done.done), [bell.run_id for bell in first.bells]) == (3, ["r"])
    second = await engine.step(SCOPE, "r")
    children = sorted(child_run_id("r", "helper", 2, f"call_2_{place}") for place in (1, 2))
    assert (second.end, sorted(bell.run_id for bell in second.bells)) == ("suspended", children)
    assert (await engine.step(SCOPE, children[0])).bells == ()
    assert [bell.run_id for bell in (await engine.step(SCOPE, children[1])).bells] == ["r"]
    assert (await engine.step(SCOPE, "r")).end == "turn"
    assert (await engine.step(SCOPE, "r")).end == "ended"


@pytest.mark.spec("ENV-004")
@pytest.mark.parametrize(("fails", "version"), [(True, 2), (False, 1)])
async def test_the_version_of_a_turn_that_a_death_left_open(world: World, *, fails: bool, version: int) -> None:
    """2 with a `failed` receipt beside one that is `executing`, 1 with a `completed` one."""

    @tool
    async def quick() -> str:
        if fails:
            raise ValueError("no")
        return "yes"

    @tool
    async def slow() -> str:
        await asyncio.sleep(0.2)
        return "late"

    root = scripted("boss", calls(call("quick"), call("slow")), "done", tools=[quick, slow])
    with pytest.raises(ProcessDied):
        await world.dying(root, at=3, applied=True).aio.run_embedded("boss", "go", run_id="r")
    stages = {receipt.tool: receipt.stage for receipt in (await world.receipts("r")).values()}
    assert stages == {"quick": "failed" if fails else "completed", "slow": "executing"}
    assert (await world.head("r")).version == version
