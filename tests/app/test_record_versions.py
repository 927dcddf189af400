"""Versions and revisions of a stored record: when it is 1 and when 2, who refuses it, what every save counts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from deuz_workers import (
    Agent,
    AgentResult,
    Chat,
    Limits,
    MockModel,
    ModelUnavailableError,
    StepInfo,
    StepPlan,
    client_tool,
    tool,
)
from deuz_workers.core.change import Change, Outcome
from deuz_workers.core.codec import encode
from deuz_workers.core.envelope import decode_body
from deuz_workers.core.messages import user
from deuz_workers.ports.guard import Guardrails
from deuz_workers.providers.script import attempts, call, calls
from deuz_workers.testing.crashing_store import CrashingStore, ProcessDied
from deuz_workers.testing.store_conformance_bench import change_from
from tests.app.world import Effects, World

SENTENCE = "Native checkpoint version, identity, or scope mismatch."
BINDING = "Native agent binding changed across resume."


class Saves(CrashingStore):
    """A store that remembers what was saved: revision, version and status of each commit that was applied."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store, at=0)
        self.saved: list[tuple[int, int, str]] = []

    async def commit(self, change: Change) -> Outcome:
        outcome = await super().commit(change)
        self.saved.append((change.expected + 1, change.version, change.status))
        return outcome


def mixed(done: Effects, **given: Any) -> Agent:
    """Asks for a gated call, a client's and an ungated one in one turn."""

    @tool(needs_approval=True)
    async def pay() -> str:
        done("pay")
        return "paid"

    @tool
    async def look() -> str:
        done("look")
        return "seen"

    ask = client_tool("ask", "Asks.", {"type": "object", "properties": {}})
    script = calls(call("look"), call("pay"), call("ask")), "done"
    return Agent("x", model=MockModel(script), tools=[pay, look, ask], **given)


async def rewrite(world: World, run_id: str = "r", **change: Any) -> None:
    """The stored head becomes another one, as another build might have left it."""
    head = await world.head(run_id)
    changed = {"items": (await world.loaded(run_id)).items, "due_in_ms": head.due_in_ms, "mid_step": head.mid_step, **change}
    await world.store.commit(change_from(head, status=head.status, model_step=head.model_step, **changed))


async def answer(world: World, agent: Agent, waiting: AgentResult[Any]) -> AgentResult[Any]:
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    results = {item.tool_call_id: "yes" for item in waiting.pending_client_calls}
    return await world.process(agent).aio.resume_embedded("r", approvals=verdicts, client_tool_results=results)


@pytest.mark.spec("ENV-014")
async def test_every_save_counts_one(world: World) -> None:
    """1, 2, 3 and so on, over several legs; a run that was only enqueued is at 0."""
    done, saves = Effects(), Saves(world)
    handle = await world.process(mixed(done)).aio.enqueue("x", "go", run_id="r")
    assert (await handle.envelope()).revision == 0
    waiting = await world.process(mixed(done), store=saves.as_store).aio.resume_embedded("r")
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    app = world.process(mixed(done), store=saves.as_store)
    await app.aio.resume_embedded(
        "r", approvals=verdicts, client_tool_results={waiting.pending_client_calls[0].tool_call_id: 1}
    )
    revisions = [revision for revision, _, _ in saves.saved]
    assert revisions == list(range(1, len(revisions) + 1))
    assert (await world.head("r")).revision == revisions[-1]


@pytest.mark.spec("ENV-009")
async def test_every_other_save_has_version_1(world: World) -> None:
    """Version 2 is that of the suspension and of the leg that settles it; before, after, failed or reconciled it is 1."""
    done, saves = Effects(), Saves(world)
    waiting = await world.process(mixed(done), store=saves.as_store).aio.run_embedded("x", "go", run_id="r")
    before, [(_, version, status)] = saves.saved[:-1], saves.saved[-1:]
    assert ({version for _, version, _ in before}, version, status) == ({1}, 2, "suspended")
    saves.saved.clear()
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    app = world.process(mixed(done), store=saves.as_store)
    await app.aio.resume_embedded(
        "r", approvals=verdicts, client_tool_results={waiting.pending_client_calls[0].tool_call_id: 1}
    )
    versions = [version for _, version, _ in saves.saved]
    assert versions == sorted(versions, reverse=True)
    assert set(versions) == {1, 2}

    saves.saved.clear()
    away = Agent("x", model=MockModel([ModelUnavailableError("away")]), limits=Limits(max_retries=0))
    assert (await world.process(away, store=saves.as_store).aio.run_embedded("x", "go", run_id="f")).status == "failed"
    assert '"retry"' in (await world.head("f")).body
    assert {version for _, version, _ in saves.saved} == {1}


