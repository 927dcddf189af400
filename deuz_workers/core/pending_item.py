"""Pending items: what a suspended run asks, and what binds an answer to the call that it was asked for.

An item belongs to one call of one turn. Its id is the call's, `@`, and the first digits of a digest of run, turn, call, tool
and arguments: an answer to another call, or to the same call with other arguments, has another id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from deuz_workers.core.approval import ANYBODY, Approval
from deuz_workers.core.change import ItemRow
from deuz_workers.core.codec import decode, digest, encode
from deuz_workers.core.messages import ToolUsePart
from deuz_workers.errors import CodecError

CallItemKind = Literal["approval", "client_tool"]
ID_DIGITS = 16
"""Of the digest, in an item's id."""


@dataclass(frozen=True, slots=True)
class CallBinding:
    """The call that an item waits for."""

    kind: CallItemKind
    run_id: str
    step: int
    call_id: str
    tool: str
    arguments: Mapping[str, object]

    def to_record(self) -> dict[str, object]:
        record: dict[str, object] = {} if self.kind == "approval" else {"kind": self.kind}
        return record | {
            "run_id": self.run_id,
            "step": self.step,
            "call_id": self.call_id,
            "tool": self.tool,
            "arguments": dict(self.arguments),
        }

    @property
    def digest(self) -> str:
        return digest(self.to_record())

    @property
    def item_id(self) -> str:
        return f"{self.call_id}@{self.digest[:ID_DIGITS]}"


def binding_of_call(kind: CallItemKind, run_id: str, step: int, call: ToolUsePart) -> CallBinding:
    return CallBinding(kind, run_id, step, call.call_id, call.name, call.arguments or {})


def arguments_digest(arguments: Mapping[str, object]) -> str:
    """Tells two sets of arguments apart, whatever the order of their keys."""
    return digest(dict(arguments))


def item_of_call(binding: CallBinding, approval: Approval = ANYBODY) -> ItemRow:
    sealed = binding.digest
    return ItemRow(
        binding.item_id,
        binding.kind,
        encode(binding.to_record() | approval.to_record()),
        sealed,
        expires_in_ms=approval.expires_in_ms,
        remind_in_ms=approval.remind_in_ms,
        escalate_in_ms=approval.escalate_in_ms,
    )


@dataclass(frozen=True, slots=True)
class CallItem:
    """An item that waits for a person or a client, read."""

    row: ItemRow
    binding: CallBinding
    approval: Approval

    @property
    def item_id(self) -> str:
        return self.row.item_id

    @property
    def is_open(self) -> bool:
        return self.row.answer is None

    @property
    def votes(self) -> tuple[Mapping[str, object], ...]:
        """Approvals of people so far, while more are needed."""
        return () if self.row.votes is None else tuple(cast("list[Mapping[str, object]]", decode(self.row.votes)))


def read_call_item(row: ItemRow) -> CallItem | None:
    """None for items of other kinds. Raises `CodecError` for a body that is none of ours."""
    if row.kind not in ("approval", "client_tool"):
        return None
    record = decode(row.body)
    try:
        asked = cast(Mapping[str, object], record)
        binding = CallBinding(
            row.kind,
            cast(str, asked["run_id"]),
            cast(int, asked["step"]),
            cast(str, asked["call_id"]),
            cast(str, asked["tool"]),
            cast(Mapping[str, object], asked["arguments"]),
        )
        return CallItem(row, binding, Approval.from_record(asked))
    except (KeyError, TypeError) as error:
        raise CodecError(f"item {row.item_id!r} is not readable: {type(error).__name__} {error}") from None


def read_call_items(rows: tuple[ItemRow, ...]) -> tuple[CallItem, ...]:
    return tuple(item for item in map(read_call_item, rows) if item is not None)
