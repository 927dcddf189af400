"""What a run knows of the one in whose execution context it was started, by a tool or a verifier of that one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from deuz_workers.core.memory import MemoryScope


@dataclass(frozen=True, slots=True)
class Nested:
    """Fixed when the run is created. Unlike a delegated run's parent, the one above waits for nothing that is stored."""

    run_id: str
    """Of the run whose code started this one."""
    root: str
    """Id of the topmost run."""
    depth: int
    """Below the topmost run, which is at 0."""
    scope_id: str
    """Which part of the topmost run's ledger its calls are charged to: `job`, `job/a`, `job/a/b`."""
    memory: MemoryScope | None = None
    """Whose memories it may have, or those of fewer; None: whosever."""

    def to_record(self) -> dict[str, object]:
        record: dict[str, object] = {"run_id": self.run_id, "root": self.root, "depth": self.depth, "scope_id": self.scope_id}
        return record | ({} if self.memory is None else {"memory": self.memory.to_record()})

    @staticmethod
    def from_record(record: Mapping[str, object]) -> Nested:
        """Raises `KeyError`, `ConfigurationError` for what is no record of ours."""
        given = record.get("memory")
        return Nested(
            str(record["run_id"]),
            str(record["root"]),
            cast(int, record["depth"]),
            str(record["scope_id"]),
            None if given is None else MemoryScope.from_record(cast("Mapping[str, object]", given)),
        )
