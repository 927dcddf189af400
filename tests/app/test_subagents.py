"""Agents that delegate: runs of their own for calls, what they may do, what comes back, and who is asked for what."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import pytest

from deuz_workers import (
    Agent,
    Block,
    Budget,
    ConfigurationError,
    Deuz,
    ExecutionPolicy,
    GuardContext,
    Guardrails,
    Limits,
    MockModel,
    PartEvent,
    Rewrite,
    SubAgentPart,
    TextDelta,
    ToolCallRequest,
    ToolContext,
    Usage,
    agent_tool,
    client_tool,
    tool,
)
from deuz_workers.errors import (
    ForkRefusedError,
    ModelRequestError,
    ModelUnavailableError,
    ReconciliationError,
    RetryRefusedError,
)
from deuz_workers.providers.script import attempts, call, calls, reply
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.delegating import ask, boss, gated, requests, scripted, told
from tests.app.world import Effects, World


@pytest.mark.spec("SUB-001", "SUB-002")
async def test_a_call_is_a_run_of_its_own_and_its_text_the_result(world: World) -> None:
    """The child sees its own instructions and the prompt alone; the parent's model reads its final text."""
    sub = scripted("helper", "forty-two", instructions="You help.")
    root = boss(sub, instructions="You decide.")
    result = await world.process(root).aio.run_embedded("boss", "what is it?", run_id="r")
    assert (result.status, result.output) == ("completed", "done")
    assert told(root) == [("forty-two", False)]
    assert requests(sub) == [[("system", "You help."), ("user", "ask helper")]]
    [spec] = [tool.spec for tool in root.tools.values()]
    assert spec.parameters["required"] == ["prompt"]
    assert cast("dict[str, object]", spec.parameters["properties"]).keys() == {"prompt"}


@pytest.mark.spec("SUB-005", "CHD-006")
async def test_what_children_use_counts_for_all_above(world: World) -> None:
    """Total usage includes every level; a budget of the root is spent by the children together."""
    usage = Usage(input_tokens=10, output_tokens=5, cost_micros=None)
    leaf = scripted("leaf", reply("deep", usage=usage))
    mid = scripted("mid", calls(call("leaf", prompt="go"), usage=usage), reply("up", usage=usage), tools=[leaf])
    root = scripted("boss", calls(call("mid", prompt="go"), usage=usage), reply("done", usage=usage), tools=[mid])
    result = await world.process(root).aio.run_embedded("boss", "go", run_id="r", budget=Budget(tokens=100_000))
    assert result.usage.total_tokens == 5 * 15
    assert (await world.head("r")).tokens == 75
    assert result.accounting.spent.tokens == 75
    assert result.accounting.reserved.tokens == 0


@pytest.mark.spec("SUB-005")
@pytest.mark.parametrize("ending", ["cancel", "deadline"])
async def test_what_children_used_counts_for_a_run_that_ends_before_all_of_them(world: World, ending: str) -> None:
    """One has ended, another waits for a person: what the first came to and cost is in the record of the run that is ended."""
    sub = scripted("helper", "yes")
    root = boss(sub, gated(Effects()))
    app = world.process(root)
    waiting = await app.aio.run_embedded("boss", "go", run_id="r", deadline=timedelta(minutes=5))
    assert (waiting.status, waiting.usage.total_tokens) == ("suspended", 15)
    if ending == "cancel":
        await app.aio.handle("r").cancel("enough")
    else:
        await world.later(301_000)
    result = await world.process(root).aio.resume_embedded("r")
    assert result.status == ("stopped" if ending == "cancel" else "failed")
    assert result.usage.total_tokens == result.accounting.spent.tokens == 30
    stages = {receipt.tool: receipt.stage for receipt in (await world.receipts("r")).values()}
    assert stages == {"helper": "executed", "payer": "suspended"}


@pytest.mark.spec("CHD-006")
async def test_two_children_exhaust_the_budget_of_their_parent(world: World) -> None:
    """What one has spent is not there for the other; the refusal is a typed result for the parent's model, and then its end."""
    greedy = Usage(input_tokens=3_000, output_tokens=10, cost_micros=None)
    subs = [scripted(name, reply("enough", usage=greedy), max_output_tokens=50) for name in ("one", "two")]
    asks = [calls(call("one", prompt="go")), calls(call("two", prompt="go"))]
    root = scripted("boss", *asks, "done", tools=subs, max_output_tokens=50)
    app = world.process(root)
    result = await app.aio.run_embedded("boss", "go", run_id="r", budget=Budget(tokens=3_300))
    assert result.status == "failed"
    first = (await world.receipts("r"))[1, "call_1_1"]
    assert (first.stage, first.value) == ("completed", "enough")
    assert result.error is not None
    assert result.error["code"] == "budget_exceeded"


