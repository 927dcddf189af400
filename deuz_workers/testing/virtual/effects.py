"""What happened outside: the only memory that survives every death."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from deuz_workers.ports.tool import ToolContext


@dataclass(slots=True)
class Effects:
    """Starts and values by idempotency key."""

    starts: Counter[str] = field(default_factory=lambda: Counter[str]())
    values: dict[str, object] = field(default_factory=lambda: dict[str, object]())
    unsafe: set[str] = field(default_factory=lambda: set[str]())
    """Those that must not start twice."""

    def start(self, context: ToolContext, value: object, *, idempotent: bool) -> object:
        """The effect begins, and has happened; returns `value`."""
        key = context.idempotency_key
        self.starts[key] += 1
        self.values[key] = value
        if not idempotent:
            self.unsafe.add(key)
        return value

    @property
    def repeated(self) -> list[str]:
        """Effects that may not, and did start more than once."""
        return sorted(key for key in self.unsafe if self.starts[key] > 1)
