"""Circuit breakers of one process."""

from __future__ import annotations

import threading

from deuz_workers.core.breaker import CLOSED, Breaker
from deuz_workers.ports.runtime import Clock


class MemoryBreakers:
    """Implements `Breakers`. Only models that fail take room."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failing: dict[str, Breaker] = {}

    async def wait_ms(self, model: str) -> int:
        if model not in self._failing:
            return 0
        with self._lock:
            wait_ms, after = self._failing.get(model, CLOSED).asked(self._clock.monotonic_ms())
            if after.failures:
                self._failing[model] = after
        return wait_ms

    async def failed(self, model: str) -> None:
        with self._lock:
            self._failing[model] = self._failing.get(model, CLOSED).after_failure(self._clock.monotonic_ms())

    def heard(self, model: str) -> None:
        self._failing.pop(model, None)

    async def close(self) -> None:
        return None
