"""What is to be shown of a run, in the order of what happened, from the events of one of its streams. Pure.

A recorder that came in the middle of a model call, or lost a part of it, does not know that call's text before it is saved, and
shows none until then: whoever shows something shows a beginning of the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from deuz_workers.app.results import AgentResult
from deuz_workers.app.stream_events import (
    Discard,
    GuardrailPart,
    HandoffPart,
    Missed,
    OutputDraft,
    PartEvent,
    PhaseEvent,
    StreamEvent,
    TextDelta,
    ToolOutput,
    WarningPart,
)
from deuz_workers.app.ui_parts import Part, agent_part, jsonable, state_part
from deuz_workers.app.ui_record import Attempt, UiRecord, UiWriter
from deuz_workers.core.messages import Message
from deuz_workers.core.redaction import redact

Show = Callable[[UiWriter], None]

DRAFT_GROWTH = 1.25
"""A draft is shown again when the answer has grown so much, so that all drafts of one together are a few times its length."""
SMALL_DRAFT_CHARS = 2_000
"""Up to here it is shown whenever it has grown."""


class UiTarget:
    """What is not recorded yet stands in `waiting`; whoever has recorded a number of them takes these away."""

    def __init__(self) -> None:
        self.waiting: list[Show] = []
        self._attempt: Attempt = (0, 0)
        self._text = ""
        self._is_known = False
        """`_text` is what the open model call has written, from its beginning."""
        self._has_hole = False
        """Text of some turn was not shown."""
        self._draft_chars = 0

    @property
    def is_behind(self) -> bool:
        """Somebody else may know more of what the run is writing."""
        return not self._is_known

    def wants_texts(self, event: StreamEvent) -> bool:
        """Ahead of this event the texts of earlier turns are to be settled: they are saved, and some were not shown."""
        return isinstance(event, PhaseEvent) and self._has_hole and event.step > self._attempt[0]

    def came_late(self) -> None:
        """What the run did before is not among the events."""
        self._is_known, self._has_hole = False, True

    def take(self, event: StreamEvent) -> None:
        match event:
            case PhaseEvent(phase, step, call_attempt, attempt):
                self._attempt, self._text, self._is_known, self._draft_chars = (step, call_attempt), "", True, 0
                part = agent_part("phase", phase=phase, step=step, callAttempt=call_attempt, attempt=attempt)
                self._show(_phase(part, self._attempt))
            case PartEvent(TextDelta(text), step):
                self._take_text(step, text)
            case OutputDraft(value, attempt, step):
                self._take_draft(value, attempt, step)
            case Discard(step) if step == self._attempt[0]:
                attempt_of_it, self._is_known = self._attempt, False
                self._show(lambda writer: _void(writer, attempt_of_it))
            case ToolOutput():
                self._show(_once(_tool_part(event)))
            case PartEvent(GuardrailPart() as fired, step):
                self._show(_once(_guardrail_part(fired, step)))
            case PartEvent(HandoffPart() as made, step):
                self._show(_once(_handoff_part(made, step)))
            case PartEvent(WarningPart(warning)):
                self._show(_once(agent_part("warning", setting=warning.setting, message=redact(warning.message))))
            case Missed():
                self.came_late()
            case _:
                pass

    def settle(self, texts: Mapping[int, str]) -> None:
        """These turns are answered, and this is what was saved."""

        def show(writer: UiWriter) -> None:
            for step, text in sorted(texts.items()):
                writer.settle_text(step, text)

        self._has_hole = False
        self._show(show)

    def end(self, result: AgentResult[Any], texts: Mapping[int, str], revision: int | None) -> None:
        """The leg is over."""
        self.settle(texts)
        for warning in result.warnings:
            self._show(_once(agent_part("warning", setting=warning.setting, message=redact(warning.message))))
        for made in result.handoffs:
            self._show(_once(_handoff_part(HandoffPart(made.source, made.to, made.call_id), made.step)))
        state = state_part(result)
        self._show(lambda writer: writer.end_leg(state, revision))

    def _take_text(self, step: int, text: str) -> None:
        if step != self._attempt[0] or not self._is_known:
            self._has_hole = True
            return
        self._text += text
        attempt, written = self._attempt, self._text

        def show(writer: UiWriter) -> None:
            if attempt == writer.record.attempt:
                writer.show_text(step, written)

        self._show(show)

    def _take_draft(self, value: object, attempt: int, step: int) -> None:
        if step != self._attempt[0] or not self._is_known:
            return
        chars = len(self._text)
        if chars > SMALL_DRAFT_CHARS and chars < self._draft_chars * DRAFT_GROWTH:
            return
        self._draft_chars = chars
        call = self._attempt[1]
        part = agent_part("draft", step=step, callAttempt=call, attempt=attempt, chars=chars)
        part = {**part, "data": {**part["data"], "partial": jsonable(value)}}
        self._show(lambda writer: writer.show_draft(part, (step, call, chars)))

    def _show(self, show: Show) -> None:
        self.waiting.append(show)


def compose(record: UiRecord, shows: Iterable[Show]) -> tuple[UiRecord, list[Part]]:
    """The parts that show all of it to readers of `record`, which stays as it is, and the record with them.

    Deltas of one block that follow each other are one.
    """
    writer = UiWriter(record.copy())
    for show in shows:
        show(writer)
    return writer.record, writer.parts


def turn_texts(messages: Sequence[Message], replied: Sequence[int]) -> dict[int, str]:
    """Saved texts by turn. `replied`: turns that were answered, in order; the newest answers are theirs, whatever the
    conversation began with."""
    answers = [message.text for message in messages if message.role == "assistant"]
    return dict(zip(reversed(replied), reversed(answers), strict=False))


def _phase(part: Part, attempt: Attempt) -> Show:
    return lambda writer: writer.show_phase(part, attempt)


def _once(part: Part) -> Show:
    return lambda writer: writer.show_once(part)


def _void(writer: UiWriter, attempt: Attempt) -> None:
    if attempt == writer.record.attempt:
        writer.drop_text(attempt[0])


def _tool_part(event: ToolOutput) -> Part:
    """That a call has ended, and how; neither what it returned nor the text of its error."""
    outcome = None if event.error is None else event.outcome or "error"
    return agent_part(
        "tool",
        toolCallId=event.tool_call_id,
        toolName=event.tool_name,
        step=event.step,
        isError=event.is_error,
        outcome=outcome,
    )


def _handoff_part(made: HandoffPart, step: int) -> Part:
    """Who drives; the reason is an argument of a call, which readers are not shown."""
    return agent_part("handoff", step=step, toolCallId=made.tool_call_id, fromAgent=made.source, toAgent=made.to)


def _guardrail_part(fired: GuardrailPart, step: int) -> Part:
    return agent_part(
        "guardrail",
        hook=fired.hook,
        action=fired.action,
        name=fired.name,
        reason=None if fired.reason is None else redact(fired.reason),
        toolCallId=fired.tool_call_id,
        step=step,
    )