@pytest.mark.spec("ENV-009")
async def test_a_reconciled_call_does_not_raise_the_version(world: World) -> None:
    """After the save that answers it the record has version 1."""
    saves = Saves(world)

    def made() -> Agent:
        @tool
        async def act() -> str:
            raise ProcessDied

        return Agent("x", model=MockModel([calls(call("act").with_id("c")), "done"]), tools=[act])

    with pytest.raises(ProcessDied):
        await world.process(made()).aio.run_embedded("x", "go", run_id="r")
    app = world.process(made(), store=saves.as_store)
    assert (await app.aio.resume_embedded("r")).reason == "tool-reconciliation-required"
    result = await app.aio.resume_embedded("r", reconciled_tool_results={"c": "it had"})
    assert (result.status, {version for _, version, _ in saves.saved}) == ("completed", {1})


@pytest.mark.spec("ENV-005")
async def test_a_leg_that_settles_keeps_version_2_until_the_turn_is_answered(world: World) -> None:
    """Killed at each of its saves: 2 as long as a call of the turn is unanswered, whatever receipts there are by then; also
    when the approved call has completed and the client's result is in no answer yet."""
    seen: set[tuple[int, frozenset[str]]] = set()
    rails = Guardrails(on_tool_result=lambda text, context: None)  # the turn is answered apart from its last receipt
    for at in range(1, 8):
        run_id, done = f"r{at}", Effects()
        waiting = await world.process(mixed(done, guardrails=rails)).aio.run_embedded("x", "go", run_id=run_id)
        verdicts = {item.approval_id: True for item in waiting.pending_approvals}
        results = {item.tool_call_id: "yes" for item in waiting.pending_client_calls}
        app = world.dying(mixed(done, guardrails=rails), at=at, applied=True)
        try:
            await app.aio.resume_embedded(run_id, approvals=verdicts, client_tool_results=results)
        except ProcessDied:
            loaded = await world.loaded(run_id)
            answered = any('"role":"tool"' in message.body for message in loaded.messages)
            stages = frozenset(f"{tool}:{stage}" for tool, stage in await _stages(world, run_id))
            assert loaded.head.version == (1 if answered else 2), stages
            seen.add((loaded.head.version, stages))
    whole = frozenset(("pay:completed", "look:completed", "ask:completed"))
    settled = {version for version, stages in seen if stages == whole}
    assert settled == {1, 2}
    assert any(version == 2 and "pay:executing" in stages for version, stages in seen)


async def _stages(world: World, run_id: str) -> set[tuple[str, str]]:
    found = await world.process().aio.handle(run_id).envelope()
    return {(receipt.tool, receipt.stage) for receipt in found.tool_results.values()}


@pytest.mark.spec("ENV-010")
async def test_a_record_of_another_version_is_refused(world: World) -> None:
    """Version 9: a failed resume, no call, and the stored bytes are what they were."""
    done = Effects()
    waiting = await world.process(mixed(done)).aio.run_embedded("x", "go", run_id="r")
    await rewrite(world, version=9)
    stored, agent = await world.loaded("r"), mixed(done)
    result = await answer(world, agent, waiting)
    assert (result.status, str((result.error or {})["message"]).startswith(SENTENCE)) == ("failed", True)
    assert isinstance(agent.model, MockModel)
    assert (await world.loaded("r"), agent.model.requests, done.done) == (stored, (), {})


async def test_a_loop_checkpoint_of_another_version_is_refused(world: World) -> None:
    """`CheckpointVersionError` before any write, from the resume of a nested version 2."""
    done = Effects()
    waiting = await world.process(mixed(done)).aio.run_embedded("x", "go", run_id="r")
    body: dict[str, Any] = dict(decode_body((await world.head("r")).body))
    await rewrite(world, body=encode({**body, "checkpoint": {**body["checkpoint"], "version": 2}}))
    stored = await world.loaded("r")
    result = await answer(world, mixed(done), waiting)
    error = result.error or {}
    assert (error["name"], error["code"]) == ("CheckpointVersionError", "checkpoint_version_unsupported")
    assert (await world.loaded("r"), done.done) == (stored, {})


