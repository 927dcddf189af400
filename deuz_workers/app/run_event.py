"""Rows of a run's journal, as readers see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from deuz_workers.core.codec import decode
from deuz_workers.ports.whole_run import JournalRow


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One row of a run's journal; `seq` is the cursor to go on from."""

    seq: int
    type: str
    at_ms: int
    """Unix time in milliseconds by the store's clock."""
    data: Mapping[str, object]


def event_of(row: JournalRow) -> RunEvent:
    record = dict(cast(Mapping[str, object], decode(row.body)))
    return RunEvent(row.seq, str(record.pop("type")), row.at_ms, record)
