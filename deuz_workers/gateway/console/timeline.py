"""What a run did, turn by turn, from its journal, its receipts and the texts that were saved. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from deuz_workers.app.run_event import RunEvent
from deuz_workers.core.receipts import Receipt
from deuz_workers.core.redaction import redact
from deuz_workers.gateway.console.spelling import counted, duration

Tone = Literal["plain", "good", "bad", "wait"]
CallState = Literal["waits", "runs", "done", "failed", "delegated"]


@dataclass(slots=True)
class Call:
    """A tool call; neither what it was asked with nor what it returned."""

    call_id: str
    tool: str
    state: CallState = "waits"
    outcome: str | None = None
    attempt: int = 1
    began_at_ms: int | None = None
    ended_at_ms: int | None = None
    child: str | None = None
    reconciled: bool = False
    kind: Literal["call"] = "call"

    @property
    def took(self) -> str | None:
        """How long; None while that is not known."""
        if self.began_at_ms is None or self.ended_at_ms is None:
            return None
        return duration(max(0, self.ended_at_ms - self.began_at_ms))


@dataclass(frozen=True, slots=True)
class Note:
    """Something else that happened."""

    at_ms: int
    text: str
    tone: Tone = "plain"
    kind: Literal["note"] = "note"


@dataclass(slots=True)
class Turn:
    """One model call and what followed from it. `step` 0: before the first."""

    step: int
    began_at_ms: int
    model: str | None = None
    replied_at_ms: int | None = None
    calls_of_model: int = 0
    finish_reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    text: str | None = None
    """Saved; None while it is not."""
    waits_since_ms: int | None = None
    """For an answer of somebody outside."""
    entries: list[Call | Note] = field(default_factory=list[Call | Note])

    @property
    def is_open(self) -> bool:
        """The model has not answered."""
        return self.step > 0 and self.replied_at_ms is None

    @property
    def took(self) -> str | None:
        """How long the model took, repeated calls included."""
        return None if self.replied_at_ms is None else duration(max(0, self.replied_at_ms - self.began_at_ms))


def timeline(
    events: Iterable[RunEvent], receipts: Mapping[tuple[int, str], Receipt], texts: Mapping[int, str]
) -> tuple[Turn, ...]:
    """Turns in order. What `events` begin in the middle of is shown from there."""
    turns: list[Turn] = []
    for event in events:
        _take(turns, event)
    for turn in turns:
        turn.text = texts.get(turn.step)
        for entry in turn.entries:
            receipt = receipts.get((turn.step, entry.call_id)) if isinstance(entry, Call) else None
            if isinstance(entry, Call) and receipt is not None:
                _fold(entry, receipt)
    return tuple(turns)


def _take(turns: list[Turn], event: RunEvent) -> None:
    data: Mapping[str, Any] = event.data
    step = data.get("step")
    if event.type == "model.called" and (not turns or turns[-1].step != step):
        turns.append(Turn(step if isinstance(step, int) else 0, event.at_ms))
    elif not turns:
        turns.append(Turn(0, event.at_ms))
    turn = turns[-1]
    match event.type:
        case "model.called":
            turn.calls_of_model += 1
            turn.model = data.get("model") or turn.model
            if data.get("purpose"):
                turn.entries.append(Note(event.at_ms, f"The model was called for {data['purpose']}"))
        case "model.replied":
            turn.replied_at_ms = event.at_ms
            turn.model = data.get("model") or turn.model
            turn.finish_reason = data.get("finish_reason")
            turn.input_tokens, turn.output_tokens = data.get("input_tokens"), data.get("output_tokens")
        case "turn.answered":
            pass
        case "run.suspended":
            turn.waits_since_ms = event.at_ms
            turn.entries.append(_note(event))
        case "run.resumed":
            turn.entries.append(_note(event, turn.waits_since_ms))
        case name if name.startswith(("tool.", "child.")) and data.get("call_id") is not None:
            _take_call(_call(turn, data), event)
        case _:
            turn.entries.append(_note(event))


def _call(turn: Turn, data: Mapping[str, Any]) -> Call:
    call_id = str(data["call_id"])
    for entry in turn.entries:
        if isinstance(entry, Call) and entry.call_id == call_id:
            return entry
    made = Call(call_id, str(data.get("tool") or "tool"))
    turn.entries.append(made)
    return made


def _take_call(call: Call, event: RunEvent) -> None:
    data: Mapping[str, Any] = event.data
    match event.type:
        case "tool.started":
            call.state, call.began_at_ms, call.attempt = "runs", event.at_ms, int(data.get("attempt") or 1)
        case "child.started":
            call.state, call.began_at_ms, call.child = "delegated", event.at_ms, data.get("child")
        case "tool.rejected" | "tool.failed":
            call.state, call.outcome, call.ended_at_ms = "failed", data.get("outcome") or "error", event.at_ms
        case "tool.executed" | "tool.completed":
            call.state, call.outcome, call.ended_at_ms = "done", data.get("outcome"), event.at_ms
            if call.outcome is not None:
                call.state = "failed"
        case _:
            pass


def _fold(call: Call, receipt: Receipt) -> None:
    """The receipt is the truth; the journal says when."""
    call.tool, call.attempt = receipt.tool or call.tool, receipt.attempt
    call.child, call.reconciled = receipt.child, receipt.reconciled


def _note(event: RunEvent, since_ms: int | None = None) -> Note:
    """`since_ms`: when what it ends began."""
    text, tone = _words(event.type, event.data)
    if since_ms is not None:
        text = f"{text}, after {duration(max(0, event.at_ms - since_ms))}"
    return Note(event.at_ms, redact(text), tone)


def _words(kind: str, data: Mapping[str, Any]) -> tuple[str, Tone]:
    match kind:
        case "run.suspended":
            return f"Waits for {counted(len(data.get('items') or ()), 'answer')}", "wait"
        case "run.resumed":
            return f"Goes on with {counted(int(data.get('answers') or 0), 'answer')}", "good"
        case "call.approved":
            edited = ", with other arguments" if data.get("edited_to") else ""
            return f"{data.get('call_id')} approved{_by(data)}{edited}", "good"
        case "call.denied":
            return f"{data.get('call_id')} denied{_by(data)}", "bad"
        case "run.completed":
            return "Completed", "good"
        case "run.stopped" | "run.failed":
            why = data.get("reason") or data.get("error")
            return f"{'Stopped' if kind == 'run.stopped' else 'Failed'}{f': {why}' if why else ''}", "bad"
        case "run.cancelling":
            return "A cancel was asked for", "bad"
        case "run.retried":
            return "Taken up again", "plain"
        case "run.handed_off":
            return f"Handed over from {data.get('from')} to {data.get('to')}", "plain"
        case "run.policy_narrowed" | "run.budgets_narrowed":
            return "May do or spend less from here on", "plain"
        case "verification.ended":
            verdict = str(data.get("verdict"))
            return f"The answer was verified: {verdict}", "good" if verdict == "verified" else "bad"
        case "memory.recalled" if isinstance(count := data.get("count"), int):
            return f"{count:,} {'memory' if count == 1 else 'memories'} recalled", "plain"
        case "run.inputs" | "run.message":
            return f"{counted(int(data.get('count') or 0), 'message')} came in", "plain"
        case "model.failed":
            retry = data.get("retry_in_ms")
            then = f", again in {duration(int(retry))}" if retry is not None else ""
            then = f", goes on with {data['next_model']}" if data.get("next_model") else then
            return f"A model call failed{f' ({error})' if (error := data.get('error')) else ''}{then}", "bad"
        case "model.abandoned":
            return "A model call was given up: its process had ended", "bad"
        case "guardrail":
            why = f": {data['reason']}" if data.get("reason") else ""
            return f"Guardrail {data.get('name')} {data.get('action')} ({data.get('hook')}){why}", "bad"
        case "warning":
            return f"Warning about {data.get('setting')}: {data.get('message')}", "bad"
        case "budget.warned":
            return f"{data.get('percent')}% of a budget is used ({data.get('dimension')})", "wait"
        case "output.rejected":
            return f"The answer was not of the wanted form (attempt {data.get('attempt')})", "bad"
        case "history.compacted":
            return f"Older messages were made shorter ({data.get('layer')})", "plain"
        case _:
            details = ", ".join(f"{name} {value}" for name, value in data.items() if value is not None and name != "step")
            return f"{kind}{f': {details}' if details else ''}", "plain"


def _by(data: Mapping[str, Any]) -> str:
    return f" by {data['by']}" if data.get("by") else ""