async def test_an_exhausted_child_is_a_typed_result(world: World) -> None:
    """Its own budget has no room for its first call: the parent's model is told, and goes on."""
    sub = scripted("helper", "never")
    root = scripted("boss", calls(call("helper", prompt="go")), "done", tools=[agent_tool(sub, budget=Budget(tokens=1))])
    result = await world.process(root).aio.run_embedded("boss", "go", run_id="r")
    assert result.status == "completed"
    receipt = (await world.receipts("r"))[1, "call_1_1"]
    assert (receipt.stage, receipt.outcome, receipt.reason) == ("failed", "over-budget", "budget_exceeded")
    assert requests(sub) == []


async def test_failures_and_stops_are_typed_results(world: World) -> None:
    """A child that failed, one that was stopped and one that was cancelled are told apart."""

    @tool
    async def cancel_me(context: ToolContext) -> str:
        await app.aio.handle(context.run_id).cancel("enough")
        return "cancelled"

    failing = scripted("failing", ModelRequestError("no such model"))
    endless = scripted("endless", reply("cut", finish_reason="content_filter"))
    leaving = scripted("leaving", calls(call("cancel_me")), "never", tools=[cancel_me])
    root = boss(failing, endless, leaving)
    app = world.process(root)
    result = await app.aio.run_embedded("boss", "go", run_id="r")
    assert result.status == "completed"
    outcomes = {receipt.tool: (receipt.outcome, receipt.reason) for receipt in (await world.receipts("r")).values()}
    assert outcomes == {
        "failing": ("child-failed", "model_request"),
        "endless": ("child-stopped", "refusal"),
        "leaving": ("cancelled", "aborted"),
    }
    assert [is_error for _, is_error in told(root)] == [True] * 3


async def test_a_failed_child_is_not_taken_up_again(world: World) -> None:
    """Its parent was told and has gone on, so nobody waits for what it would do; nothing is written or called."""
    sub = scripted("helper", attempts(ModelUnavailableError("away", status=503), "late"), limits=Limits(max_retries=0))
    root = boss(sub)
    result = await world.process(root).aio.run_embedded("boss", "go", run_id="r")
    assert (result.status, told(root)[0][1]) == ("completed", True)
    before = await world.loaded(ask("helper"))
    assert (before.head.status, '"retry"' in before.head.body) == ("failed", True)
    with pytest.raises(RetryRefusedError, match="was told that it failed") as caught:
        await world.process(root).aio.handle(ask("helper")).retry_failed()
    assert caught.value.code == "parent_told"
    assert await world.loaded(ask("helper")) == before
    assert len(requests(sub)) == 1


@pytest.mark.spec("CHD-001")
async def test_a_child_may_use_no_model_that_its_parent_may_not(world: World) -> None:
    """It fails before its first call; the parent's model is told."""
    sub = Agent("helper", model=MockModel(["never"], model="other"))
    root = boss(sub)
    policy = ExecutionPolicy(allowed_models={"mock:scripted"})
    result = await world.process(root).aio.run_embedded("boss", "go", run_id="r", policy=policy)
    assert result.status == "completed"
    child = await world.process(root).aio.handle(ask("helper")).envelope()
    assert child.error is not None
    assert (child.error["name"], child.error["code"]) == ("ExecutionPolicyError", "model_not_allowed")
    assert requests(sub) == []


