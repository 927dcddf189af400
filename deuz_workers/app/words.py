"""Words about interrupted calls as callers give them, each bound to the execution that it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn, cast

from deuz_workers.app.pending import Signing
from deuz_workers.core.approval_token import DENIAL
from deuz_workers.core.bare_id import names_one_call
from deuz_workers.core.codec import encode
from deuz_workers.core.receipts import Receipt
from deuz_workers.core.reconciliation import Word, approval_id_of, arguments_of, effect_id, is_unknown, note_of
from deuz_workers.core.run import Run
from deuz_workers.errors import CodecError, ReconciliationError
from deuz_workers.ports.definition import NO_TOOLS
from deuz_workers.ports.tool import Tool
from deuz_workers.tools.options import MAX_RESULT_BYTES

Reconciled = Mapping[str, object] | Iterable[Mapping[str, object]]
"""Outputs by tool call id or effect id, or records of `tool_call_id`, `output` and, for failures, `is_error`."""
NO_RESULTS: Mapping[str, Mapping[str, object]] = {}


@dataclass(frozen=True, slots=True)
class Words:
    """Complete or of no effect (REC-010). Calls are named by their id, or by the `effect_id` of one execution.

    Raises `ReconciliationError` for a call that is named twice.
    """

    retry: tuple[str, ...] = ()
    """May run once more."""
    results: Mapping[str, Mapping[str, object]] = field(default_factory=lambda: NO_RESULTS)
    """How they ended: `output`, and `is_error`."""
    verdicts: Mapping[str, Mapping[str, object]] = field(default_factory=lambda: NO_RESULTS)
    """On the gates of those that run again, by approval id."""

    def __post_init__(self) -> None:
        named = (*self.retry, *self.results)
        for name in named:
            if named.count(name) > 1:
                refuse("call", f"tool call {name!r} is named twice; it either runs again or has an outcome, once")
        for name, record in self.results.items():
            try:
                encode(record.get("output"), max_bytes=MAX_RESULT_BYTES)
            except CodecError as error:
                refuse("output", f"the outcome of call {name!r} cannot be stored: {error.message}")

    @property
    def any(self) -> bool:
        return bool(self.retry or self.results)

    def about(self, run: Run) -> tuple[Word, ...]:
        """Each bound to its execution. Raises `ReconciliationError`, with the part that does not match (REC-007, REC-009)."""
        found: dict[str, Word] = {}
        for name in (*self.retry, *self.results):
            receipt = _interrupted(name, run)
            if receipt.call_id in found:
                refuse("call", f"tool call {receipt.call_id!r} is named twice; it either runs again or has an outcome, once")
            record = self.results.get(name)
            bound = Word(receipt.call_id, again=record is None, step=receipt.step, attempt=receipt.attempt)
            if record is None:
                found[receipt.call_id] = _with_verdict(bound, self._verdict(name, receipt, run))
            else:
                found[receipt.call_id] = _with_outcome(bound, record)
        return tuple(found.values())

    def left(self, run: Run, tools: Mapping[str, Tool] = NO_TOOLS) -> tuple[str, ...]:
        """Interrupted calls that nothing is said about and that do not run again by themselves, as far as `tools` tell."""
        named = {word.call_id for word in self.about(run)}
        return tuple(
            receipt.call_id
            for receipt in run.interrupted
            if is_unknown(receipt) and receipt.call_id not in named and not _was_idempotent(receipt, tools)
        )

    def unused_verdicts(self, run: Run) -> tuple[str, ...]:
        """Names of verdicts that are on no call that runs again."""
        used = {name for call in self.retry for name in self._names(call, _interrupted(call, run), run)}
        return tuple(name for name in self.verdicts if name not in used)

    def _verdict(self, name: str, receipt: Receipt, run: Run) -> Mapping[str, object] | None:
        asked = approval_id_of(run, receipt.call_id)
        found = next((self.verdicts[known] for known in self._names(name, receipt, run) if known in self.verdicts), None)
        return None if found is None else {**found, "approval_id": asked}

    def _names(self, name: str, receipt: Receipt, run: Run) -> tuple[str, ...]:
        """Under which a verdict on the call may stand; its bare id where the run used it once (APR-007)."""
        asked = approval_id_of(run, receipt.call_id) or ""
        bare = (receipt.call_id,) if names_one_call(run, receipt.call_id) else ()
        return (asked, _id_of(receipt, run), *bare)


def outcomes_of(given: Reconciled) -> dict[str, Mapping[str, object]]:
    """Outcomes by name. Raises `ReconciliationError` for two of one call, and for what is no outcome."""
    if isinstance(given, Mapping):
        return {name: {"output": output} for name, output in cast(Mapping[str, object], given).items()}
    found: dict[str, Mapping[str, object]] = {}
    for record in given:
        name = record.get("tool_call_id")
        if not isinstance(name, str) or "output" not in record or not isinstance(record.get("is_error", False), bool):
            refuse("call", "a reconciled outcome has `tool_call_id`, `output` and, for failures, `is_error`")
        if name in found:
            refuse("call", f"tool call {name!r} is named twice; it either runs again or has an outcome, once")
        found[name] = {part: record[part] for part in ("output", "is_error") if part in record}
    return found


def note_body(words: Iterable[Word]) -> str:
    return encode(note_of(words))


def token_is_good(word: Word, run: Run, signing: Signing) -> bool:
    """It needs none, or has the one of its request."""
    verdict, envelope = word.verdict, run.envelope
    if verdict is None or verdict.get("approved") is not True:
        return True
    asked = str(verdict.get("approval_id"))
    return signing.signer.fits(verdict.get("token"), envelope.scope, envelope.run_id, asked, now_ms=signing.now_ms)


def denied(word: Word) -> Word:
    """With a denial in place of an approval whose token is none (APR-015)."""
    return _with_verdict(word, {"approved": False, "reason": DENIAL})


def refuse(part: str, text: str) -> NoReturn:
    raise ReconciliationError(text, part=part)


def _interrupted(name: str, run: Run) -> Receipt:
    """The receipt that is meant. Raises `ReconciliationError` by the part that does not match."""
    unknown = [receipt for receipt in run.interrupted if is_unknown(receipt)]
    for receipt in unknown:
        if name in (receipt.call_id, _id_of(receipt, run)):
            return receipt
    run_id = run.envelope.run_id
    call_id, at, _ = name.rpartition("@")
    for receipt in unknown if at else ():
        if receipt.call_id == call_id:
            part, why = _difference(name, receipt, run)
            refuse(
                part, f"{name!r} names no interrupted call of run {run_id!r}: {why}; interrupted is {_id_of(receipt, run)!r}"
            )
    known = ", ".join(repr(_id_of(receipt, run)) for receipt in unknown) or "none"
    refuse("call", f"tool call {name!r} of run {run_id!r} was not interrupted; interrupted are {known}")


def _difference(name: str, receipt: Receipt, run: Run) -> tuple[str, str]:
    for attempt in range(1, receipt.attempt):
        if name == effect_id(run.envelope.run_id, replace(receipt, attempt=attempt), arguments_of(run, receipt.call_id)):
            return "attempt", f"it is for attempt {attempt}, and interrupted is attempt {receipt.attempt}"
    step = 0
    for message in run.history:
        step += message.role == "assistant"
        arguments = [call.arguments or {} for call in message.tool_uses if call.call_id == receipt.call_id]
        for tried in (arguments_of(run, receipt.call_id), *arguments) if step != receipt.step else ():
            if name == effect_id(run.envelope.run_id, replace(receipt, step=step, attempt=1), tried):
                return "step", f"it is for turn {step}, and interrupted is turn {receipt.step}"
    return "arguments", "the call has other arguments, or the name is of another run"


def _id_of(receipt: Receipt, run: Run) -> str:
    return effect_id(run.envelope.run_id, receipt, arguments_of(run, receipt.call_id))


def _was_idempotent(receipt: Receipt, tools: Mapping[str, Tool]) -> bool:
    """An old receipt does not say it; then the tool that is known here does (IDM-004)."""
    return receipt.idempotent is None and receipt.tool in tools and tools[receipt.tool].replay == "idempotent"


def _with_verdict(word: Word, verdict: Mapping[str, object] | None) -> Word:
    return Word(word.call_id, True, verdict=verdict, step=word.step, attempt=word.attempt)


def _with_outcome(word: Word, record: Mapping[str, object]) -> Word:
    failed = record.get("is_error") is True
    return Word(word.call_id, False, record.get("output"), failed, step=word.step, attempt=word.attempt)
