"""Effects that nobody knows, and words about them: which interrupted calls may run again, and what became of the others.

A word is bound to one execution of one call: its turn, the call's id and how often it had begun. Said of an execution that is
over, or of another call under the same id, it counts for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from deuz_workers.core.codec import digest
from deuz_workers.core.pending_item import ID_DIGITS, binding_of_call
from deuz_workers.core.receipts import Receipt
from deuz_workers.errors import CodecError

if TYPE_CHECKING:
    from deuz_workers.core.run import Run


@dataclass(frozen=True, slots=True)
class Word:
    """What somebody says about one interrupted call: that it may run once more, or how it ended."""

    call_id: str
    again: bool = False
    output: object = None
    """Where it ended: the raw result, or what is told of the failure."""
    is_error: bool = False
    verdict: Mapping[str, object] | None = None
    """Of the gate, given again for the next execution; the one that was recorded was for the last."""
    step: int | None = None
    attempt: int | None = None
    """Which execution; None in notes of older builds, which meant whatever was interrupted under the id."""

    def is_about(self, receipt: Receipt) -> bool:
        return (
            receipt.stage == "executing"
            and receipt.call_id == self.call_id
            and self.step in (None, receipt.step)
            and self.attempt in (None, receipt.attempt)
        )


def unknown_effects(run: Run) -> tuple[Receipt, ...]:
    """Interrupted calls that may neither be repeated nor answered before somebody says what happened (RCP-007)."""
    settled = run.retry_verdicts.keys() | run.judged_idempotent
    return tuple(receipt for receipt in run.interrupted if is_unknown(receipt) and receipt.call_id not in settled)


def is_unknown(receipt: Receipt) -> bool:
    """It was interrupted, and does not say that it may be repeated."""
    return receipt.stage == "executing" and not receipt.idempotent


def accepted(
    words: Iterable[Word], receipts: Mapping[str, Receipt], settled: Collection[str] = frozenset()
) -> tuple[Word, ...]:
    """Those that count: all that are about an interrupted call, or none while one of `receipts` is left open (REC-010).

    `settled`: call ids about which nothing needs to be said.
    """
    fitting = {word.call_id: word for word in words if word.call_id in receipts and word.is_about(receipts[word.call_id])}
    left_open = any(is_unknown(receipt) and name not in fitting and name not in settled for name, receipt in receipts.items())
    return () if left_open else tuple(fitting.values())


def effect_id(run_id: str, receipt: Receipt, arguments: Mapping[str, object]) -> str:
    """Names one execution of one call with these arguments, and no other: the call's id, `@`, and a digest."""
    record = {
        "kind": "effect",
        "run_id": run_id,
        "step": receipt.step,
        "call_id": receipt.call_id,
        "attempt": receipt.attempt,
        "tool": receipt.tool,
        "arguments": dict(arguments),
    }
    return f"{receipt.call_id}@{digest(record)[:ID_DIGITS]}"


def approval_id_of(run: Run, call_id: str) -> str | None:
    """Of the request that the call's gate asked, or would ask; None where the turn has no such call."""
    asked = run.envelope.verdicts.get(call_id, {}).get("approval_id")
    if isinstance(asked, str):
        return asked
    call = next((call for call in run.open_calls if call.call_id == call_id), None)
    return None if call is None else binding_of_call("approval", run.envelope.run_id, run.step, call).item_id


def arguments_of(run: Run, call_id: str) -> Mapping[str, object]:
    """Those that a call of the newest turn runs with: a person's who edited them, else the model's."""
    edited = run.envelope.verdicts.get(call_id, {}).get("arguments")
    if isinstance(edited, Mapping):
        return cast(Mapping[str, object], edited)
    asked = next((call.arguments for call in run.open_calls if call.call_id == call_id), None)
    return asked or {}


def note_of(words: Iterable[Word]) -> dict[str, object]:
    """The body of the one note that carries them all, so that they arrive together or not at all."""
    words = tuple(words)
    return {
        "tool_call_ids": [word.call_id for word in words if word.again],
        "results": {word.call_id: _outcome(word) for word in words if not word.again},
        "calls": {word.call_id: _place(word) for word in words},
    }


def words_in(body: Mapping[str, object]) -> tuple[Word, ...]:
    """Raises `CodecError` for a body that is none of ours."""
    again, results, calls = body.get("tool_call_ids", []), body.get("results", {}), body.get("calls", {})
    if not isinstance(again, list | tuple) or not all(isinstance(name, str) for name in cast("list[object]", again)):
        raise CodecError("the note holds no list of texts")
    for records in (results, calls):
        if not isinstance(records, Mapping):
            raise CodecError("the note holds no outcomes by call")
        if not all(isinstance(record, Mapping) for record in cast(Mapping[object, object], records).values()):
            raise CodecError("the note holds no outcomes by call")
    places = cast(Mapping[str, Mapping[str, object]], calls)
    outcomes = cast(Mapping[str, Mapping[str, object]], results)
    found = [_word(name, places.get(name), again=True) for name in cast("list[str]", again)]
    found += [
        _word(name, places.get(name), output=record.get("output"), is_error=record.get("is_error") is True)
        for name, record in outcomes.items()
    ]
    return tuple(found)


def _word(
    call_id: str, place: Mapping[str, object] | None, *, again: bool = False, output: object = None, is_error: bool = False
) -> Word:
    place = place or {}
    step, attempt, verdict = place.get("step"), place.get("attempt"), place.get("verdict")
    return Word(
        call_id,
        again,
        output,
        is_error,
        cast(Mapping[str, object], verdict) if isinstance(verdict, Mapping) else None,
        step if isinstance(step, int) else None,
        attempt if isinstance(attempt, int) else None,
    )


def _outcome(word: Word) -> dict[str, object]:
    return {"output": word.output, "is_error": True} if word.is_error else {"output": word.output}


def _place(word: Word) -> dict[str, object]:
    place = {"step": word.step, "attempt": word.attempt, "verdict": None if word.verdict is None else dict(word.verdict)}
    return {name: value for name, value in place.items() if value is not None}