@pytest.mark.spec("CHD-005")
async def test_a_child_inherits_and_only_narrows(world: World) -> None:
    """A later deadline, a wider list and a bigger budget of its own change nothing; a smaller list counts."""
    now_ms = await world.store.now_ms()
    wide = ExecutionPolicy(allowed_tools={"helper", "look"}, deadline_ms=now_ms + 9_000_000)
    sub = scripted("helper", "yes", policy=wide, budget=Budget(tokens=10**9))
    root = boss(sub)
    narrow = ExecutionPolicy(allowed_tools={"helper", "pay"}, deadline_ms=now_ms + 600_000, required_approvals={"pay"})
    result = await world.process(root).aio.run_embedded("boss", "go", run_id="r", policy=narrow, budget=Budget(tokens=50_000))
    assert result.status == "completed"
    parent, child = [await world.process(root).aio.handle(name).envelope() for name in ("r", ask("helper"))]
    assert child.policy == ExecutionPolicy(allowed_tools={"helper"}, deadline_ms=now_ms + 600_000, required_approvals={"pay"})
    assert child.scopes == (f"run:{child.rid.hex}", *parent.scopes)
    heads = [await world.head(name) for name in ("r", ask("helper"))]
    deadlines = [head.deadline_in_ms for head in heads]
    assert deadlines[0] is not None
    assert deadlines[1] is not None
    assert abs(deadlines[0] - deadlines[1]) < 60_000
    assert heads[0].queue == heads[1].queue == "in-process"


@pytest.mark.spec("CHD-008")
async def test_depth_is_limited_by_policy_and_by_the_tool(world: World) -> None:
    """Beyond the policy the run fails before its child has made a model call; beyond the tool's cap its model is told."""
    leaf = scripted("leaf", "deep")
    mid = scripted("mid", calls(call("leaf", prompt="go")), "up", tools=[leaf])
    root = scripted("boss", calls(call("mid", prompt="go")), "done", tools=[mid])
    app = world.process(root)
    result = await app.aio.run_embedded("boss", "go", run_id="p", policy=ExecutionPolicy(max_depth=1))
    assert (result.status, requests(leaf)) == ("completed", [])
    failed = await app.aio.handle(ask("mid", parent="p")).envelope()
    assert failed.error is not None
    assert (failed.error["name"], failed.error["code"]) == ("ExecutionPolicyError", "depth_exceeded")
    shallow = scripted("mid", calls(call("leaf", prompt="go")), "up", tools=[agent_tool(leaf, max_depth=1)])
    root = scripted("boss", calls(call("mid", prompt="go")), "done", tools=[shallow])
    result = await world.process(root).aio.run_embedded("boss", "go", run_id="c")
    assert (result.status, requests(leaf)) == ("completed", [])
    [(text, is_error)] = told(shallow)
    assert is_error
    assert "1 levels deep" in text


async def test_an_agent_may_delegate_to_itself_by_name(world: World) -> None:
    """Up to the cap; the deepest one is told so."""
    root = Agent("deep", model=MockModel([calls(call("deep", prompt="deeper")), "done"]), tools=[agent_tool("deep")])
    result = await world.process(root).aio.run_embedded("deep", "go", run_id="r")
    assert result.status == "completed"
    page = await world.process().aio.list_runs()
    assert sorted(head.run_id.count("/") for head in page.heads) == [0, 1, 2]


def block_secrets(arguments: Mapping[str, Any], context: GuardContext) -> Block | None:
    return Block("secret") if arguments.get("what") == "secret" else None


def shorten(text: str, context: GuardContext) -> Rewrite:
    return Rewrite(text[:4])


@pytest.mark.spec("CHD-002")
async def test_a_child_inherits_guardrails_and_approver(world: World) -> None:
    """The parent's guardrails see the child's calls and results, and its approver decides about them."""
    done = Effects()
    asked: list[str] = []

    @tool(needs_approval=lambda arguments: arguments["what"] == "gated")
    async def look(what: str) -> str:
        done(what)
        return f"saw {what}"

    def approver(request: ToolCallRequest) -> bool:
        asked.append(f"{request.agent} {request.arguments['what']}")
        return False

    looks = calls(*(call("look", what=what) for what in ("secret", "gated", "plain")))
    sub = scripted("helper", looks, "done", tools=[look])
    rails = Guardrails(on_tool_call=block_secrets, on_tool_result=shorten)
    root = boss(sub, guardrails=rails, approve_tool_call=approver)
    result = await world.process(root).aio.run_embedded("boss", "go", run_id="r")
    assert result.status == "completed"
    assert done.done == {"plain": 1}
    assert asked == ["helper gated"]
    assert [text for text, is_error in told(sub) if not is_error] == ["saw "]


