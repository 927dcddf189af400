"""A run with all its rows, as it comes from somewhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

from deuz_workers.core.change import ItemRow, MessageRow, Phase, ReceiptRow, RunKind, RunStatus
from deuz_workers.core.usage import Budget

NO_TAGS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class JournalRow:
    seq: int
    body: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A run with everything that was said and done in it, to be written under a name of its own."""

    rid: UUID
    scope: str
    run_id: str
    kind: RunKind
    agent: str
    body: str
    status: RunStatus
    last_seq: int
    messages: tuple[MessageRow, ...]
    """Of `epoch`, all of them, and the record of the newest compaction."""
    receipts: tuple[ReceiptRow, ...]
    journal: tuple[JournalRow, ...]
    items: tuple[ItemRow, ...] = ()
    """Of its suspension."""
    queue: str = "default"
    priority: int = 0
    phase: Phase = "loop"
    version: int = 1
    revision: int = 0
    epoch: int = 0
    mid_step: bool = False
    tokens: int = 0
    cost_micros: int | None = 0
    model_step: int = 0
    tags: Mapping[str, str] = field(default_factory=lambda: NO_TAGS)
    concurrency_key: str | None = None
    created_at_ms: int | None = None
    """Unix time in milliseconds; None: now."""
    parked: str | None = None
    is_due: bool = False
    """There is something to do, and the sweep may look at once. A run that is parked or has ended is not due."""
    input_digest: str = ""
    budget: Budget | None = None
    """Makes the scope row `run:<rid>`, whose key stands in the body's scopes."""
    compactions: int = 0
    """This and the next three: see `core.change.Head`."""
    folded_from: int = 0
    folded_to: int = 0
    folded_step: int = 0
