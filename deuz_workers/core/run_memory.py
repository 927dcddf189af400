"""What a run's record says of its memory: whose it is, what was recalled, what became of the extraction.

The extraction is work after the end. Its status is `pending` from the terminal commit until its outcome is saved, and all that
is saved of it goes through the commits of the run: one that was overtaken writes nothing. `planned` is saved before the memory
store is written to, so whoever takes over can tell from the store what was done (`judge`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from deuz_workers.core.candidate import is_asked_by_engine
from deuz_workers.core.memory import MemoryScope, is_recall
from deuz_workers.core.messages import Message

ExtractionStatus = Literal["pending", "completed", "failed", "partial"]

PARTIAL = "memory-extraction-partial"
"""Code of an extraction of which only a part can be confirmed; it is not tried again (MEM-019)."""


@dataclass(frozen=True, slots=True)
class Extraction:
    status: ExtractionStatus
    operation_id: str
    """Of every record that it writes, through all its attempts."""
    planned: int | None = None
    """Changes of the memory store; None: nothing was written yet."""
    mutations: int = 0
    """Of these, as far as they were made: deletions as they happen, since nothing in the store could prove them later."""
    error: Mapping[str, object] | None = None
    attempts: int = 0
    """Reservations that were made for it."""

    @property
    def is_settled(self) -> bool:
        """Nothing is to be done about it any more."""
        return self.status in ("completed", "partial") or (self.error or {}).get("code") == PARTIAL

    def to_record(self) -> dict[str, object]:
        record: dict[str, object] = {"status": self.status, "operation_id": self.operation_id}
        if self.planned is not None:
            record["planned"] = self.planned
        record["mutations"] = self.mutations
        if self.error is not None:
            record["error"] = dict(self.error)
        if self.attempts:
            record["attempts"] = self.attempts
        return record

    @staticmethod
    def from_record(record: Mapping[str, object]) -> Extraction:
        return Extraction(
            cast(ExtractionStatus, record["status"]),
            str(record["operation_id"]),
            cast("int | None", record.get("planned")),
            cast(int, record.get("mutations", 0)),
            cast("Mapping[str, object] | None", record.get("error")),
            cast(int, record.get("attempts", 0)),
        )


@dataclass(frozen=True, slots=True)
class RunMemory:
    """`given`: how many messages its transcript had before its first model call and the recall; None: it has not begun."""

    scope: MemoryScope
    extracts: bool = False
    given: int | None = None
    recall: Mapping[str, object] | None = None
    """`status` is `found`, `empty`, `present` or `failed`, with `count` or `error`."""
    extraction: Extraction | None = None

    def to_record(self) -> dict[str, object]:
        record: dict[str, object] = {"scope": self.scope.to_record()}
        if self.extracts:
            record["extracts"] = True
        if self.given is not None:
            record["given"] = self.given
        if self.recall is not None:
            record["recall"] = dict(self.recall)
        if self.extraction is not None:
            record["extraction"] = self.extraction.to_record()
        return record

    @staticmethod
    def from_record(record: Mapping[str, object]) -> RunMemory:
        extraction = record.get("extraction")
        return RunMemory(
            MemoryScope.from_record(cast("Mapping[str, object]", record["scope"])),
            record.get("extracts") is True,
            cast("int | None", record.get("given")),
            cast("Mapping[str, object] | None", record.get("recall")),
            None if extraction is None else Extraction.from_record(cast("Mapping[str, object]", extraction)),
        )


def judge(extraction: Extraction, present: int) -> Extraction | None:
    """How an extraction ended that nobody goes on with; None: nothing of it was done, so it is executed (MEM-018 to MEM-021).

    `present`: records of its operation in the memory store.
    """
    if extraction.planned is None:
        return None if not present else ended(extraction, present)
    confirmed = extraction.mutations + present
    if confirmed >= extraction.planned:
        return ended(extraction, extraction.planned)
    if not confirmed:
        return None
    message = f"{confirmed} of {extraction.planned} changes of the memory can be confirmed; the others are not made again"
    error = {"name": "MemoryExtractionError", "code": PARTIAL, "message": message}
    return replace(extraction, status="failed", mutations=confirmed, error=error)


def ended(extraction: Extraction, mutations: int) -> Extraction:
    """It ended well; an error of an earlier attempt is no longer there (MEM-025)."""
    return replace(extraction, status="completed", mutations=mutations, error=None)


def told(messages: Sequence[Message], given: int) -> tuple[Message, ...]:
    """What the extraction is made from: the last user turn that the run was given, and the turns that it produced.

    Nothing that the engine added: recall, request for the answer, feedback (MEM-012). `messages`: the transcript, the first
    `given` of which the run began with.
    """
    said = [(place, one) for place, one in enumerate(messages) if not is_recall(one) and not is_asked_by_engine(one)]
    asked = [one for place, one in said if place < given and one.role == "user"][-1:]
    return (*asked, *(one for place, one in said if place >= given))
