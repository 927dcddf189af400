"""From live parts to what a reader is shown. Pure: parts and the result in, events out.

One attempt at a turn is shown at a time. What an older executor still writes is ignored by its epoch; what a dead one wrote is
discarded when its successor begins, when the store says that the call has no answer, or when the result says something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from deuz_workers.app.drafts import NOTHING_YET, Drafts
from deuz_workers.app.results import AgentResult
from deuz_workers.app.stream_events import (
    ArgumentsDelta,
    Discard,
    GuardrailPart,
    HandoffPart,
    Missed,
    OutputDraft,
    OutputElement,
    PartEvent,
    Phase,
    PhaseEvent,
    ReasoningDelta,
    ResultEvent,
    StreamEvent,
    SubAgentPart,
    TextDelta,
    ToolOutput,
    WarningData,
    WarningPart,
)
from deuz_workers.core.envelope import PLAIN
from deuz_workers.core.live import LivePart, inner_part
from deuz_workers.errors import CodecError
from deuz_workers.ports.output import OutputType


class StreamView:
    """What one reader of a run has been shown. `output`: the type of the run's answer, where it is known here."""

    def __init__(self, output: Callable[[], OutputType | None]) -> None:
        self._output = output
        self._step = 0
        self._epoch = -1
        self._shown = ""
        self._has_aside = False
        """Thoughts or arguments of the open call were shown."""
        self._is_open = False
        """The call has neither an answer nor a failure yet, as far as this reader was told."""
        self._drafts: Drafts | None = None
        self._attempt = 0
        self._warned: set[tuple[str, str]] = set()
        self._children: dict[str, StreamView] = {}
        """Of runs below, by their ids."""
        self.ended_at = -1
        """Revision of the newest commit that gave the run something to report."""

    def take(self, parts: Sequence[LivePart]) -> list[StreamEvent]:
        return [event for part in parts for event in self._take(part)]

    def finish(self, result: AgentResult[Any]) -> list[StreamEvent]:
        """The last events. Afterwards the text that was shown of the last answer is the one that the result has."""
        return [*self._settle_text(result), *self._settle_warnings(result), ResultEvent(result)]

    def _take(self, part: LivePart) -> Iterator[StreamEvent]:
        data = part.data
        match part.kind:
            case "begin" if part.epoch > self._epoch or (part.epoch == self._epoch and not self._is_open):
                # A commit that begins a call may also have ended the one before it.
                phase = cast(Phase, data.get("phase", "loop"))
                yield from self._begin(part, phase, cast(int, data.get("output_attempt", 0)))
                model = cast("str | None", data.get("model"))
                yield PhaseEvent(phase, part.step, cast(int, data.get("attempt", 1)), self._attempt, model)
            case "text" if part.epoch >= self._epoch:
                if part.epoch > self._epoch:  # its beginning was missed
                    yield from self._begin(part, "loop", 0)
                yield from self._show(str(data["text"]))
            case "reasoning" | "arguments" if part.epoch >= self._epoch:
                if part.epoch > self._epoch:
                    yield from self._begin(part, "loop", 0)
                yield self._beside(part)
            case "void" | "reply" if part.epoch > self._epoch:
                if part.kind == "void" and part.step == self._step and self._is_open:
                    yield from self._discard()
                self._epoch, self._is_open = part.epoch, False
            case "tool":
                error = data.get("error")
                yield ToolOutput(
                    str(data["call_id"]),
                    str(data["tool"]),
                    part.step,
                    data.get("value"),
                    None if error is None else str(error),
                    cast("str | None", data.get("outcome")),
                )
            case "guardrail":
                reason, call_id = (None if data.get(name) is None else str(data[name]) for name in ("reason", "call_id"))
                fired = GuardrailPart(str(data["hook"]), str(data["action"]), str(data["name"]), reason, call_id)
                yield PartEvent(fired, part.step)
            case "handoff":
                reason = None if data.get("reason") is None else str(data["reason"])
                made = HandoffPart(str(data["from"]), str(data["to"]), str(data["call_id"]), reason)
                yield PartEvent(made, part.step)
            case "warning":
                yield from self._warn(str(data["setting"]), str(data["message"]), str(data.get("of_type", PLAIN)))
            case "end":
                self.ended_at = max(self.ended_at, part.epoch)
            case "child":
                yield from self._below(part)
            case "dropped":
                yield Missed("dropped", cast("int | None", data.get("count")))
            case "lost":
                yield Missed("lost")
            case _:
                pass

    def _below(self, part: LivePart) -> Iterator[StreamEvent]:
        run_id, path = str(part.data.get("run")), tuple(map(str, cast("list[object]", part.data.get("path", []))))
        view = self._children.setdefault(run_id, StreamView(lambda: None))
        try:
            events = view.take([inner_part(part)])
        except CodecError:
            yield Missed("lost")
            return
        for event in events:
            if isinstance(event, PartEvent | PhaseEvent | ToolOutput | Discard | Missed):
                yield PartEvent(SubAgentPart(path, run_id, event), part.step)

    def _begin(self, part: LivePart, phase: Phase, attempt: int) -> Iterator[StreamEvent]:
        if self._is_open and part.step == self._step:
            yield from self._discard()
        self._step, self._epoch, self._shown, self._is_open = part.step, part.epoch, "", True
        self._has_aside = False
        self._attempt = attempt if phase == "finalizing" else 0
        self._drafts = Drafts(self._output()) if phase == "finalizing" else None

    def _show(self, text: str) -> Iterator[StreamEvent]:
        self._shown += text
        yield PartEvent(TextDelta(text), self._step)
        if self._drafts is None:
            return
        draft, elements = self._drafts.add(text)
        if draft is not NOTHING_YET:
            yield OutputDraft(draft, self._attempt, self._step)
        for place, element in elements:
            yield OutputElement(element, place, self._attempt, self._step)

    def _beside(self, part: LivePart) -> StreamEvent:
        self._has_aside = True
        text = str(part.data["text"])
        if part.kind == "reasoning":
            return PartEvent(ReasoningDelta(text), part.step)
        return PartEvent(ArgumentsDelta(text, cast(int, part.data.get("place", 0)), str(part.data["tool"])), part.step)

    def _discard(self) -> Iterator[StreamEvent]:
        if self._shown or self._has_aside:
            self._shown, self._has_aside = "", False
            yield Discard(self._step)

    def _warn(self, setting: str, message: str, kind: str) -> Iterator[StreamEvent]:
        if (setting, message) not in self._warned:
            self._warned.add((setting, message))
            yield PartEvent(WarningPart(WarningData(setting, message, kind)))

    def _settle_text(self, result: AgentResult[Any]) -> Iterator[StreamEvent]:
        answer = next((message.text for message in reversed(result.messages) if message.role == "assistant"), "")
        if result.status != "completed":
            if self._is_open and (self._has_aside or self._shown != answer):
                yield from self._discard()
        elif self._shown != answer or self._step != result.steps:
            finalizing, attempt = self._drafts is not None or self._output() is not None, max(1, self._attempt)
            yield from self._discard() if self._step == result.steps else ()
            self._step, self._shown = result.steps, ""
            self._attempt = attempt if finalizing else 0
            self._drafts = Drafts(self._output()) if finalizing else None
            if answer:
                yield from self._show(answer)

    def _settle_warnings(self, result: AgentResult[Any]) -> Iterator[StreamEvent]:
        for warning in result.warnings:
            yield from self._warn(warning.setting, warning.message, warning.type)
