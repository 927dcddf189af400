"""Calls that wait for people: what is asked, who may answer, and what reaches which call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from deuz_workers import (
    Agent,
    AnswerConflictError,
    AnswerRefusedError,
    Approval,
    MockModel,
    StepInfo,
    StepPlan,
    ToolCallRequest,
    ToolContext,
    tool,
)
from deuz_workers.core.change import Applied
from deuz_workers.core.codec import decode, encode
from deuz_workers.core.messages import assistant, user
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from deuz_workers.testing.store_conformance_bench import change_from
from tests.app.world import Effects, World

DAY_MS = 86_400_000


def paying(
    done: Effects,
    *script: Entry,
    needs_approval: bool | Approval | Any = True,
    name: str = "x",
    approver: Any = None,
    prepare_step: Any = None,
) -> Agent:
    """Has one gated tool; by default it pays three people in one turn."""

    @tool(needs_approval=needs_approval)
    async def pay(to: str, amount: int = 1) -> str:
        done(f"{to}:{amount}")
        return f"paid {amount} to {to}"

    three = calls(*(call("pay", to=to).with_id(to) for to in ("ann", "bob", "cid")))
    model = MockModel(list(script) or [three, "done"])
    return Agent(name, model=model, tools=[pay], approve_tool_call=approver, prepare_step=prepare_step)


def told(agent: Agent) -> list[str]:
    """Results of calls in the newest request."""
    model = agent.model
    assert isinstance(model, MockModel)
    return [part.text for message in model.requests[-1].messages for part in message.tool_results]


def requests(agent: Agent) -> int:
    model = agent.model
    assert isinstance(model, MockModel)
    return len(model.requests)


@pytest.mark.spec("FR-17", "FR-23")
async def test_three_answers_in_reverse_order_on_three_days(world: World) -> None:
    """Each reaches its call, whatever the order and however long it took."""
    done = Effects()
    waiting = await world.process(paying(done)).aio.run_embedded("x", "go", run_id="r")
    ann, bob, cid = waiting.pending_approvals
    await world.later(DAY_MS)
    await world.process(paying(done)).aio.handle("r").approve(cid, "fine")
    await world.later(DAY_MS)
    await world.process(paying(done)).aio.handle("r").deny(bob, "not bob")
    await world.later(DAY_MS)
    await world.process(paying(done)).aio.handle("r").approve(ann, arguments={"to": "ann", "amount": 7})
    assert (await world.process(agent := paying(done)).aio.resume_embedded("r")).status == "completed"
    assert done.done == {"ann:7": 1, "cid:1": 1}
    assert told(agent) == ["paid 7 to ann", "Tool call denied. Reason: not bob", "paid 1 to cid"]


@pytest.mark.spec("FR-21")
async def test_of_twenty_answers_at_once_one_wins(world: World) -> None:
    """Ten approve and ten deny one request: one is stored, nineteen are told which."""
    done = Effects()
    app = world.process(paying(done, calls(call("pay", to="ann")), "done"))
    [waiting] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    handles = [world.process(paying(done)).aio.handle("r") for _ in range(20)]
    asked = [
        (handle.approve if n % 2 else handle.deny)(waiting, f"said {n}", by=f"person {n}") for n, handle in enumerate(handles)
    ]
    ends = await asyncio.gather(*asked, return_exceptions=True)
    [won] = [n for n, end in enumerate(ends) if not isinstance(end, BaseException)]
    lost = [end for end in ends if isinstance(end, AnswerConflictError)]
    assert len(lost) == 19
    winner = {"approved": bool(won % 2), "reason": f"said {won}", "by": f"person {won}"}
    assert [error.winner for error in lost] == [winner] * 19
    assert {error.code for error in lost} == {"already_answered"}
    assert (await app.aio.resume_embedded("r")).status == "completed"
    assert done.done == ({"ann:1": 1} if won % 2 else {})


async def test_verdicts_that_were_stored_need_nobody_who_remembers_them(world: World) -> None:
    """Stored with the answer that wakes the run, nobody was rung: another process goes on with them."""
    done = Effects()
    app = world.process(paying(done))
    waiting = await app.aio.run_embedded("x", "go", run_id="r")
    for item in waiting.pending_approvals:
        await world.store.answer_item("default", "r", item.approval_id, '{"approved":true}')  # nobody is rung
    assert (await world.head("r")).has_work
    other = world.process(paying(done))
    async with asyncio.timeout(20):
        from deuz_workers.app.embedded import driver

        async with driver(other) as driving:
            await driving.drive([("default", "r")])
    assert (await world.head("r")).status == "completed"
    assert done.done == {"ann:1": 1, "bob:1": 1, "cid:1": 1}


@pytest.mark.spec("APR-019", "APR-014")
async def test_an_answer_that_is_not_bound_to_the_call_counts_for_nothing(world: World) -> None:
    """An item of another digest, written past the door, releases no call: the lease holder compares it again."""
    done = Effects()
    app = world.process(paying(done, calls(call("pay", to="ann").with_id("ann")), "done"))
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    loaded = await world.loaded("r")
    forged = replace(loaded.items[0], digest="0" * 64)
    from deuz_workers.core.run import read_run
    from deuz_workers.engine.taken_answers import take_answers

    run = read_run(loaded.head, loaded.messages, loaded.receipts)
    answered = [replace(item, answer='{"approved":true}') for item in (forged, loaded.items[0])]
    [refused] = take_answers(answered[:1], run, {}, None)
    [taken] = take_answers(answered[1:], run, {}, None)
    assert getattr(refused, "verdicts") == {}  # noqa: B009
    assert getattr(taken, "verdicts") == {"ann": {"approved": True}}  # noqa: B009
    assert asked.tool_call_id == "ann"


@pytest.mark.spec("APR-014")
async def test_unknown_ids_release_nothing_and_deny_nothing(world: World) -> None:
    """A resume with verdicts for what does not wait takes those that do, and the door refuses with what is pending."""
    done = Effects()
    app = world.process(paying(done, calls(call("pay", to="ann").with_id("ann")), "done"))
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    with pytest.raises(AnswerRefusedError, match=asked.approval_id) as caught:
        await app.aio.handle("r").approve("nobody@0123456789abcdef")
    assert (caught.value.code, caught.value.fields["part"]) == ("unknown_item", "call")
    alone = await app.aio.resume_embedded("r", approvals={"nobody@0123456789abcdef": True})
    assert (alone.status, done.done) == ("suspended", {})
    result = await app.aio.resume_embedded("r", approvals={"nobody@0": False, asked.approval_id: True})
    assert (result.status, done.done) == ("completed", {"ann:1": 1})


@pytest.mark.spec("APR-006", "APR-007")
async def test_a_verdict_of_an_earlier_turn_does_not_release_a_later_call(world: World) -> None:
    """A provider that always sends `tool_0`: neither the old approval id nor the bare call id lets the second call run."""
    done = Effects()
    script = [calls(call("pay", to=to).with_id("tool_0")) for to in ("ann", "bob")]
    app = world.process(agent := paying(done, *script, "done"))
    [first] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    waiting = await app.aio.resume_embedded("r", approvals={"tool_0": True})
    assert (waiting.status, done.done) == ("suspended", {"ann:1": 1})
    [second] = waiting.pending_approvals
    assert second.approval_id != first.approval_id
    before = await world.head("r")
    for old in (first.approval_id, "tool_0"):
        again = await app.aio.resume_embedded("r", approvals={old: True})
        assert (again.status, again.pending_approvals) == ("suspended", (second,))
    with pytest.raises(AnswerConflictError):
        await app.aio.handle("r").approve(first.approval_id)
    with pytest.raises(AnswerRefusedError, match="more than once") as caught:
        await app.aio.handle("r").approve("tool_0")
    assert caught.value.fields["part"] == "call"
    assert await world.head("r") == replace(before, due_in_ms=None)
    assert (done.done, requests(agent)) == ({"ann:1": 1}, 2)
    assert (await app.aio.resume_embedded("r", approvals={second.approval_id: True})).status == "completed"
    assert done.done == {"ann:1": 1, "bob:1": 1}


@pytest.mark.spec("APR-008")
async def test_a_rewritten_history_does_not_make_an_id_unique(world: World) -> None:
    """`prepare_step` cut the first call of that id away; the record knows that it was asked for twice."""
    done = Effects()

    def prepare(info: StepInfo) -> StepPlan | None:
        return StepPlan(messages=[user("go"), assistant("one is paid"), user("next")]) if info.step == 2 else None

    script = [calls(call("pay", to=to).with_id("tool_0")) for to in ("ann", "bob")]
    app = world.process(paying(done, *script, "done", prepare_step=prepare))
    [first] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    waiting = await app.aio.resume_embedded("r", approvals={first.approval_id: True})
    [second] = waiting.pending_approvals
    assert [use.call_id for message in waiting.messages for use in message.tool_uses] == ["tool_0"]
    again = await app.aio.resume_embedded("r", approvals={"tool_0": True})
    assert (again.status, again.pending_approvals, done.done) == ("suspended", (second,), {"ann:1": 1})
    with pytest.raises(AnswerRefusedError, match="more than once"):
        await app.aio.handle("r").approve("tool_0")
    assert (await app.aio.resume_embedded("r", approvals={second.approval_id: True})).status == "completed"
    assert done.done == {"ann:1": 1, "bob:1": 1}


@pytest.mark.spec("APR-007")
async def test_the_bare_id_of_a_call_counts_while_the_run_used_it_once(world: World) -> None:
    """Through a resume and through the door."""
    done = Effects()
    script = [calls(call("pay", to=to).with_id(to)) for to in ("ann", "bob")]
    app = world.process(paying(done, *script, "done"))
    await app.aio.run_embedded("x", "go", run_id="r")
    assert (await app.aio.resume_embedded("r", approvals={"ann": True})).status == "suspended"
    assert (await app.aio.handle("r").approve("bob")).open_items == 0
    assert (await app.aio.resume_embedded("r")).status == "completed"
    assert done.done == {"ann:1": 1, "bob:1": 1}


@pytest.mark.spec("FR-19")
async def test_a_verdict_does_not_live_in_what_the_application_made(world: World) -> None:
    """Approved under one `deps`, resumed with another: the decision comes from the store, and nobody is asked again."""
    seen: list[object] = []

    def agent(deps: object) -> Agent:
        @tool(needs_approval=True)
        async def pay(to: str, context: ToolContext) -> str:
            seen.append(context.deps)
            return f"paid {to}"

        return Agent("x", model=MockModel([calls(call("pay", to="ann")), "done"]), tools=[pay], deps=deps)

    first = world.process(agent("first"))
    [asked] = (await first.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    await first.aio.handle("r").approve(asked)
    result = await world.process(agent("second")).aio.resume_embedded("r")
    assert (result.status, seen) == ("completed", ["second"])


@pytest.mark.spec("APR-001", "APR-002")
@pytest.mark.parametrize("gate", ["always", "predicate", "raises"])
async def test_a_gated_call_is_asked_for_before_it_runs(world: World, gate: str) -> None:
    """By a flag, by a predicate on the converted arguments, and where the predicate raises: suspended, and nothing ran."""
    done = Effects()

    def raises(arguments: Mapping[str, Any]) -> bool:
        raise KeyError("oops")

    def of_one(arguments: Mapping[str, Any]) -> bool:
        return arguments["amount"] == 1

    gates: dict[str, Any] = {"always": True, "predicate": of_one, "raises": raises}
    script = (calls(call("pay", to="ann").with_id("a")), "done")
    app = world.process(agent := paying(done, *script, needs_approval=gates[gate]))
    waiting = await app.aio.run_embedded("x", "go", run_id="r")
    assert (waiting.status, done.done, requests(agent)) == ("suspended", {}, 1)
    assert [asked.tool_call_id for asked in waiting.pending_approvals] == ["a"]
    assert await world.receipts("r") == {}


@pytest.mark.spec("APR-003")
@pytest.mark.parametrize("kind", ["coroutine", "function"])
async def test_an_approver_of_the_agents_decides_at_once(world: World, kind: str) -> None:
    """A false verdict and an exception deny, True lets the call run; the run is never suspended, and nothing is asked."""
    done = Effects()
    seen: list[ToolCallRequest] = []

    def decide(request: ToolCallRequest) -> bool:
        seen.append(request)
        if request.arguments["to"] == "bob":
            raise ValueError("who is bob?")
        return request.arguments["to"] == "ann"

    async def decide_later(request: ToolCallRequest) -> bool:
        return decide(request)

    app = world.process(agent := paying(done, approver=decide_later if kind == "coroutine" else decide))
    result = await app.aio.run_embedded("x", "go", run_id="r")
    assert (result.status, done.done) == ("completed", {"ann:1": 1})
    texts = told(agent)
    assert texts[0] == "paid 1 to ann"
    assert all(text.startswith("Tool call denied. Reason: ") for text in texts[1:])
    assert [(request.tool_call_id, request.step, request.run_id) for request in seen] == [
        ("ann", 1, "r"),
        ("bob", 1, "r"),
        ("cid", 1, "r"),
    ]


@pytest.mark.spec("APR-011")
async def test_denials_do_not_stop_a_run(world: World) -> None:
    """Three turns in a row are denied, and the run goes on to its answer."""
    done = Effects()
    script = [calls(call("pay", to="ann").with_id(f"c{n}")) for n in range(3)]
    app = world.process(paying(done, *script, "done"))
    result = await app.aio.run_embedded("x", "go", run_id="r")
    for _ in range(3):
        [asked] = result.pending_approvals
        result = await app.aio.resume_embedded("r", approvals={asked.approval_id: {"approved": False, "reason": "no"}})
    assert (result.status, result.output, done.done) == ("completed", "done", {})


@pytest.mark.spec("APR-013")
async def test_a_verdict_on_a_call_that_has_ended_has_no_influence(world: World) -> None:
    """The receipt says how it ended; a later denial changes nothing and is warned about, once."""
    done = Effects()
    script = (calls(call("pay", to="ann").with_id("ann")), "done")
    [asked] = (await world.process(paying(done, *script)).aio.run_embedded("x", "go", run_id="r")).pending_approvals
    with pytest.raises(ProcessDied):  # before the next model call, when the receipt of the call is saved
        await world.dying(paying(done, *script), at=3).aio.resume_embedded("r", approvals={asked.approval_id: True})
    receipts = await world.receipts("r")
    app = world.process(later := paying(done, *script))
    result = await app.aio.resume_embedded("r", approvals={asked.approval_id: False})
    assert (result.status, done.done, told(later)) == ("completed", {"ann:1": 1}, ["paid 1 to ann"])
    assert [(warning.setting, "'ann'" in warning.message) for warning in result.warnings] == [("approvalResponses", True)]
    assert (await world.receipts("r"))[1, "ann"].value == receipts[1, "ann"].value


@pytest.mark.spec("APR-021")
@pytest.mark.parametrize("at", range(1, 6))
async def test_a_death_in_the_middle_of_a_settle_asks_nobody_again(world: World, at: int) -> None:
    """Wherever the process dies between two approved calls, the next one goes on without a verdict: nothing is denied."""
    done = Effects()

    def agent() -> Agent:
        @tool(needs_approval=True, replay="idempotent")
        async def pay(to: str, context: ToolContext) -> str:
            done.done[context.idempotency_key] = 1
            return f"paid {to}"

        model = MockModel([calls(*(call("pay", to=to).with_id(to) for to in ("ann", "bob", "cid"))), "done"])
        return Agent("x", model=model, tools=[pay])

    waiting = await world.process(agent()).aio.run_embedded("x", "go", run_id="r")
    verdicts = {asked.approval_id: True for asked in waiting.pending_approvals}
    with pytest.raises(ProcessDied):
        await world.dying(agent(), at=at).aio.resume_embedded("r", approvals=verdicts)
    await world.later(60_000)
    assert (await world.process(agent()).aio.resume_embedded("r")).status == "completed"
    assert sorted(done.done) == ["r/1/ann", "r/1/bob", "r/1/cid"]
    answered = (await world.process(agent()).aio.resume_embedded("r")).messages
    texts = [part.text for message in answered for part in message.tool_results]
    assert texts == ["paid ann", "paid bob", "paid cid"]


@pytest.mark.spec("APR-020")
async def test_a_predicate_and_a_record_of_verdicts(world: World) -> None:
    """Only what the predicate names waits; verdicts built from `pending_approvals` alone approve and deny."""
    done = Effects()

    def large(arguments: Mapping[str, Any]) -> bool:
        return arguments["amount"] > 100

    batch = calls(call("pay", to="ann", amount=101).with_id("a"), call("pay", to="bob", amount=500).with_id("b"))
    app = world.process(agent := paying(done, calls(call("pay", to="zoe")), batch, "done", needs_approval=large))
    waiting = await app.aio.run_embedded("x", "go", run_id="r")
    assert (waiting.status, done.done) == ("suspended", {"zoe:1": 1})
    verdicts = [
        {
            "approval_id": asked.approval_id,
            "approved": asked.arguments["to"] == "ann",
            "reason": "by size",
            "token": asked.token,
        }
        for asked in waiting.pending_approvals
    ]
    result = await app.aio.resume_embedded("r", approvals=verdicts)
    assert (result.status, done.done) == ("completed", {"zoe:1": 1, "ann:101": 1})
    assert told(agent)[-1] == "Tool call denied. Reason: by size"


async def test_an_approval_may_edit_the_arguments(world: World) -> None:
    """The call runs with those, once, also after a death; both digests are recorded, the history keeps what was asked for."""
    done = Effects()
    script = (calls(call("pay", to="ann", amount=900).with_id("ann")), "done")
    app = world.process(paying(done, *script))
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    await app.aio.handle("r").approve(asked, "less", by="boss", arguments={"to": "ann", "amount": 9})
    [stored] = (await world.loaded("r")).items
    answer = decode(stored.answer or "")
    assert isinstance(answer, dict)
    assert (answer["asked_digest"], answer["by"]) == (stored.digest, "boss")
    assert answer["digest"] != stored.digest
    with pytest.raises(ProcessDied):
        await world.dying(paying(done, *script), at=1).aio.resume_embedded("r")
    result = await world.process(later := paying(done, *script)).aio.resume_embedded("r")
    assert (result.status, done.done, told(later)) == ("completed", {"ann:9": 1}, ["paid 9 to ann"])
    assert [part.arguments for message in result.messages for part in message.tool_uses] == [{"to": "ann", "amount": 900}]
    events = [event async for event in app.aio.handle("r").events(follow=False)]
    [approved] = [event.data for event in events if event.type == "call.approved"]
    assert (approved["by"], approved["edited_to"]) == ("boss", answer["digest"])


async def test_edited_arguments_are_checked_like_the_models(world: World) -> None:
    """Refused by a door that knows the agent; past one that does not, they are not run, and the model reads why."""
    done = Effects()
    app = world.process(agent := paying(done, calls(call("pay", to="ann").with_id("ann")), "done"))
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    before = await world.loaded("r")
    with pytest.raises(AnswerRefusedError, match="amount") as caught:
        await app.aio.handle("r").approve(asked, arguments={"to": "ann", "amount": "much"})
    assert caught.value.fields["part"] == "arguments"
    assert await world.loaded("r") == before
    await world.process().aio.handle("r").approve(asked, arguments={"to": "ann", "amount": "much"})
    assert (await app.aio.resume_embedded("r")).status == "completed"
    assert (done.done, "amount" in told(agent)[0]) == ({}, True)


async def test_several_people_have_to_approve(world: World) -> None:
    """Two of three: each counts once, strangers are refused, and the call runs after the second."""
    done = Effects()
    terms = Approval(people=("ann", "bob", "cid"), needed=2)
    app = world.process(paying(done, calls(call("pay", to="zoe")), "done", needs_approval=terms))
    await app.aio.run_embedded("x", "go", run_id="r")
    handle = app.aio.handle("r")
    [asked] = await handle.pending()
    assert (asked.people, asked.needed, asked.approved_by) == (("ann", "bob", "cid"), 2, ())
    for stranger in (None, "eve"):
        with pytest.raises(AnswerRefusedError, match="one of ann, bob, cid") as caught:
            await handle.approve(asked, by=stranger)
        assert caught.value.fields["part"] == "person"
    assert (await handle.approve(asked, by="ann")).still_needed == 1
    assert (await handle.approve(asked, by="ann")).still_needed == 1
    assert [item.approved_by for item in await handle.pending()] == [("ann",)]
    assert (await app.aio.resume_embedded("r", approvals={asked.approval_id: True})).status == "suspended"
    last = await handle.approve(asked, by="cid")
    assert (last.still_needed, last.open_items) == (0, 0)
    assert (await app.aio.resume_embedded("r")).status == "completed"
    assert done.done == {"zoe:1": 1}


async def test_of_people_who_approve_at_once_every_vote_counts(world: World) -> None:
    """Five votes at the same moment, five needed: each is counted, and the last one answers the item."""
    done = Effects()
    people = tuple(f"p{n}" for n in range(5))
    terms = Approval(people=people, needed=5)
    app = world.process(paying(done, calls(call("pay", to="zoe")), "done", needs_approval=terms))
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    votes = (world.process(paying(done)).aio.handle("r").approve(asked, by=name) for name in people)
    answers = await asyncio.gather(*votes)
    assert Counter(answer.still_needed for answer in answers) == Counter(range(5))
    [stored] = (await world.loaded("r")).items
    answer = decode(stored.answer or "")
    assert isinstance(answer, dict)
    assert sorted(answer["people"]) == list(people)
    assert (await app.aio.resume_embedded("r")).status == "completed"
    assert done.done == {"zoe:1": 1}


async def test_one_denial_is_enough_and_agreement_is_to_the_same_arguments(world: World) -> None:
    """Who approves after an edit agrees to it; a denial of one person denies the call."""
    done = Effects()
    terms = Approval(needed=2)
    app = world.process(agent := paying(done, calls(call("pay", to="zoe")), "done", needs_approval=terms))
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    handle = app.aio.handle("r")
    await handle.approve(asked, by="ann", arguments={"to": "zoe", "amount": 2})
    with pytest.raises(AnswerRefusedError, match="other arguments") as caught:
        await handle.approve(asked, by="bob")
    assert caught.value.fields["part"] == "arguments"
    assert (await handle.deny(asked, "no", by="bob")).open_items == 0
    assert (await app.aio.resume_embedded("r")).status == "completed"
    assert (done.done, told(agent)) == ({}, ["Tool call denied. Reason: no"])


@pytest.mark.spec("FR-23")
async def test_a_request_that_expired_counts_as_denied(world: World) -> None:
    """Nobody needs to come for it: at its time the run goes on by itself, and later answers are refused."""
    done = Effects()
    terms = Approval(expires_in_ms=DAY_MS, remind_in_ms=DAY_MS // 2, assignee="ann", escalate_to="bob")
    app = world.process(agent := paying(done, calls(call("pay", to="zoe")), "done", needs_approval=terms))
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    assert (asked.assignee, asked.escalate_to) == ("ann", "bob")
    assert asked.expires_in_ms is not None
    assert asked.remind_in_ms is not None
    assert 0 < asked.remind_in_ms <= DAY_MS // 2 < asked.expires_in_ms <= DAY_MS
    assert not (await world.head("r")).has_work
    assert await world.store.sweep(limit=10, ttl_ms=1_000) == ()
    await world.later(DAY_MS + 1)
    assert [bell.run_id for bell in await world.store.sweep(limit=10, ttl_ms=1_000)] == ["r"]
    assert (await world.head("r")).has_work
    with pytest.raises(AnswerRefusedError, match="expired") as caught:
        await app.aio.handle("r").approve(asked)
    assert caught.value.fields["part"] == "time"
    result = await app.aio.resume_embedded("r")
    assert (result.status, done.done) == ("completed", {})
    assert told(agent) == ["Tool call denied. Reason: The approval request expired."]


async def test_what_expires_leaves_the_others_waiting(world: World) -> None:
    """One of two requests expires: the run waits on for the other, looks at nothing meanwhile, and answers both in order."""
    done = Effects()

    def agent() -> Agent:
        @tool(needs_approval=Approval(expires_in_ms=DAY_MS))
        async def soon() -> str:
            done("soon")
            return "soon done"

        @tool(needs_approval=True)
        async def ever() -> str:
            done("ever")
            return "ever done"

        return Agent("x", model=MockModel([calls(call("soon"), call("ever")), "done"]), tools=[soon, ever])

    app = world.process(made := agent())
    await app.aio.run_embedded("x", "go", run_id="r")
    await world.later(DAY_MS + 1)
    waiting = await app.aio.resume_embedded("r")
    assert waiting.status == "suspended"
    [asked] = waiting.pending_approvals
    assert asked.tool_name == "ever"
    head = await world.head("r")
    assert (head.has_work, head.due_in_ms, head.open_items) == (False, None, 1)
    await app.aio.handle("r").approve(asked)
    assert (await app.aio.resume_embedded("r")).status == "completed"
    assert (done.done, told(made)) == ({"ever": 1}, ["Tool call denied. Reason: The approval request expired.", "ever done"])


async def test_a_refused_answer_names_the_part_and_writes_nothing(world: World) -> None:
    """Run, step, call, tool and arguments: whatever a shown request says that is not what waits."""
    done = Effects()
    app = world.process(paying(done, calls(call("pay", to="ann").with_id("ann")), "done"))
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    handle = app.aio.handle("r")
    before = await world.loaded("r")
    for part, given in (
        ("run", replace(asked, run_id="other")),
        ("step", replace(asked, step=2)),
        ("call", replace(asked, tool_call_id="bob")),
        ("tool", replace(asked, tool_name="refund")),
        ("arguments", replace(asked, arguments={"to": "eve"})),
        ("arguments", "ann@0000000000000000"),
        ("call", "bob@0000000000000000"),
    ):
        for answer in (handle.approve, handle.deny):
            with pytest.raises(AnswerRefusedError) as caught:
                await answer(given)
            assert caught.value.fields["part"] == part
    with pytest.raises(AnswerRefusedError, match="another kind") as caught:
        await handle.answer(asked.approval_id, "paid")
    assert caught.value.fields["part"] == "kind"
    after = await world.loaded("r")
    assert (after.head, after.items) == (before.head, before.items)


async def test_an_approval_of_another_turn_is_told_by_its_turn(world: World) -> None:
    """The id that this call had in turn 1 is refused in turn 2 as another step's."""
    done = Effects()
    script = [calls(call("pay", to="ann").with_id("tool_0"))] * 2
    app = world.process(paying(done, *script, "done"))
    [first] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    from deuz_workers.core.pending_item import CallBinding

    never_asked = CallBinding("approval", "r", 2, "tool_0", "pay", {"to": "ann"}).item_id
    with pytest.raises(AnswerRefusedError) as caught:
        await app.aio.handle("r").approve(never_asked)
    assert caught.value.fields["part"] == "arguments"
    await app.aio.resume_embedded("r", approvals={first.approval_id: True})
    [second] = await app.aio.handle("r").pending()
    assert second.approval_id == never_asked
    with pytest.raises(AnswerConflictError):  # it had an answer of its own
        await app.aio.handle("r").approve(first.approval_id)


