"""Spans and metrics of real runs: one trace over processes and waits, the documented names and no content."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import StatusCode

from deuz_workers import Agent, Limits, McpServer, MockModel, Swarm, Task, ToolContext, agent_tool, tool
from deuz_workers.errors import ModelUnavailableError
from deuz_workers.providers.script import attempts, call, calls, reply
from deuz_workers.telemetry.trace_parent import read_trace_parent, trace_parent_of
from tests.app.world import World
from tests.telemetry.conftest import Collected

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/observability.md").read_text("utf-8")
MARKER = "xyzzy-secret-17"


@tool
async def look(place: str) -> str:
    "What is there."
    return f"{MARKER} in {place}"


@tool(needs_approval=True)
async def pay(context: ToolContext, amount: int) -> str:
    "Pays."
    return f"paid {amount}"


@tool
async def broken() -> str:
    "Fails."
    raise ValueError(MARKER)


def clerk(name: str = "clerk") -> Agent:
    script = [
        calls(call("look", place=MARKER), call("broken")),
        calls(call("pay", amount=3).with_id("p")),
        calls(call("helper", prompt=MARKER)),
        f"done {MARKER}",
    ]
    helper = Agent("helper", model=MockModel([f"helped {MARKER}"]))
    return Agent(name, model=MockModel(script), tools=[look, pay, broken, agent_tool(helper)], instructions=MARKER)


def trace_ids(spans: Any) -> set[int]:
    return {span.context.trace_id for span in spans}


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def ran(world: World, mode: str = "on", run_id: str = "r") -> None:
    """A run that fails a tool, waits for a person, goes on in another process and delegates."""
    first = await world.process(clerk(), telemetry=mode).aio.run_embedded("clerk", MARKER, run_id=run_id)
    assert first.status == "suspended"
    second = world.process(clerk(), telemetry=mode)
    result = await second.aio.resume_embedded(run_id, approvals={first.pending_approvals[0].approval_id: True})
    assert result.status == "completed", result


async def test_a_run_is_one_trace_over_processes_waits_and_delegation(collected: Collected, world: World) -> None:
    """Every span belongs to the trace that was open where the run was started, calls stand below their turns."""
    with trace.get_tracer("test").start_as_current_span("request") as request:
        await ran(world)
    outer = request.get_span_context()
    found = collected.by_name
    mine = [span for name, spans in found.items() if name != "request" for span in spans]
    assert trace_ids(mine) == {outer.trace_id}
    turns = {span.context.span_id: span for span in found["turn clerk"] if span.context is not None}
    assert {about(span)["deuz.turn"] for span in turns.values()} == {1, 2, 3, 4}
    for name in ("chat scripted", "execute_tool look", "execute_tool broken", "execute_tool pay"):
        for span in found[name]:
            assert span.parent is not None
            assert span.context is not None
            inner = span.parent.span_id in turns or about(span)["gen_ai.agent.name"] == "helper"
            assert inner, name
    assert len(found["chat scripted"]) == 5
    [run] = found["invoke_agent clerk"]
    assert run.parent is not None
    assert run.parent.span_id == outer.span_id
    assert about(run)["deuz.run.status"] == "completed"
    assert about(run)["gen_ai.usage.input_tokens"] > 0
    assert [about(span)["error.type"] for span in found["execute_tool broken"]] == ["error"]
    assert found["execute_tool broken"][0].status.status_code is StatusCode.ERROR
    waits = {name: spans for name, spans in found.items() if name.startswith("wait")}
    assert {name: len(spans) for name, spans in waits.items()} == {"wait start": 2, "wait answers": 2}
    envelope = world.opened[-1].aio.handle("r")
    assert read_trace_parent((await envelope.envelope()).trace) == (outer.trace_id, outer.span_id, outer.trace_flags)


async def test_a_run_that_nobody_traced_has_one_trace_of_its_own(collected: Collected, world: World) -> None:
    """Nothing is stored, and every process finds the same trace."""
    await ran(world)
    envelope = await world.opened[-1].aio.handle("r").envelope()
    assert envelope.trace is None
    spans = [span for span in collected.spans.get_finished_spans() if about(span)["gen_ai.agent.name"] == "clerk"]
    assert trace_ids(spans) == {trace_parent_of(envelope.rid).trace_id}


async def test_tasks_of_a_swarm_share_its_trace(collected: Collected, world: World) -> None:
    """The swarm and each of its tasks are spans of the trace that was open where it was started."""
    worker = Agent("worker", model=MockModel(["yes"]))
    swarm = Swarm("two", [Task("a", agent=worker, prompt="a"), Task("b", agent=worker, prompt="b", depends_on=["a"])])
    app = world.process(worker, telemetry="on")
    with trace.get_tracer("test").start_as_current_span("request") as request:
        result = await app.aio.run_swarm_embedded(swarm)
    assert result.status == "completed"
    found = collected.by_name
    assert len(found["invoke_agent worker"]) == 2
    assert len(found["invoke_workflow two"]) == 1
    assert trace_ids([*found["invoke_agent worker"], *found["invoke_workflow two"]]) == {request.get_span_context().trace_id}


async def test_a_call_that_failed_says_its_code_and_not_its_text(collected: Collected, world: World) -> None:
    """Model calls that fail are spans with an error, one for each attempt."""
    model = MockModel([ModelUnavailableError(MARKER, billed="no")])
    app = world.process(Agent("x", model=model, limits=Limits(max_retries=0)), telemetry="on")
    assert (await app.aio.run_embedded("x", "go")).status == "failed"
    [span] = collected.by_name["chat scripted"]
    [run] = collected.by_name["invoke_agent x"]
    code = ModelUnavailableError("").code
    assert [about(span)["error.type"], about(run)["error.type"]] == [code, code]
    assert span.status.description is None


async def test_spans_hold_no_content_unless_asked_to(collected: Collected, world: World) -> None:
    """Prompts, instructions, arguments, results and texts of errors are in no span and no metric; with `content` they are."""
    await ran(world)
    told = [span.to_json() for span in collected.spans.get_finished_spans()]
    assert not [span for span in told if MARKER in span]
    assert MARKER not in str(collected.metrics)
    collected.spans.clear()
    await ran(world, "content", "other")
    found = collected.by_name
    for name, attribute in (
        ("chat scripted", "gen_ai.input.messages"),
        ("chat scripted", "gen_ai.output.messages"),
        ("execute_tool look", "gen_ai.tool.call.arguments"),
        ("execute_tool look", "gen_ai.tool.call.result"),
    ):
        held = [about(span)[attribute] for span in found[name]]
        assert any(MARKER in text for text in held), attribute
        assert all(json.loads(text) for text in held)


async def test_the_page_lists_every_span_metric_and_attribute(collected: Collected, world: World) -> None:
    """What real runs emit is what docs/observability.md says, names and attributes, none missing and none more."""
    await ran(world, "content")
    worker = Agent("worker", model=MockModel(["yes"]))
    await world.process(worker, telemetry="on").aio.run_swarm_embedded(Swarm("two", [Task("a", agent=worker, prompt="go")]))
    app = world.process(
        Agent("bad", model=MockModel([ModelUnavailableError("x", billed="no")]), limits=Limits(max_retries=0)), telemetry="on"
    )
    await app.aio.run_embedded("bad", "go")
    refusing = Agent("refusing", model=MockModel([reply("no", finish_reason="content_filter")]))
    assert (await world.process(refusing, telemetry="on").aio.run_embedded("refusing", "go")).reason == "refusal"
    spans, numbers = PAGE.split("| span |")[1].split("| metric |")
    documented = {re.sub(r"[A-Z]+$", "*", name) for name in re.findall(r"^\| `([^`]+)`", spans, re.MULTILINE)}
    emitted = {
        re.sub(r"^(chat|execute_tool|turn|invoke_agent|invoke_workflow) .*", r"\1 *", name) for name in collected.by_name
    }
    assert emitted == documented
    measured = {
        name: {attribute for point in metric.data.data_points for attribute in point.attributes}
        for name, metric in collected.metrics.items()
    }
    rows = dict(re.findall(r"^\| `([^`]+)` \|[^|]*\|(.*)\|$", numbers.split("\n\n")[0], re.MULTILINE))
    assert measured.keys() == rows.keys()
    attributes = {name for span in collected.spans.get_finished_spans() for name in about(span)}
    attributes |= {name for names in measured.values() for name in names}
    named = set(re.findall(r"`((?:gen_ai|deuz|error)\.[a-z_.]+)`", PAGE)) - measured.keys()
    assert attributes - named == set()
    assert named - attributes == set()


async def test_what_is_off_imports_nothing_and_stores_nothing(collected: Collected, world: World) -> None:
    """Without the setting no span is told, whatever is open around the run, and the record names no trace."""
    with trace.get_tracer("test").start_as_current_span("request"):
        await ran(world, "off")
    assert collected.by_name.keys() == {"request"}
    assert (await world.opened[-1].aio.handle("r").envelope()).trace is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 32 + "-" + "0" * 16 + "-01",
        "ff-" + "1" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 32 + "-" + "1" * 16 + "-01-more",
        "00-" + "A" * 32 + "-" + "1" * 16 + "-01",
        None,
        7,
    ],
)
def test_what_is_no_traceparent_is_none(text: object) -> None:
    """Versions, lengths and zeroes that the recommendation forbids are read as nothing."""
    assert read_trace_parent(text) is None


def test_a_traceparent_is_read_as_it_is_written() -> None:
    """Of a later version what follows is left out."""
    known = read_trace_parent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    assert known is not None
    assert str(known) == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert read_trace_parent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-later") == known


class Faulty(SpanProcessor):
    """Somebody's own, with a defect."""

    is_on = True

    def on_end(self, span: ReadableSpan) -> None:
        if self.is_on:
            raise OSError("no space left")


