"""Receipts: the durable record of one tool call's effect.

A receipt is the sum of its rows, one per change of stage; a later row adds to what earlier rows said and the newest stage
counts. The raw value is stored once, in the row that first knew it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from deuz_workers.core.change import ReceiptRow, Stage
from deuz_workers.core.codec import decode
from deuz_workers.core.outcomes import CallOutcome
from deuz_workers.errors import CodecError


class Missing:
    """Stands for a raw value that no row holds; None is a value that tools return."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


@dataclass(frozen=True)  # no slots: see `core.successor`
class Receipt:
    step: int
    call_id: str
    seq: int
    """Of the newest row."""
    stage: Stage
    tool: str
    idempotent: bool | None = None
    """As recorded when the call started; None only in records that do not have the field."""
    attempt: int = 1
    value: object = MISSING
    text: str | None = None
    """For the model, where it is not the plain rendering of `value`."""
    error: str | None = None
    """For the model, where the call failed."""
    outcome: CallOutcome | None = None
    """How it failed; None of a call that did not, and in records that do not have the field."""
    reason: str | None = None
    """What the person who denied it said."""
    reconciled: bool = False
    """It was interrupted, and somebody said what had become of it."""
    child: str | None = None
    """Id of the run that does the call, where it was delegated."""

    @property
    def has_run(self) -> bool:
        """The tool was started, so that there is a result or an error of its own."""
        return self.idempotent is not None or self.child is not None


def receipt_record(receipt: Receipt, before: Receipt | None) -> dict[str, object]:
    """What the row of `receipt` has to say beyond the rows of `before`."""
    record: dict[str, object] = {}
    if before is None:
        record["tool"] = receipt.tool
    if receipt.idempotent is not None and (before is None or before.idempotent is None):
        record["idempotent"] = receipt.idempotent
    if receipt.attempt != (1 if before is None else before.attempt):
        record["attempt"] = receipt.attempt
    if receipt.reconciled and (before is None or not before.reconciled):
        record["reconciled"] = True
    if receipt.child is not None and (before is None or before.child is None):
        record["child"] = receipt.child
    if receipt.value is not MISSING and (before is None or before.value is MISSING):
        record["value"] = receipt.value
    if receipt.text is not None:
        record["text"] = receipt.text
    for name in ("error", "outcome", "reason"):
        value = getattr(receipt, name)
        if value is not None or (before is not None and getattr(before, name) is not None):
            record[name] = value  # None: no longer so, a projection was repeated
    return record


def fold_receipts(rows: Iterable[ReceiptRow]) -> dict[tuple[int, str], Receipt]:
    """Receipts by (step, call id) from rows in (step, call id, seq) order.

    Raises `CodecError` for a row that cannot be read.
    """
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for row in rows:
        record = decode(row.body)
        if not isinstance(record, dict):
            raise CodecError(f"receipt {row.step}/{row.call_id}/{row.seq} is no record")
        known = cast(Mapping[str, object], record)
        told = found.get((row.step, row.call_id))
        if told is None:
            told = found[row.step, row.call_id] = dict[str, Any](step=row.step, call_id=row.call_id)
            told["tool"] = str(known.get("tool", ""))
        told["seq"], told["stage"] = row.seq, row.stage
        for name in known:
            if name in _ADDED:
                told[name] = known[name]
    return {key: Receipt(**told) for key, told in found.items()}


_ADDED = frozenset(("idempotent", "attempt", "value", "text", "error", "outcome", "reason", "reconciled", "child"))
"""What a row may say of a receipt beside its stage."""