@pytest.mark.spec("CHD-002")
async def test_a_child_is_not_forked_away_from_those_who_guard_it(memory: World) -> None:
    """Alone it would do what a guardrail of its parent forbids; nothing is written. A fork of the parent is guarded as ever."""
    done = Effects()

    @tool
    async def look(what: str) -> str:
        done(what)
        return f"saw {what}"

    sub = scripted("helper", calls(call("look", what="secret")), "blocked", tools=[look])
    root = boss(sub, guardrails=Guardrails(on_tool_call=block_secrets))
    app = memory.process(root)
    assert (await app.aio.run_embedded("boss", "go", run_id="r")).status == "completed"
    with pytest.raises(ForkRefusedError, match="delegated by 'r'"):
        await app.aio.fork(ask("helper"), 0, new_run_id="f")
    assert await memory.store.head("default", "f") is None
    await app.aio.fork("r", 0, new_run_id="f")
    assert (await app.aio.resume_embedded("f")).status == "completed"
    assert done.done == {}


async def test_a_child_whose_parents_are_not_known_waits(memory: World) -> None:
    """Without them nobody could ask their guardrails: a process that has the child alone leaves it to others."""
    sub = scripted("helper", "yes")
    root = boss(sub, guardrails=Guardrails(on_tool_call=block_secrets))
    with pytest.raises(ProcessDied):
        await memory.dying(root, at=4).aio.run_embedded("boss", "go", run_id="r")
    result = await memory.process(scripted("helper", "yes")).aio.resume_embedded(ask("helper"))
    assert result.status == "failed"
    assert (await memory.head(ask("helper"))).revision == 0


@pytest.mark.spec("APR-017", "SUB-006", "SUB-009")
async def test_an_approval_of_a_child_is_asked_and_given_at_its_parent(world: World) -> None:
    """The parent's receipt is `suspended`, its sibling's outcome recorded; one resume of the parent settles both."""
    done = Effects()

    @tool
    async def note(text: str) -> str:
        done(text)
        return "noted"

    sub = gated(done)
    asks = calls(call("payer", prompt="pay ann"), call("note", text="once"))
    root = scripted("boss", asks, "done", tools=[sub, note])
    waiting = await world.process(root).aio.run_embedded("boss", "go", run_id="r")
    assert waiting.status == "suspended"
    [asked] = waiting.pending_approvals
    assert (asked.agent_path, asked.run_id, asked.tool_name) == (("boss", "payer"), ask("payer"), "pay")
    stages = {receipt.tool: receipt.stage for receipt in (await world.receipts("r")).values()}
    assert stages == {"payer": "suspended", "note": "completed"}
    again = await world.process(root).aio.resume_embedded("r")
    assert (again.status, again.pending_approvals) == ("suspended", waiting.pending_approvals)
    result = await world.process(root).aio.resume_embedded("r", approvals={asked.approval_id: True})
    assert (result.status, told(root)[0][0]) == ("completed", "paid")
    assert done.done == {"once": 1, f"{ask('payer')} ann": 1}


@pytest.mark.spec("RCP-009")
@pytest.mark.parametrize("at", [1, 3, 4])  # the second saves what the tool did, which nobody would know without it
async def test_a_suspended_receipt_is_gone_on_with_and_asks_nobody_to_reconcile(world: World, at: int) -> None:
    """Its run waits for a person, and a process that comes to it finds no unknown effect. One dies at a commit behind the
    verdict: the next goes on in the same run below, and what that did it did once."""
    done = Effects()
    root = boss(gated(done))
    waiting = await world.process(root).aio.run_embedded("boss", "go", run_id="r")
    found = await world.process(root).aio.resume_embedded("r")
    assert (found.status, found.reason, found.unknown_effects) == ("suspended", None, ())
    assert [receipt.stage for receipt in (await world.receipts("r")).values()] == ["suspended"]
    verdicts = {waiting.pending_approvals[0].approval_id: True}
    with contextlib.suppress(ProcessDied):
        await world.dying(root, at=at).aio.resume_embedded("r", approvals=verdicts)
    result = await world.process(root).aio.resume_embedded("r")
    assert (result.status, result.unknown_effects, told(root)) == ("completed", (), [("paid", False)])
    assert done.done == {f"{ask('payer')} ann": 1}


