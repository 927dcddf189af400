"""Thoughts and arguments of calls, read while a model writes them."""

from __future__ import annotations

import json

from deuz_workers import (
    Agent,
    ArgumentsDelta,
    Discard,
    Guardrails,
    Limits,
    MockModel,
    PartEvent,
    ReasoningDelta,
    TextDelta,
    ToolOutput,
    agent_tool,
    stream_agent,
    tool,
)
from deuz_workers.app.stream_events import StreamEvent, SubAgentPart
from deuz_workers.app.stream_view import StreamView
from deuz_workers.core.live import LivePart
from deuz_workers.core.messages import ReasoningPart
from deuz_workers.errors import ModelUnavailableError
from deuz_workers.providers.script import Entry, ScriptedReply, attempts, call, calls, reply
from tests.app.world import World


@tool
async def look(place: str) -> str:
    "Look."
    return place


def thinker(*script: Entry, guardrails: Guardrails | None = None) -> Agent:
    first = reply("Let me see.", call("look", place="Oslo"), call("look", place="Rome"), reasoning="two places")
    model = MockModel(list(script) or [first, reply("done", reasoning="easy")], tells_asides=True)
    return Agent("x", model=model, tools=[look], guardrails=guardrails or Guardrails(), limits=Limits(max_retries=1))


def kinds(events: list[StreamEvent]) -> list[str]:
    return [event.part.type if isinstance(event, PartEvent) else event.type for event in events]


def parts(events: list[StreamEvent], kind: type) -> list[str]:
    found = [event.part for event in events if isinstance(event, PartEvent)]
    deltas = [part for part in found if isinstance(part, (ReasoningDelta, ArgumentsDelta, TextDelta))]
    return [part.text for part in deltas if isinstance(part, kind)]


async def test_thoughts_come_before_the_text_and_arguments_before_the_call_runs(world: World) -> None:
    """In pieces, by the place of their call; what they come to is what the tools got."""
    stream = stream_agent(thinker(), "go", store=world.store)
    events = [event async for event in stream.events]
    assert kinds(events[:4]) == ["phase", "reasoning-delta", "reasoning-delta", "text-delta"]
    turn = events[: next(place for place, event in enumerate(events) if isinstance(event, ToolOutput))]
    assert "".join(parts(turn, ReasoningDelta)) == "two places"
    written: dict[int, str] = {}
    for event in turn:
        if isinstance(event, PartEvent) and isinstance(event.part, ArgumentsDelta):
            assert (event.part.tool_name, event.step) == ("look", 1)
            written[event.part.place] = written.get(event.part.place, "") + event.part.text
    assert [json.loads(text) for _, text in sorted(written.items())] == [{"place": "Oslo"}, {"place": "Rome"}]
    assert "".join(parts(events, TextDelta)) == "Let me see.done"
    assert not [event for event in events if isinstance(event, Discard)]
    assert (await stream.result).status == "completed"


async def test_what_a_failed_attempt_thought_is_taken_back(world: World) -> None:
    """Also where it wrote no text: the reader is told to drop it before the next attempt is shown."""
    broken = ScriptedReply(reasoning=ReasoningPart("wrong way"), fragments=(), error=ModelUnavailableError("away", billed="no"))
    stream = stream_agent(thinker(attempts(broken, reply("done", reasoning="right way"))), "go", store=world.store)
    events = [event async for event in stream.events]
    [place] = [place for place, event in enumerate(events) if isinstance(event, Discard)]
    assert "".join(parts(events[:place], ReasoningDelta)) == "wrong way"
    assert "".join(parts(events[place:], ReasoningDelta)) == "right way"
    assert (await stream.result).output == "done"


async def test_nothing_is_shown_of_an_agent_whose_answers_are_guarded(world: World) -> None:
    """A guardrail may suppress what the thoughts already say."""

    async def pass_on(text: str, context: object) -> None:
        return None

    stream = stream_agent(thinker(guardrails=Guardrails(on_output=[pass_on])), "go", store=world.store)
    events = [event async for event in stream.events]
    assert parts(events, ReasoningDelta) == parts(events, ArgumentsDelta) == []


async def test_thoughts_of_a_run_below_are_shown_as_its_own(world: World) -> None:
    """Under its path, to whoever reads the root."""
    below = Agent("below", model=MockModel([reply("yes", reasoning="deep thought")], tells_asides=True))
    root = Agent("root", model=MockModel([calls(call("below", prompt="go")), "done"]), tools=[agent_tool(below)])
    events = [event async for event in stream_agent(root, "go", store=world.store).events]
    inner = [event.part for event in events if isinstance(event, PartEvent) and isinstance(event.part, SubAgentPart)]
    shown = [part.event for part in inner if part.agent_path == ("root", "below")]
    assert "".join(parts(list(shown), ReasoningDelta)) == "deep thought"


def test_an_older_attempt_is_ignored_and_a_newer_one_begins_anew() -> None:
    """By its epoch: thoughts of a dead executor that come late are not shown."""
    view = StreamView(lambda: None)

    def thought(epoch: int, text: str) -> LivePart:
        return LivePart("reasoning", 1, epoch, {"text": text})

    events = view.take([LivePart("begin", 1, 3), thought(3, "a"), thought(5, "b"), thought(3, "late")])
    assert kinds(events) == ["phase", "reasoning-delta", "discard", "reasoning-delta"]
    assert parts(events, ReasoningDelta) == ["a", "b"]