async def test_a_processor_that_raises_ends_no_step(
    world: World, collected: Collected, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever a span ends: also that of a turn which its step leaves open, as its model is to be asked again."""
    faulty, provider = Faulty(), trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.add_span_processor(faulty)
    model = MockModel([attempts(ModelUnavailableError("away", billed="no"), "done")])
    try:
        result = await world.process(Agent("retried", model=model), telemetry="on").aio.run_embedded("retried", "go")
    finally:
        faulty.is_on = False
    assert result.output == "done"
    said = [record.getMessage().partition(" ")[0] for record in caplog.records]
    assert said.count("telemetry_failed") == 1
    assert "step_crashed" not in said


async def test_a_tool_server_is_told_which_trace_a_call_belongs_to(collected: Collected, world: World) -> None:
    """The request of the call carries the trace of the run, below the span of the call."""
    server = McpServer(command=sys.executable, args=("-m", "tests.telemetry.traced_server"), cwd=str(ROOT), env={**os.environ})
    agent = Agent("asker", model=MockModel([calls(call("whereabouts")), "done"]), mcp=[server])
    app = world.process(agent, telemetry="on")
    with trace.get_tracer("test").start_as_current_span("request") as request:
        result = await app.aio.run_embedded("asker", "go")
    await app.aclose()
    [told] = [part.text for message in result.messages for part in message.tool_results]
    assert told is not None
    _, trace_id, parent_id, _ = told.split("-")
    spans = {span.context.span_id: span for span in collected.spans.get_finished_spans() if span.context is not None}
    assert int(trace_id, 16) == request.get_span_context().trace_id
    above = spans[int(parent_id, 16)]
    while not above.name.startswith("execute_tool"):  # the library's own span may stand between
        assert above.parent is not None
        above = spans[above.parent.span_id]
