"""What a run that another one delegated knows of it: whose call it answers, and under which agents it works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Parent:
    """Fixed when the run is created, by the commit that suspends its parent on the item."""

    rid: UUID
    run_id: str
    item_id: str
    """The pending item of the parent that the end of this run answers."""
    call_id: str
    step: int
    """Turn of the parent that issued the call."""
    path: tuple[str, ...]
    """Agents above this run, from the root's to the parent's."""
    root: str = ""
    """Id of the topmost run, which nobody delegated."""
    is_quiet: bool = False
    """Readers of the topmost run are not told what happens in this one."""
    above: int = 0
    """Depth of the topmost run, where that was started in the execution context of another one."""

    @property
    def depth(self) -> int:
        """Of the delegated run; a run that nobody delegated or started from within another one is at 0."""
        return self.above + len(self.path)

    def to_record(self) -> dict[str, object]:
        record: dict[str, object] = {
            "rid": str(self.rid),
            "run_id": self.run_id,
            "item_id": self.item_id,
            "call_id": self.call_id,
            "step": self.step,
            "path": list(self.path),
            "root": self.root,
        }
        if self.above:
            record["above"] = self.above
        return record | ({"is_quiet": True} if self.is_quiet else {})

    @staticmethod
    def from_record(record: Mapping[str, object]) -> Parent:
        """Raises `KeyError`, `TypeError` for what is no record of ours."""
        try:
            rid = UUID(str(record["rid"]))
        except ValueError:
            raise TypeError("the rid of a parent is a UUID") from None
        return Parent(
            rid,
            str(record["run_id"]),
            str(record["item_id"]),
            str(record["call_id"]),
            cast(int, record["step"]),
            tuple(cast("list[str]", record["path"])),
            str(record["root"]),
            record.get("is_quiet") is True,
            cast(int, record.get("above", 0)),
        )