@pytest.mark.parametrize("name", ["", " ", "ann ", "a\0nn", "ann\n", "\ud800", 5, True, [], {}])
async def test_nobody_approves_under_what_is_no_name(world: World, name: Any) -> None:
    """Else one person would be two: an empty name beside a blank one, a name beside itself with a space."""
    done = Effects()
    made = paying(done, calls(call("pay", to="ann")), "done", needs_approval=Approval(needed=2))
    [asked] = (await world.process(made).aio.run_embedded("x", "go", run_id="r")).pending_approvals
    handle = world.process(made).aio.handle("r")
    assert (await handle.approve(asked, by="ann")).still_needed == 1
    for answer in (handle.approve(asked, by=name), handle.deny(asked, by=name)):
        with pytest.raises(AnswerRefusedError) as refused:
            await answer
        assert refused.value.fields["part"] == "person"
    wrong: Any = {"not": "text"}
    with pytest.raises(AnswerRefusedError, match="reason"):
        await handle.approve(asked, wrong, by="bob")
    assert (done.done, await handle.status()) == ({}, "suspended")


@pytest.mark.spec("APR-012")
@pytest.mark.parametrize(
    ("verdict", "runs", "told"),
    [
        (None, False, "Tool call denied. Reason: No approval response."),
        (True, True, "paid"),
        ({"approved": True, "by": "eve"}, True, "paid"),
        ({"approved": False, "reason": "too much"}, False, "Tool call denied. Reason: too much"),
    ],
    ids=str,
)
@pytest.mark.parametrize("named", ["request", "call"])
async def test_a_gated_call_of_a_turn_that_was_taken_up_without_a_verdict(
    world: World, verdict: Any, runs: bool, told: str, named: str
) -> None:
    """The stored turn is being settled and holds no verdict on its call: nobody is asked a second time, so without one it is
    denied; a resume that brings one is heard, once."""
    done = Effects()

    def made() -> Agent:
        @tool(needs_approval=True)
        async def pay() -> str:
            done("pay")
            return "paid"

        return Agent("x", model=MockModel([calls(call("pay").with_id("p")), "done"]), tools=[pay])

    [asked] = (await world.process(made()).aio.run_embedded("x", "go", run_id="r")).pending_approvals
    head = await world.head("r")
    body = dict(cast(Mapping[str, Any], decode(head.body)))
    checkpoint = {**body["checkpoint"], "taken_up": True}
    change = change_from(head, status="running", model_step=1, body=encode({**body, "checkpoint": checkpoint}), due_in_ms=0)
    assert isinstance(await world.store.commit(change), Applied)
    approvals = {} if verdict is None else {asked.approval_id if named == "request" else "p": verdict}
    result = await world.process(made()).aio.resume_embedded("r", approvals=approvals)
    assert (result.status, result.pending_approvals, done.done) == ("completed", (), {"pay": 1} if runs else {})
    [part] = [part for message in result.messages for part in message.tool_results]
    assert (part.text, part.outcome) == (told, None if runs else "denied")


