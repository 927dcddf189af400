"""What a resume has to match: every recorded item, in turn, and nothing that a run does not use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deuz_workers import Agent, Chat, Limits, MockModel, Output, resume_agent, run_agent, tool
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.chats import PlainChats
from tests.app.world import Effects, World

SENTENCE = "Native agent binding changed across resume."
ONE = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
OTHER = {**ONE, "properties": {"n": {"type": "number"}}}


def agent(change: str = "", done: Effects | None = None) -> Agent:
    """Asks before it acts; `change`: which recorded item differs."""

    async def act(n: int) -> str:
        if done is not None:
            done("act")
        return "did it"

    async def acted(n: float) -> str:
        return "did it"

    function: Any = acted if change == "schema of a tool" else act
    function.__doc__ = "Does something else." if change == "description of a tool" else "Does it."
    made = tool(name="acts" if change == "name of a tool" else "act", needs_approval=True)(function)

    @tool
    async def more() -> str:
        return "more"

    script = calls(call("act", n=1)), "done", '{"n": 1}'
    return Agent(
        "x",
        model=MockModel(script, model="other" if change == "model" else "scripted"),
        tools=[made, more] if change == "another tool" else [made],
        limits=Limits(**{change.removeprefix("limits "): 7}) if change.startswith("limits ") else None,
        binding_id="2" if change == "binding_id" else "1",
        output_type=None
        if change == "no output type"
        else Output(OTHER if change == "output schema" else ONE, validate=lambda value: value),
    )


@pytest.mark.spec("BND-001")
@pytest.mark.parametrize(
    "change",
    [
        "model",
        "schema of a tool",
        "description of a tool",
        "name of a tool",
        "another tool",
        "output schema",
        "no output type",
        *(f"limits {name}" for name in Limits().to_record()),
        "binding_id",
    ],
)
async def test_a_resume_with_one_other_item_is_refused(world: World, change: str) -> None:
    """The sentence, no call, and the revision is what it was; with the first agent the run goes on."""
    waiting = await world.process(agent()).aio.run_embedded("x", "go", run_id="r")
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    stored, done, changed = await world.loaded("r"), Effects(), agent(change, Effects())
    result = await world.process(changed).aio.resume_embedded("r", approvals=verdicts)
    assert str((result.error or {})["message"]).startswith(SENTENCE)
    assert isinstance(changed.model, MockModel)
    assert (changed.model.requests, (await world.loaded("r")).head.revision) == ((), stored.head.revision)
    assert (await world.loaded("r")) == stored
    done = Effects()
    assert (await world.process(agent(done=done)).aio.resume_embedded("r", approvals=verdicts)).status == "completed"
    assert done.done == {"act": 1}


@pytest.mark.spec("BND-006")
async def test_a_flipped_flag_is_not_compared(world: World) -> None:
    """The resume is not refused, and what the receipt recorded decides; the page about tools asks for a new `binding_id`."""
    done, dies = Effects(), [True]

    def made(replay: Any) -> Agent:
        @tool(replay=replay)
        async def act() -> str:
            done("act")
            if dies:
                raise ProcessDied
            return "did it"

        return Agent("x", model=MockModel([calls(call("act")), "done"]), tools=[act])

    for run_id, first, second in (("a", None, "idempotent"), ("b", "idempotent", None)):
        dies[:], done.done = [True], type(done.done)()
        with pytest.raises(ProcessDied):
            await world.process(made(first)).aio.run_embedded("x", "go", run_id=run_id)
        dies.clear()
        result = await world.process(made(second)).aio.resume_embedded(run_id)
        assert result.error is None
        if first is None:
            assert (result.reason, done.done) == ("tool-reconciliation-required", {"act": 1})
        else:
            assert (result.status, done.done) == ("completed", {"act": 2})
    page = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
    assert "Raise the agent's `binding_id` when the flag" in page


@pytest.mark.spec("BND-007")
async def test_a_plain_run_binds_nothing_that_it_does_not_use(memory: World) -> None:
    """Golden: `binding_id`, limits, model and tools, and no key of handoffs, MCP, memory, chat or other models."""
    app = memory.process(Agent("x", model=MockModel(["hi"])))
    await app.aio.run_embedded("x", "go", run_id="r")
    binding = json.loads((await memory.head("r")).body)["binding"]
    assert binding == {
        "binding_id": "1",
        "limits": {"max_retries": 4, "max_steps": 20, "model_timeout_ms": 600_000, "tool_timeout_ms": 900_000},
        "model": "mock:scripted",
        "tools": {},
    }


@pytest.mark.spec("BND-005")
@pytest.mark.parametrize("other", [Chat("d"), Chat("c", "team"), Chat("c", store=PlainChats())])
async def test_a_resume_with_another_chat_is_refused(world: World, other: Chat) -> None:
    """Another id, another scope, another store: before any write. Named again or not, the first one goes on."""
    waiting = await run_agent(agent(), "go", store=world.store, run_id="r", chat=Chat("c"))
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    stored = await world.loaded("r")
    assert json.loads(stored.head.body)["binding"]["chat"] == {"chat_id": "c", "scope": "default"}
    result = await resume_agent(agent(), "r", store=world.store, approvals=verdicts, chat=other)
    assert str((result.error or {})["message"]).startswith(SENTENCE)
    assert await world.loaded("r") == stored
    done = await resume_agent(agent(), "r", store=world.store, approvals=verdicts, chat=Chat("c"))
    assert done.status == "completed"


async def test_a_resume_of_a_run_without_a_chat_brings_none(world: World) -> None:
    """Nor does one with a chat in its binding go on that has none in its record."""
    waiting = await run_agent(agent(), "go", store=world.store, run_id="r")
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    stored = await world.loaded("r")
    result = await resume_agent(agent(), "r", store=world.store, approvals=verdicts, chat=Chat("c"))
    assert str((result.error or {})["message"]).startswith(SENTENCE)
    assert await world.loaded("r") == stored


@pytest.mark.spec("BND-005")
@pytest.mark.parametrize("others", [(), ("c",), ("b", "c"), ("c", "b")])
async def test_a_resume_with_other_fallbacks_is_refused(world: World, others: tuple[str, ...]) -> None:
    """None, another one, one more, another order: before any write."""

    def made(*names: str) -> Agent:
        @tool(needs_approval=True)
        async def act(n: int) -> str:
            return "did it"

        script = calls(call("act", n=1)), "done"
        return Agent(
            "x", model=MockModel(script), tools=[act], fallback_models=[MockModel(script, model=name) for name in names]
        )

    waiting = await world.process(made("b")).aio.run_embedded("x", "go", run_id="r")
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    stored = await world.loaded("r")
    result = await world.process(made(*others)).aio.resume_embedded("r", approvals=verdicts)
    assert str((result.error or {})["message"]).startswith(SENTENCE)
    assert await world.loaded("r") == stored
    assert (await world.process(made("b")).aio.resume_embedded("r", approvals=verdicts)).status == "completed"