@pytest.mark.parametrize("way", ["retry", "retry-all", "reconcile", "resume-retry", "resume-reconcile"])
async def test_what_became_of_a_call_below_may_be_said_at_the_root(world: World, way: str) -> None:
    """As approvals are: the run whose call it is goes on, and the root with it; a name that fits no call is refused, with
    nothing written."""
    done = Effects()
    dies = [True]

    @tool
    async def send() -> str:
        done("sent")
        if dies:
            raise ProcessDied
        return "again"

    def root() -> Agent:
        return boss(scripted("mid", calls(call("helper", prompt="go")), "up", tools=[_sending(send)]))

    with pytest.raises(ProcessDied):
        await world.process(root()).aio.run_embedded("boss", "go", run_id="r")
    dies.clear()
    await world.later(60_000)
    waiting = await world.process(root()).aio.resume_embedded("r")
    [effect] = waiting.unknown_effects
    assert effect.agent_path == ("boss", "mid", "helper")
    app = world.process(root())
    handle = app.aio.handle("r")
    before = [(run.run_id, run.parked) for run in await world.store.tree("default", "r")]
    with pytest.raises(ReconciliationError, match="nobody"):
        await handle.retry(["nobody"])
    with pytest.raises(ReconciliationError, match="nobody"):
        await app.aio.resume_embedded("r", retry_tool_call_ids=["nobody"])
    assert [(run.run_id, run.parked) for run in await world.store.tree("default", "r")] == before
    said: dict[str, Any] = {}
    match way:
        case "retry":
            assert await handle.retry([effect.effect_id]) == (effect.tool_call_id,)
        case "retry-all":
            assert await handle.retry() == (effect.tool_call_id,)
        case "reconcile":
            await handle.reconcile({effect.tool_call_id: "found"})
        case "resume-retry":
            said = {"retry_tool_call_ids": [effect.effect_id]}
        case _:
            said = {"reconciled_tool_results": {effect.effect_id: "found"}}
    result = await app.aio.resume_embedded("r", **said)
    assert (result.status, result.output) == ("completed", "done")
    assert done.done == {"sent": 1 if "reconcile" in way else 2}


def _sending(send: Any) -> Agent:
    return scripted("helper", calls(call("send")), "sent", tools=[send])


@pytest.mark.parametrize("way", ["object", "id", "resume"])
async def test_three_levels_deep_under_two_agents_of_one_name(world: World, way: str) -> None:
    """Shown once at the root, each under its path; the answers reach the right child, and each call runs as it was told."""
    done = Effects()
    leaf = gated(done)
    mid = scripted("mid", calls(call("payer", prompt="pay")), "up", tools=[agent_tool(leaf, max_depth=3)])
    two = calls(call("mid", prompt="one"), call("mid", prompt="two"))
    root = scripted("boss", two, "done", tools=[mid])
    waiting = await world.process(root).aio.run_embedded("boss", "go", run_id="r")
    assert [asked.agent_path for asked in waiting.pending_approvals] == [("boss", "mid", "payer")] * 2
    assert len({asked.tool_call_id for asked in waiting.pending_approvals}) == 1
    assert len({asked.approval_id for asked in waiting.pending_approvals}) == 2
    first, second = waiting.pending_approvals
    app = world.process(root)
    if way == "resume":
        bare = await app.aio.resume_embedded("r", approvals={first.tool_call_id: True})
        assert (bare.status, len(bare.pending_approvals), done.done) == ("suspended", 2, {})
        half = await app.aio.resume_embedded("r", approvals={first.approval_id: True})
        assert (half.status, len(half.pending_approvals)) == ("suspended", 2)
        result = await app.aio.resume_embedded("r", approvals={first.approval_id: True, second.approval_id: False})
    else:
        handle = app.aio.handle("r")
        assert await handle.pending() == waiting.pending_approvals
        await handle.approve(first if way == "object" else first.approval_id)
        half = await world.process(root).aio.resume_embedded("r")
        assert [asked.approval_id for asked in half.pending_approvals] == [second.approval_id]
        await handle.deny(second if way == "object" else second.approval_id)
        result = await world.process(root).aio.resume_embedded("r")
    assert result.status == "completed"
    assert done.done == {f"{first.run_id} ann": 1}


async def test_client_calls_of_children_are_answered_at_the_root(world: World) -> None:
    """By the handle of the root, and by its resume."""
    page = client_tool("page", "Shows a page.", {"type": "object", "properties": {}})
    sub = scripted("helper", calls(call("page")), "shown", tools=[page])
    for way in ("handle", "resume"):
        root = boss(sub)
        waiting = await world.process(root).aio.run_embedded("boss", "go", run_id=way)
        [asked] = waiting.pending_client_calls
        assert asked.agent_path == ("boss", "helper")
        app = world.process(root)
        if way == "handle":
            await app.aio.handle(way).answer(asked, {"seen": True})
            result = await app.aio.resume_embedded(way)
        else:
            result = await app.aio.resume_embedded(way, client_tool_results={"call_1_1": {"seen": True}})
        assert result.status == "completed"