@pytest.mark.parametrize(("terms", "runs"), [(Approval(people=("ann",)), False), (False, True)], ids=str)
async def test_a_late_verdict_counts_where_the_gate_asks(memory: World, terms: bool | Approval, runs: bool) -> None:
    """By somebody who may not give it, it lets nothing run; on a call that needs nobody, it denies nothing."""
    done = Effects()

    @tool(needs_approval=True)
    async def pay() -> str:
        done("pay")
        return "paid"

    @tool(needs_approval=terms)
    async def wire() -> str:
        done("wire")
        return "wired"

    script = [calls(call("pay").with_id("p"), call("wire").with_id("w")), "done"]
    agent = Agent("x", model=MockModel(script), tools=[pay, wire])
    await memory.process(agent).aio.run_embedded("x", "go", run_id="r")
    head = await memory.head("r")
    body = dict(cast(Mapping[str, Any], decode(head.body)))
    checkpoint = {**body["checkpoint"], "taken_up": True}
    change = change_from(head, status="running", model_step=1, body=encode({**body, "checkpoint": checkpoint}), due_in_ms=0)
    assert isinstance(await memory.store.commit(change), Applied)
    verdicts: Any = {"p": True, "w": {"approved": not runs, "by": "mallory"}}
    result = await memory.process(agent).aio.resume_embedded("r", approvals=verdicts)
    assert (result.status, done.done) == ("completed", {"pay": 1} | ({"wire": 1} if runs else {}))
