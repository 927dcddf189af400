"""What readers of a live stream are told while a run goes on: fragments of answers, results of tools, how calls and runs end.

Best effort and never the only copy: everything here stands in the store as well, or is void. `step` is the turn; `epoch` the
revision of the commit that a part belongs to, so that what a dead attempt wrote is told from what its successor writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast, get_args

from deuz_workers.core.change import Stage
from deuz_workers.core.codec import decode, encode
from deuz_workers.core.messages import NOTHING
from deuz_workers.core.receipts import MISSING, Receipt
from deuz_workers.core.run import Run
from deuz_workers.errors import CodecError

LiveKind = Literal[
    "begin",
    "text",
    "reasoning",
    "arguments",
    "void",
    "reply",
    "tool",
    "handoff",
    "guardrail",
    "warning",
    "end",
    "commit",
    "child",
    "dropped",
    "lost",
]


@dataclass(frozen=True, slots=True)
class LivePart:
    """One thing that readers are told.

    ==========  ============================================================================================================
    `begin`     a model call begins: `attempt`, `phase`, `output_attempt`, and `model` where it is not the run's own agent's
    `text`      a fragment of its answer: `text`
    `reasoning` a fragment of what it thinks: `text`
    `arguments` a fragment of the arguments of a call that it is about to ask for: `text`, `place` among its calls, `tool`
    `void`      the call has no answer; what was shown of this turn is dropped
    `reply`     the answer is saved: `chars` of text, `finish_reason`
    `tool`      a call of a tool has ended: `call_id`, `tool`, and `value`, or `error` and `outcome`, or all of them where what
                it returned could not be shown; `elsewhere` where the value is too large for the stream and stands in its
                receipt alone
    `handoff`   another agent drives the run from the next turn on: `from`, `to`, `call_id`, and `reason` where there is one
    `guardrail` a guardrail did not let a value pass as it was: `hook`, `action`, `name`, `reason`, `call_id`; not the value
    `warning`   `setting`, `message`, and `of_type` where it is another than `warning`
    `end`       the run has something to report: `status`
    `commit`    nothing beyond the commit itself, so that no revision is missing
    `child`     something that was told in a run below: `path`, its agents; `run`, its id; `part`, as a list. Of no commit of
                this run, so its epoch is 0
    `dropped`   `count` parts did not fit into the writer's buffer
    `lost`      parts are missing, nobody knows how many
    ==========  ============================================================================================================
    """

    kind: LiveKind
    step: int = 0
    epoch: int = 0
    data: Mapping[str, object] = field(default_factory=lambda: NOTHING)


def parts_of(run: Run, revision: int) -> Iterator[LivePart]:
    """What the commit of everything unsaved in `run`, applied as `revision`, tells: one part at least."""
    told = False
    for part in _told_by(run, revision):
        told = True
        yield part
    if not told:
        yield LivePart("commit", run.step, revision)


def forwarded(part: LivePart, path: Sequence[str], run_id: str) -> LivePart:
    """`part` of the run below that has this id, for readers of the topmost one."""
    inner = [part.kind, part.step, part.epoch, dict(part.data)]
    return LivePart("child", part.step, 0, {"path": list(path), "run": run_id, "part": inner})


def inner_part(part: LivePart) -> LivePart:
    """What a `child` part forwards. Raises `CodecError` for what this build cannot have written."""
    return _read(part.data.get("part"))


def _told_by(run: Run, revision: int) -> Iterator[LivePart]:
    envelope = run.envelope
    for record in run.unsaved.journal:
        step = cast(int, record.get("step", run.step))
        match record["type"]:
            case "model.called" | "model.abandoned" if record.get("purpose") == "memory":
                pass  # before its first turn or behind its end, which are nobody's to read
            case "model.called":
                about: dict[str, object] = {"attempt": record.get("attempt"), "phase": envelope.phase}
                about["output_attempt"] = envelope.checkpoint.output_attempts
                if "model" in record:
                    about["model"] = record["model"]
                yield LivePart("begin", step, revision, about)
            case "model.replied":
                text = next((message.text for message in reversed(run.unsaved.messages) if message.role == "assistant"), "")
                about = {"chars": len(text), "finish_reason": record.get("finish_reason")}
                yield LivePart("reply", step, revision, about)
                yield from _not_dispatched(run, step, revision)
            case "model.failed" | "model.abandoned":
                yield LivePart("void", step, revision)
            case "tool.executed" | "tool.completed" | "tool.failed" | "tool.rejected":
                if (ended := _ended_call(run, record)) is not None:
                    yield LivePart("tool", step, revision, _outcome(ended))
            case "run.handed_off":
                about = {name: record.get(name) for name in ("from", "to", "call_id")}
                if reason := _reason_of(run, record.get("call_id")):
                    about["reason"] = reason
                yield LivePart("handoff", step, revision, about)
            case "guardrail":
                about = {name: record.get(name) for name in ("hook", "action", "name", "reason", "call_id")}
                yield LivePart("guardrail", step, revision, about)
            case "warning":
                told = {name: record[name] for name in ("setting", "message", "of_type") if name in record}
                yield LivePart("warning", step, revision, told)
            case "run.suspended" if run.unsaved.children:
                pass  # it goes on by itself, once those have ended
            case "run.suspended" | "run.completed" | "run.stopped" | "run.failed":
                yield LivePart("end", step, revision, {"status": envelope.status})
            case _:
                pass


def _not_dispatched(run: Run, step: int, revision: int) -> Iterator[LivePart]:
    """Calls of the reply that never run; they have no receipts."""
    for message in run.unsaved.messages:
        for result in message.tool_results:
            if result.outcome == "not-dispatched":
                about = {"call_id": result.call_id, "tool": result.name, "error": result.text, "outcome": result.outcome}
                yield LivePart("tool", step, revision, about)


def _reason_of(run: Run, call_id: object) -> str | None:
    """What the model gave for a transfer that was accepted just now."""
    newest = next((message for message in reversed(run.history) if message.role == "assistant"), None)
    call = next((call for call in newest.tool_uses if call.call_id == call_id), None) if newest is not None else None
    reason = None if call is None or call.arguments is None else call.arguments.get("reason")
    return reason if isinstance(reason, str) else None


_ENDS: frozenset[Stage] = frozenset(("completed", "failed", "validation-failed", "projection-failed"))
"""Stages at which it is known how a call ended; one that is `executed` may still miss its schema."""


def _ended_call(run: Run, record: Mapping[str, object]) -> Receipt | None:
    """The receipt that the record is about, unless readers were told of its outcome by an earlier commit."""
    for receipt, stored in run.unsaved.receipts:
        if receipt.call_id != record.get("call_id") or receipt.step != record.get("step"):
            continue
        is_known = stored is not None and stored.stage in _ENDS
        return receipt if receipt.stage in _ENDS and not is_known else None
    return None


def _outcome(receipt: Receipt) -> Mapping[str, object]:
    about: dict[str, object] = {"call_id": receipt.call_id, "tool": receipt.tool}
    if receipt.error is not None:
        about |= {"error": receipt.error, "outcome": receipt.outcome or "error"}
    if receipt.value is not MISSING or receipt.error is None:
        about |= {"value": None if receipt.value is MISSING else receipt.value}
    return about


MAX_TEXT_CHARS = 16_000
"""Of a fragment; a longer one is told in several."""
FRAGMENTS: frozenset[LiveKind] = frozenset(("text", "reasoning", "arguments"))


def joined(parts: Sequence[LivePart]) -> Iterator[LivePart]:
    """The same with fragments of one thing that follow each other as one, up to `MAX_TEXT_CHARS`."""
    texts: list[str] = []
    open_part: LivePart | None = None
    for part in parts:
        if open_part is not None and part.kind in FRAGMENTS and _of(part) == _of(open_part):
            texts.append(str(part.data["text"]))
            continue
        yield from _texts(open_part, texts)
        open_part, texts = (part, [str(part.data["text"])]) if part.kind in FRAGMENTS else (None, [])
        if open_part is None:
            yield part
    yield from _texts(open_part, texts)


def _of(part: LivePart) -> tuple[object, ...]:
    """What a fragment is one of."""
    return part.kind, part.step, part.epoch, part.data.get("place"), part.data.get("tool")


def _texts(like: LivePart | None, texts: Sequence[str]) -> Iterator[LivePart]:
    if like is None:
        return
    text = "".join(texts)
    for start in range(0, len(text), MAX_TEXT_CHARS):
        yield replace(like, data={**like.data, "text": text[start : start + MAX_TEXT_CHARS]})


def encode_parts(parts: Sequence[LivePart], *, max_value_bytes: int) -> list[str]:
    """Each part as text. A raw value above `max_value_bytes`, or one that cannot be written, is left to its receipt."""
    return [_encode(part, max_value_bytes) for part in parts]


def _encode(part: LivePart, max_value_bytes: int) -> str:
    head = [part.kind, part.step, part.epoch]
    if part.kind == "child":
        inner = _encode(inner_part(part), max_value_bytes)
        return encode([*head, {**part.data, "part": decode(inner)}])
    if "value" not in part.data:
        return encode([*head, dict(part.data)])
    try:
        return encode([*head, dict(part.data)], max_bytes=max_value_bytes)
    except CodecError:
        rest = {name: value for name, value in part.data.items() if name != "value"}
        return encode([*head, rest | {"elsewhere": True}])


_TEXTS: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "reasoning": ("text",),
    "arguments": ("text", "tool"),
    "tool": ("call_id", "tool"),
    "handoff": ("from", "to", "call_id"),
    "guardrail": ("hook", "action", "name"),
    "warning": ("setting", "message"),
}
"""What parts of a kind cannot be shown without."""


def decode_part(text: str) -> LivePart:
    """Raises `CodecError` for what `encode_parts` of this build cannot have written."""
    return _read(decode(text))


def _read(record: object) -> LivePart:
    match record:
        case [str(kind), int(step), int(epoch), dict(data)] if (
            kind in get_args(LiveKind)
            and all(isinstance(data.get(name), str) for name in _TEXTS.get(kind, ()))
            and isinstance(data.get("path", []), list)
        ):
            return LivePart(cast(LiveKind, kind), step, epoch, cast("dict[str, object]", data))
        case _:
            raise CodecError("an entry of a live stream is none of this build's")