async def test_cancelling_the_root_cancels_the_tree(world: World) -> None:
    """Every run below ends as cancelled, whatever it waited for; no revision of theirs was moved by others."""
    done = Effects()
    mid = scripted("mid", calls(call("payer", prompt="pay")), "up", tools=[gated(done)])
    root = boss(mid, gated(done, name="second"))
    await world.process(root).aio.run_embedded("boss", "go", run_id="r")
    app = world.process(root)
    await app.aio.handle("r").cancel("no more")
    result = await app.aio.resume_embedded("r")
    assert (result.status, result.reason) == ("stopped", "aborted")
    page = await app.aio.list_runs()
    assert {head.run_id.rpartition("/")[2]: (head.status, head.due_in_ms) for head in page.heads} == {
        "r": ("stopped", None),
        "mid:1:call_1_1": ("stopped", None),
        "payer:1:call_1_1": ("stopped", None),
        "second:1:call_1_2": ("stopped", None),
    }
    assert done.done == {}


@pytest.mark.spec("SUB-004")
@pytest.mark.parametrize("stream", ["all", "none"])
async def test_a_reader_of_the_root_sees_what_happens_below(memory: World, stream: Any) -> None:
    """Once, under the path of the agents; with `none` the result alone."""
    leaf = scripted("leaf", "deep words")
    mid = scripted("mid", calls(call("leaf", prompt="go")), "up", tools=[leaf])
    root = scripted("boss", calls(call("mid", prompt="go")), "done", tools=[agent_tool(mid, stream=stream)])
    streamed = memory.process(root).aio.stream_embedded("boss", "go", run_id="r")
    seen = [event async for event in streamed.events]
    below = [event.part for event in seen if isinstance(event, PartEvent) and isinstance(event.part, SubAgentPart)]
    texts: dict[tuple[str, ...], str] = {}
    for part in below:
        if isinstance(part.event, PartEvent) and isinstance(part.event.part, TextDelta):
            texts[part.agent_path] = texts.get(part.agent_path, "") + part.event.part.text
    assert texts == ({("boss", "mid", "leaf"): "deep words", ("boss", "mid"): "up"} if stream == "all" else {})
    assert [event.tool_name for event in seen if event.type == "tool-output"] == ["mid"]
    assert (await streamed.result).status == "completed"


async def test_an_application_has_the_agents_that_its_agents_delegate_to() -> None:
    """Each once; two of one name are refused, and so is what cannot be meant of a tool."""
    sub = scripted("helper", "yes")
    one, two = scripted("one", "x", tools=[sub]), scripted("two", "x", tools=[sub.as_tool(name="ask")])
    assert list(Deuz([one, two]).agents) == ["one", "two", "helper"]
    assert list(Deuz([one, sub]).agents) == ["one", "helper"]
    with pytest.raises(ConfigurationError, match="another one of that"):
        Deuz([one, scripted("three", "x", tools=[scripted("helper", "no")])])
    for options in ({"max_depth": 0}, {"stream": "some"}, {"name": "a b"}, {"budget": Budget()}):
        with pytest.raises(ConfigurationError):
            sub.as_tool(**options)


async def test_children_run_side_by_side(memory: World) -> None:
    """Three that wait for each other all come to their ends."""
    together = asyncio.Barrier(3)

    @tool
    async def meet() -> str:
        await together.wait()
        return "met"

    sub = scripted("helper", calls(call("meet")), "done", tools=[meet])
    root = scripted("boss", calls(*(call("helper", prompt=str(n)) for n in range(3))), "done", tools=[sub])
    assert (await memory.process(root).aio.run_embedded("boss", "go", run_id="r")).status == "completed"


@pytest.mark.spec("SUB-008")
async def test_a_context_for_a_delegating_tool_is_refused(memory: World) -> None:
    """Before any call of a model; children make their own."""
    sub = scripted("helper", "yes")
    root = boss(sub)
    with pytest.raises(ConfigurationError, match="helper"):
        await memory.process(root).aio.run_embedded("boss", "go", run_id="r", tools_context={"helper": 1})
    assert requests(root) == []
    assert await memory.store.head("default", "r") is None
