"""What a resume checks, keeps and leaves alone; how it settles the open calls of a turn before the next model call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deuz_workers import (
    Agent,
    AnswerRefusedError,
    ConfigurationError,
    MockModel,
    RunNotFoundError,
    ScopeMismatchError,
    reconcile_agent_run,
    resume_agent,
    run_agent,
    tool,
)
from deuz_workers.app.embedded import driver
from deuz_workers.core.approval_token import DENIAL, ApprovalSigner
from deuz_workers.core.codec import encode
from deuz_workers.core.envelope import AgentRunEnvelope, encode_body
from deuz_workers.ports.store import NewRun
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import Effects, World

SENTENCE = "Native checkpoint version, identity, or scope mismatch."


def paying(done: Effects, *script: Entry, binding_id: str = "1") -> Agent:
    """Pays behind a gate."""

    @tool(needs_approval=True)
    async def pay(to: str) -> str:
        done(to)
        return f"paid {to}"

    made = list(script) or [calls(call("pay", to="ann").with_id("a")), "done"]
    return Agent("x", model=MockModel(made), tools=[pay], binding_id=binding_id)


def told(agent: Agent) -> list[str]:
    assert isinstance(agent.model, MockModel)
    return [part.text for message in agent.model.requests[-1].messages for part in message.tool_results]


def requests(agent: Agent) -> int:
    assert isinstance(agent.model, MockModel)
    return len(agent.model.requests)


@pytest.mark.spec("RSM-005")
@pytest.mark.parametrize("refusal", ["version", "identity", "scope", "binding", "reconciliation"])
async def test_whatever_refuses_a_resume_writes_nothing(world: World, refusal: str) -> None:
    """Another version, run, scope or binding, and a call that was not interrupted: no call, and the rows are as they were."""
    done = Effects()
    [asked] = (await world.process(paying(done)).aio.run_embedded("x", "go", run_id="r")).pending_approvals
    agent = paying(done, binding_id="2" if refusal == "binding" else "1")
    app, verdicts = world.process(agent), {asked.approval_id: True}
    before = await world.loaded("r")
    match refusal:
        case "version":
            envelope = AgentRunEnvelope(app.ids.rid(), "default", "old", "agent", "x")
            await world.store.create(NewRun(envelope.rid, "default", "old", "agent", "x", encode_body(envelope), version=9))
            stored = await world.loaded("old")
            result = await app.aio.resume_embedded("old", approvals=verdicts)
            assert (result.status, str((result.error or {})["message"]).startswith(SENTENCE)) == ("failed", True)
            now = await world.loaded("old")
            assert (now.head.revision, now.head.body, now.head.version) == (0, stored.head.body, 9)
        case "identity" | "scope":
            run_id, scope = ("nobody", "default") if refusal == "identity" else ("r", "other")
            result = await app.aio.resume_embedded(run_id, scope=scope, approvals=verdicts)
            assert (result.status, str((result.error or {})["message"]).startswith(SENTENCE)) == ("failed", True)
        case "binding":
            result = await app.aio.resume_embedded("r", approvals=verdicts)
            assert (result.status, (result.error or {}).get("code")) == ("failed", "binding_changed")
        case _:
            with pytest.raises(ConfigurationError, match="was not interrupted"):
                await app.aio.resume_embedded("r", approvals=verdicts, retry_tool_call_ids=["a"])
    after = await world.loaded("r")
    assert (after.head.revision, after.items, after.notes) == (before.head.revision, before.items, before.notes)
    assert (requests(agent), done.done) == (0, {})


@pytest.mark.spec("RSM-006")
async def test_a_process_without_the_agent_leaves_the_run_untouched(world: World) -> None:
    """Nothing of the definition is stored: who lacks it refuses the step before writing, who has it goes on."""
    done = Effects()
    app = world.process(paying(done))
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    await app.aio.handle("r").approve(asked)
    before = await world.loaded("r")
    stranger = world.process(Agent("y", model=MockModel(["hello"])))
    async with driver(stranger) as driving:
        refused = await driving.drive([("default", "r")])
    assert "is not known here" in refused["default", "r"].message
    after = await world.loaded("r")
    assert (after.head.revision, after.head.body, after.items) == (before.head.revision, before.head.body, before.items)
    assert (await world.process(paying(done)).aio.resume_embedded("r")).status == "completed"
    assert done.done == {"ann": 1}


@pytest.mark.spec("RSM-007")
async def test_a_resume_counts_on_from_the_record(world: World) -> None:
    """Turns and usage of the second leg follow those of the first, in another process."""
    done = Effects()
    script = (calls(call("pay", to="ann").with_id("a")), calls(call("pay", to="bob").with_id("b")), "done")
    first = await world.process(paying(done, *script)).aio.run_embedded("x", "go", run_id="r")
    second = await world.process(paying(done, *script)).aio.resume_embedded("r", approvals={"a": True})
    third = await world.process(paying(done, *script)).aio.resume_embedded("r", approvals={"b": True})
    assert [result.steps for result in (first, second, third)] == [1, 2, 3]
    tokens = first.usage.total_tokens
    assert tokens > 0
    assert [result.usage.total_tokens for result in (first, second, third)] == [tokens, 2 * tokens, 3 * tokens]
    assert [(asked.step, asked.tool_call_id) for asked in (*first.pending_approvals, *second.pending_approvals)] == [
        (1, "a"),
        (2, "b"),
    ]


@pytest.mark.spec("RSM-010")
async def test_a_run_without_a_store_cannot_be_resumed(world: World) -> None:
    """It leaves no row anywhere; a resume has to name a store, and finds nothing in it."""
    done = Effects()
    waiting = await run_agent(paying(done), "go", run_id="r")
    assert waiting.status == "suspended"
    assert await world.store.head("default", "r") is None
    agent = paying(done)
    with pytest.raises(TypeError, match="store"):
        await resume_agent(agent, "r")
    with pytest.raises(TypeError, match="store"):
        await reconcile_agent_run("r", agent=agent)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ScopeMismatchError):
        await reconcile_agent_run("r", agent=agent, store=world.store)
    result = await resume_agent(agent, "r", store=world.store)
    assert (result.status, str((result.error or {})["message"]).startswith(SENTENCE)) == ("failed", True)
    with pytest.raises(RunNotFoundError):
        await world.process(agent).aio.handle("r").reconcile({"a": 1})
    assert (requests(agent), done.done) == (0, {})


@pytest.mark.parametrize("verdict", [None, True])
async def test_a_turn_that_was_taken_up_asks_nobody_again(world: World, verdict: bool | None) -> None:
    """Its gated call without a verdict in the record is denied, with one it runs once; the run goes on either way."""
    done = Effects()
    app = world.process(agent := paying(done))
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    stored = "null" if verdict is None else encode({"approved": verdict})
    await world.store.answer_item("default", "r", asked.approval_id, stored)
    result = await app.aio.resume_embedded("r")
    assert result.status == "completed"
    text = "paid ann" if verdict else "Tool call denied. Reason: No approval response."
    assert (told(agent), done.done) == ([text], {"ann": 1} if verdict else {})


def signed(world: World, agent: Agent) -> Any:
    app = world.process(agent)
    app.__dict__["signer"] = ApprovalSigner("k" * 32)
    return app


@pytest.mark.spec("APR-015")
@pytest.mark.parametrize("token", ["missing", "tampered", "expired", "another run's"])
async def test_an_approval_without_a_good_token_denies(world: World, token: str) -> None:
    """Through a resume it turns into a denial; through the door, and past it in the database, it lets nothing run either."""
    done = Effects()
    app = signed(world, agent := paying(done))
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    now_ms = await world.store.now_ms()
    assert asked.token is not None
    given = {
        "missing": None,
        "tampered": asked.token[:-1] + ("A" if asked.token[-1] != "A" else "B"),
        "expired": ApprovalSigner("k" * 32, ttl_s=1).sign("default", "r", asked.approval_id, now_ms=now_ms - 5_000),
        "another run's": ApprovalSigner("k" * 32).sign("default", "other", asked.approval_id, now_ms=now_ms),
    }[token]
    before = await world.loaded("r")
    with pytest.raises(AnswerRefusedError) as caught:
        await app.aio.handle("r").approve(asked.approval_id, token=given)
    assert caught.value.fields["part"] == "token"
    assert await world.loaded("r") == before
    record = {"approval_id": asked.approval_id, "approved": True, "token": given}
    if token == "missing":
        await world.store.answer_item("default", "r", asked.approval_id, encode({"approved": True}))  # past the door
        result = await app.aio.resume_embedded("r")
    else:
        result = await app.aio.resume_embedded("r", approvals=[record])
    assert (result.status, done.done, told(agent)) == ("completed", {}, [f"Tool call denied. Reason: {DENIAL}"])


@pytest.mark.spec("APR-015", "APR-020")
async def test_a_denial_needs_no_token_and_a_good_token_approves(world: World) -> None:
    """Also long after it expired, once it was accepted: other answers may take their time."""
    done = Effects()
    two = calls(call("pay", to="ann").with_id("a"), call("pay", to="bob").with_id("b"))
    app = signed(world, agent := paying(done, two, "done"))
    ann, bob = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    await app.aio.handle("r").approve(ann)
    await world.later(30 * 86_400_000)
    await app.aio.handle("r").deny(bob.approval_id, "no")
    assert (await app.aio.resume_embedded("r")).status == "completed"
    assert (done.done, told(agent)) == ({"ann": 1}, ["paid ann", "Tool call denied. Reason: no"])


@pytest.mark.spec("SET-006", "SET-010")
async def test_what_was_settled_is_saved_before_the_model_is_called(world: World) -> None:
    """Death at the commit that admits the next model call: the answers are in the history, and the next process only calls."""
    done = Effects()
    [asked] = (await world.process(paying(done)).aio.run_embedded("x", "go", run_id="r")).pending_approvals
    dying = world.dying(paying(done), at=3)
    with pytest.raises(ProcessDied):
        await dying.aio.resume_embedded("r", approvals={asked.approval_id: True})
    loaded = await world.loaded("r")
    assert (loaded.head.status, len(loaded.messages), done.done) == ("running", 3, {"ann": 1})
    await world.later(60_000)
    result = await world.process(agent := paying(done)).aio.resume_embedded("r")
    assert (result.status, requests(agent), told(agent), done.done) == ("completed", 1, ["paid ann"], {"ann": 1})


async def test_calls_with_a_receipt_are_answered_from_it(world: World) -> None:
    """Completed, failed and failed in validation: neither the gate nor the tool is asked again (SET-002)."""
    done = Effects()

    def agent() -> Agent:
        def checked(arguments: Any) -> bool:
            done(f"gate {arguments['how']}")
            return True

        @tool(needs_approval=checked, output_schema=int)
        async def work(how: str) -> object:
            done(how)
            if how == "raise":
                raise ValueError("broken")
            return 7 if how == "good" else "no number"

        turn = calls(*(call("work", how=how).with_id(how) for how in ("good", "raise", "bad")))
        return Agent("x", model=MockModel([turn, "done"]), tools=[work])

    waiting = await world.process(agent()).aio.run_embedded("x", "go", run_id="r")
    verdicts = {asked.approval_id: True for asked in waiting.pending_approvals}
    store = _DyingWithTheTurn(world.store)
    with pytest.raises(ProcessDied):
        await world.process(agent(), store=store).aio.resume_embedded("r", approvals=verdicts)  # pyright: ignore[reportArgumentType]
    stages = {call_id: receipt.stage for (_, call_id), receipt in (await world.receipts("r")).items()}
    before = dict(done.done)
    assert {stages["good"], stages["raise"], stages["bad"]} <= {"executed", "completed", "failed", "validation-failed"}
    await world.later(60_000)
    result = await world.process(last := agent()).aio.resume_embedded("r")
    assert (result.status, done.done) == ("completed", before)
    assert told(last)[0] == "7"
    assert "broken" in told(last)[1]


class _DyingWithTheTurn:
    """The process ends at the first commit that would append the answers of a turn, with all receipts saved before it."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, change: Any) -> Any:
        if change.messages:
            await self._store.commit(
                replace(change, messages=(), last_seq=change.last_seq - len(change.messages), body=self.body)
            )
            raise ProcessDied
        self.body = change.body
        return await self._store.commit(change)
