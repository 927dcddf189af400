"""What readers are shown, made from the difference to what they were shown: pure, whatever comes late, twice or never."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deuz_workers.app.results import AgentResult, ResultStatus, UnknownEffect
from deuz_workers.app.stream_events import (
    Discard,
    HandoffPart,
    Missed,
    OutputDraft,
    PartEvent,
    PhaseEvent,
    StreamEvent,
    TextDelta,
    ToolOutput,
)
from deuz_workers.app.ui_parts import Part, encode_part, jsonable, state_part
from deuz_workers.app.ui_reading import UiFrame
from deuz_workers.app.ui_record import UiRecord
from deuz_workers.app.ui_state import AgentState, agent_state_from_parts
from deuz_workers.app.ui_target import UiTarget, compose, turn_texts
from deuz_workers.core.handoff import Handoff
from deuz_workers.core.messages import assistant, user
from deuz_workers.core.usage import Usage
from tests.gateway.serving import text_of

WORDS = ("it ", "is ", "done ", "again ")


def result(status: ResultStatus = "completed", **fields: Any) -> AgentResult[Any]:
    return AgentResult(status, "r", "default", "x", (user("hi"), assistant("a")), Usage(), 1, **fields)


def text(step: int, *words: str) -> list[StreamEvent]:
    return [PartEvent(TextDelta(word), step) for word in words]


@dataclass
class Recorder:
    """As `UiRecorder`, without its tasks: a record, a target, and a journal that others write too."""

    journal: list[Part]
    record: UiRecord = field(default_factory=lambda: UiRecord("r"))
    target: UiTarget = field(default_factory=UiTarget)

    def look(self) -> None:
        for part in self.journal[self.record.seq :]:
            self.record.fold(json.loads(encode_part(part)))

    def flush(self) -> None:
        while self.target.waiting:
            record, parts = compose(self.record, self.target.waiting)
            if parts and len(self.journal) != self.record.seq:
                self.look()
                continue
            self.journal.extend(parts)
            self.record = record
            self.target.waiting.clear()


def frames(journal: list[Part], after: int = 0) -> list[UiFrame]:
    return [UiFrame(seq, part) for seq, part in enumerate(journal, 1) if seq > after]


def kinds(journal: list[Part]) -> list[str]:
    return [part["data"]["kind"] if part["type"] == "data-agent" else part["type"] for part in journal]


def recorded(*events: StreamEvent, end: AgentResult[Any] | None = None, texts: Mapping[int, str] = {}) -> list[Part]:
    """The journal of one recorder that saw all of it."""
    recorder = Recorder([])
    for event in events:
        recorder.target.take(event)
    recorder.target.end(end or result(), texts, 7)
    recorder.flush()
    return recorder.journal


@pytest.mark.spec("UIW-002")
def test_parts_of_a_chat_and_frames_of_the_run_stand_in_the_order_of_what_happened() -> None:
    """Chat parts as in any chat stream, `data-agent` frames between them, each with the run and a number that grows."""
    journal = recorded(
        PhaseEvent("loop", 1, 1),
        *text(1, "let ", "me"),
        ToolOutput("c", "look", 1, raw_result="secret"),
        PhaseEvent("loop", 2, 1),
        *text(2, "done"),
        texts={1: "let me", 2: "done"},
    )
    assert kinds(journal) == [
        "start",
        "start-step",
        "phase",
        "text-start",
        "text-delta",
        "text-delta",
        "tool",
        "text-end",
        "finish-step",
        "start-step",
        "phase",
        "text-start",
        "text-delta",
        "text-end",
        "finish-step",
        "state",
        "finish",
        "done",
    ]
    numbers = [part["data"]["seq"] for part in journal if part["type"] == "data-agent"]
    assert numbers == sorted(set(numbers))
    assert {part["data"]["runId"] for part in journal if part["type"] == "data-agent"} == {"r"}
    assert journal[3:6] == [
        {"type": "text-start", "id": "text-1-1"},
        {"type": "text-delta", "id": "text-1-1", "delta": "let "},
        {"type": "text-delta", "id": "text-1-1", "delta": "me"},
    ]
    assert "secret" not in json.dumps(journal)


@pytest.mark.spec("UIW-003", "UIW-004")
@pytest.mark.parametrize(
    ("ended", "fields"),
    [
        (result(value={"n": 1}), {"status", "output"}),
        (result("suspended"), {"status", "pendingApprovals", "pendingClientCalls"}),
        (result("stopped", reason="max-steps", stop_details={"n": 3}), {"status", "reason", "stopDetails"}),
        (result("failed", error={"name": "ModelError", "message": "no", "code": "model", "more": 1}), {"status", "error"}),
    ],
)
def test_the_end_has_what_belongs_to_its_status_and_nothing_else(ended: AgentResult[Any], fields: set[str]) -> None:
    """An output is there of a completed run alone."""
    data = state_part(ended)["data"]
    assert set(data) == {"kind", *fields}


@pytest.mark.spec("UIW-004")
def test_a_draft_is_no_output() -> None:
    """The reducer keeps them apart, and the draft is gone where the run ends otherwise."""
    journal = recorded(
        PhaseEvent("finalizing", 1, 1, 1),
        *text(1, '{"n"'),
        OutputDraft({"n": 1}, 1, 1),
        end=result("stopped", reason="length"),
        texts={1: '{"n"'},
    )
    at_draft = next(place for place, part in enumerate(journal) if part.get("data", {}).get("kind") == "draft")
    state = agent_state_from_parts(journal[: at_draft + 1])
    assert (state.partial, state.output, state.status) == ({"n": 1}, None, "running")
    state = agent_state_from_parts(journal)
    assert (state.partial, state.output, state.status, state.reason) == (None, None, "stopped", "length")


@pytest.mark.spec("UIW-012")
def test_the_reducer_folds_frames_into_a_state() -> None:
    """Of a recorded run: where it stands at its end."""
    journal = recorded(
        PhaseEvent("loop", 1, 1),
        ToolOutput("c", "look", 1, error="no", outcome="timeout"),
        PhaseEvent("finalizing", 2, 1, 1),
        *text(2, "5"),
        OutputDraft(5, 1, 2),
        end=result(value=5),
        texts={2: "5"},
    )
    tool = {"toolCallId": "c", "toolName": "look", "step": 1, "isError": True, "outcome": "timeout"}
    state = agent_state_from_parts(journal)
    assert state == AgentState("r", state.seq, "completed", step=2, output=5, tools=(tool,))
    assert state.seq == len(journal) - 2  # a part of the chat and the end of the leg follow


def test_a_transfer_is_told_once_and_stays_in_the_state() -> None:
    """With who drives and without the reason; one that was not seen is told at the end of the leg."""
    made = (Handoff(1, "t", "x", "y"), Handoff(2, "u", "y", "z"))
    journal = recorded(
        PhaseEvent("loop", 1, 1),
        PartEvent(HandoffPart("x", "y", "t", "secret"), 1),
        PhaseEvent("loop", 2, 1),
        end=replace(result(value=5), handoffs=made),
    )
    told = [part["data"] for part in journal if part.get("data", {}).get("kind") == "handoff"]
    assert [(data["step"], data["toolCallId"], data["fromAgent"], data["toAgent"]) for data in told] == [
        (1, "t", "x", "y"),
        (2, "u", "y", "z"),
    ]
    assert "secret" not in json.dumps(journal)
    assert [agent_state_from_parts(journal[:place]).active_agent for place in (2, 5, len(journal))] == [None, "y", "z"]
    assert agent_state_from_parts(journal).status == "completed"


@pytest.mark.spec("UIW-005")
def test_frames_that_come_again_change_nothing() -> None:
    """Whatever was applied before, in whatever order it comes again; and a kind that is not known yet is no error."""
    journal = recorded(PhaseEvent("loop", 1, 1), ToolOutput("c", "look", 1), texts={1: "x"})
    state = agent_state_from_parts(journal)
    assert agent_state_from_parts([*journal, *reversed(journal)], state) == state
    unknown = {"type": "data-agent", "data": {"runId": "r", "seq": 99, "kind": "newer"}}
    assert agent_state_from_parts([unknown], state) == agent_state_from_parts([{**unknown}], state)
    assert agent_state_from_parts([{"type": "text-delta", "delta": "x"}, {"type": "data-agent"}]) == AgentState()


@pytest.mark.spec("UIW-011")
@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdef0123456789",
        "postgres://bob:hunter22@db.example.com/x",
        "Authorization: Bearer abcdefghijklmnop",
        "api_key=verysecretvalue",
        'password: "hunter22pass"',
        "AKIAABCDEFGHIJKLMNOP",
        "ghp_0123456789abcdef0123",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    ],
)
def test_secrets_in_failures_are_masked(secret: str) -> None:
    """In the message of an error and in the details of a stop; the rest of the text stays."""
    failed = json.dumps(state_part(result("failed", error={"name": "ModelError", "message": f"it said {secret} there"})))
    stopped = json.dumps(state_part(result("stopped", reason="x", stop_details={"why": [f"it said {secret} there"]})))
    for shown in (failed, stopped):
        assert "it said " in shown
        assert " there" in shown
        assert "***" in shown
        for word in ("abcdef0123456789", "hunter22", "abcdefghijklmnop", "verysecret", "AKIAAB", "ghp_0123", "eyJzdWIi"):
            assert word not in shown


@pytest.mark.spec("UIW-010")
def test_effects_of_a_run_that_waits_for_a_word_are_not_shown() -> None:
    """Their arguments come from receipts."""
    effect = UnknownEffect("c", "pay", {"to": "marked"}, 1)
    shown = json.dumps(state_part(result("stopped", reason="tool-reconciliation-required", unknown_effects=(effect,))))
    assert "marked" not in shown


def test_what_json_cannot_say_is_said_otherwise() -> None:
    """Bytes, NaN, lone surrogates and unknown objects neither break a frame nor leave it."""
    value = jsonable({"a": b"\xff", "b": float("nan"), "c": "\ud800", "d": object(), 5: {1, 2}, "e": 10**40})
    read = json.loads(encode_part({"type": "x", "value": value}))["value"]
    assert (read["b"], read["c"], read["d"], sorted(read["5"]), read["e"]) == (None, "\ud800", "object", [1, 2], 10**40)


def test_texts_belong_to_the_turns_that_were_answered_last() -> None:
    """A conversation may begin with answers of others, and turns may have no answer."""
    messages = [user("q"), assistant("given"), user("q"), assistant("one"), assistant("three")]
    assert turn_texts(messages, [1, 3]) == {1: "one", 3: "three"}


def test_text_of_a_turn_that_was_not_seen_from_its_beginning_is_shown_once_it_is_saved() -> None:
    """A recorder that takes over repeats nothing and leaves out nothing."""
    first = Recorder([])
    for event in (PhaseEvent("loop", 1, 1), *text(1, "it ", "is ")):
        first.target.take(event)
    first.flush()  # and dies here
    second = Recorder(first.journal)
    second.look()
    for event in (Missed("late"), *text(1, "done")):
        second.target.take(event)
    second.flush()
    assert text_of(frames(second.journal)) == {1: "it is "}
    second.target.end(result(), {1: "it is done"}, 3)
    second.flush()
    assert text_of(frames(second.journal)) == {1: "it is done"}
    assert kinds(second.journal).count("text-start") == 1
    assert "discard" not in kinds(second.journal)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[StreamEvent], dict[int, str]]:
    """The events of a run, with calls that failed, and the texts that are saved at its end."""
    events: list[StreamEvent] = []
    saved: dict[int, str] = {}
    for step in range(1, draw(st.integers(1, 4)) + 1):
        attempts = draw(st.integers(1, 3))
        for attempt in range(1, attempts + 1):
            events.append(PhaseEvent("loop", step, attempt))
            words = draw(st.lists(st.sampled_from(WORDS), max_size=4))
            events += text(step, *words)
            if attempt < attempts:
                events += [Discard(step)] if words else []
            else:
                saved[step] = "".join(words)
        if draw(st.booleans()):
            events.append(ToolOutput(f"c{step}", "look", step))
    return events, saved


@pytest.mark.spec("UIW-021")
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # no time is asserted, however busy the machine
@given(runs(), st.data())
def test_recorders_that_come_late_die_and_write_at_once_show_each_thing_once(
    run: tuple[list[StreamEvent], dict[int, str]], data: st.DataObject
) -> None:
    """Of any number of them, that see the run from any place on and flush whenever they like; the last one sees its end."""
    events, saved = run
    journal: list[Part] = []
    recorders: list[tuple[Recorder, int]] = []

    def join(place: int) -> None:
        recorder = Recorder(journal)
        recorder.look()
        if place:
            recorder.target.take(Missed("late"))
            answered = {step: text for step, text in saved.items() if step < _step_at(events, place)}
            recorder.target.settle(answered)
            recorder.target.came_late()
        recorders.append((recorder, place))

    join(0)
    for place, event in enumerate(events):
        for recorder, _ in recorders:
            if recorder.target.wants_texts(event):
                recorder.target.settle({step: text for step, text in saved.items() if step < _step_at(events, place + 1)})
            recorder.target.take(event)
            if data.draw(st.booleans()):
                recorder.flush()
                _check_prefixes(journal, events, saved)
        if data.draw(st.integers(0, 3)) == 0:
            join(place + 1)
        if len(recorders) > 1 and data.draw(st.integers(0, 3)) == 0:
            recorders.pop(data.draw(st.integers(0, len(recorders) - 1)))
    for recorder, _ in recorders:
        recorder.target.end(result(), saved, 9)
        recorder.flush()
    assert text_of(frames(journal)) == {step: text for step, text in saved.items() if text}
    shown = kinds(journal)
    assert [shown.count(kind) for kind in ("start", "state", "finish", "done")] == [1, 1, 1, 1]
    assert shown[-1] == "done"
    calls = [part["data"]["toolCallId"] for part in journal if part.get("data", {}).get("kind") == "tool"]
    assert len(calls) == len(set(calls))
    assert shown.count("start-step") == shown.count("finish-step")
    _check_blocks(journal)


def _step_at(events: list[StreamEvent], place: int) -> int:
    """The turn that is under way before event number `place`."""
    return max((event.step for event in events[:place] if isinstance(event, PhaseEvent)), default=0)


def _check_prefixes(journal: list[Part], events: list[StreamEvent], saved: dict[int, str]) -> None:
    """What readers have of a turn is the beginning of something that was written there."""
    written: dict[tuple[int, int], str] = {}
    attempt = (0, 0)
    for event in events:
        if isinstance(event, PhaseEvent):
            attempt = (event.step, event.call_attempt)
        if isinstance(event, PartEvent) and isinstance(event.part, TextDelta):
            written[attempt] = written.get(attempt, "") + event.part.text
    for step, shown in text_of(frames(journal)).items():
        possible = [saved[step], *(text for (of, _), text in written.items() if of == step)]
        assert any(text.startswith(shown) for text in possible), (step, shown, possible)


def _check_blocks(journal: list[Part]) -> None:
    """Every block is begun once, ended once, and written in between alone."""
    open_block: str | None = None
    seen: set[str] = set()
    for part in journal:
        match part:
            case {"type": "text-start", "id": block}:
                assert open_block is None
                assert block not in seen
                seen.add(block)
                open_block = block
            case {"type": "text-delta", "id": block}:
                assert block == open_block
            case {"type": "text-end", "id": block}:
                assert block == open_block
                open_block = None
            case _:
                pass
    assert open_block is None
