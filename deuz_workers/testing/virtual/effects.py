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
    amounts: dict[str, set[int]] = field(default_factory=lambda: dict[str, set[int]]())
    """What their tools were called with."""

    def start(self, context: ToolContext, value: object, *, amount: int, idempotent: bool) -> object:
        """The effect begins, and has happened; returns `value`."""
        key = context.idempotency_key
        self.starts[key] += 1
        self.values[key] = value
        self.amounts.setdefault(key, set()).add(amount)
        if not idempotent:
            self.unsafe.add(key)
        return value