@pytest.mark.spec("ENV-012")
@pytest.mark.parametrize("version", [1, 2])
async def test_a_binding_with_an_unknown_key_is_refused(world: World, version: int) -> None:
    """Whatever the version of the record is."""
    done = Effects()
    waiting = await world.process(mixed(done)).aio.run_embedded("x", "go", run_id="r")
    body: dict[str, Any] = dict(decode_body((await world.head("r")).body))
    await rewrite(world, version=version, body=encode({**body, "binding": {**body["binding"], "memory": "m"}}))
    stored = await world.loaded("r")
    result = await answer(world, mixed(done), waiting)
    assert str((result.error or {})["message"]).startswith(BINDING)
    assert (await world.loaded("r"), done.done) == (stored, {})


@pytest.mark.spec("ENV-019")
async def test_both_versions_are_read_alike(world: World) -> None:
    """The same suspended run, stored as 1 and as 2: the same outcome after the same answers."""
    outcomes: list[Any] = []
    for version in (1, 2):
        done = Effects()
        run_id = f"v{version}"
        waiting = await world.process(mixed(done)).aio.run_embedded("x", "go", run_id=run_id)
        await rewrite(world, run_id, version=version)
        assert (await world.head(run_id)).version == version
        verdicts = {item.approval_id: True for item in waiting.pending_approvals}
        results = {item.tool_call_id: "yes" for item in waiting.pending_client_calls}
        result = await world.process(mixed(done)).aio.resume_embedded(run_id, approvals=verdicts, client_tool_results=results)
        outcomes.append((replace(result, run_id=""), done.done))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0].status == "completed"


@pytest.mark.spec("ENV-016")
async def test_receipts_are_found_by_turn_and_call(world: World) -> None:
    """`tool_results` of an inspected envelope; each has a stage."""

    @tool
    async def look() -> str:
        return "seen"

    agent = Agent(
        "x", model=MockModel([calls(call("look").with_id("a")), calls(call("look").with_id("a")), "done"]), tools=[look]
    )
    app = world.process(agent)
    await app.aio.run_embedded("x", "go", run_id="r")
    found = (await app.aio.handle("r").envelope()).tool_results
    assert {key: receipt.stage for key, receipt in found.items()} == {(1, "a"): "completed", (2, "a"): "completed"}
    assert "tool_results" not in json.loads((await world.head("r")).body)


async def test_a_failed_record_names_its_cause_beside_the_error(world: World) -> None:
    """`retry` is a key of its own, with the kind."""
    away = Agent("x", model=MockModel([attempts(ModelUnavailableError("away"))]), limits=Limits(max_retries=0))
    await world.process(away).aio.run_embedded("x", "go", run_id="r")
    record = json.loads((await world.head("r")).body)
    assert (record["retry"]["kind"], record["error"]["name"]) == ("no-connection", "ModelUnavailableError")


@pytest.mark.spec("ENV-003")
@pytest.mark.parametrize("field", ["chat", "transcript", "models"])
async def test_what_an_older_reader_would_ignore_makes_it_version_2(world: World, field: str) -> None:
    """Every save that has the field; the same run without the feature saves version 1."""

    def prepare(info: StepInfo) -> StepPlan | None:
        return StepPlan(messages=(user("other"),)) if field == "transcript" else None

    def made(*fallbacks: MockModel) -> Agent:
        script = [ModelUnavailableError("away")] if fallbacks else ["hi"]
        model, limits = MockModel(script), Limits(max_retries=0)
        return Agent("x", model=model, fallback_models=fallbacks, limits=limits, prepare_step=prepare)

    for with_it in (True, False):
        saves, run_id = Saves(world), f"{field}-{with_it}"
        fallbacks = (MockModel(["hi"], model="b"),) if with_it and field == "models" else ()
        chat = Chat("c") if with_it and field != "models" else None
        app = world.process(made(*fallbacks), store=saves.as_store)
        result = await app.aio.run_embedded("x", "go", run_id=run_id, chat=chat)
        assert result.status == "completed"
        body = json.loads((await world.head(run_id)).body)
        assert (field in body) == with_it
        versions = {version for _, version, _ in saves.saved[1:]}  # in the first one nothing has failed over yet
        assert versions == ({2} if with_it else {1})


async def test_a_run_with_a_chat_is_version_2_before_it_begins(world: World) -> None:
    """So a worker of an older build refuses it instead of ending it without its chat."""
    handle = await world.process(Agent("x", model=MockModel(["hi"]))).aio.enqueue("x", "go", run_id="r", chat=Chat("c"))
    assert ((await world.head("r")).version, (await handle.envelope()).chat is not None) == (2, True)
