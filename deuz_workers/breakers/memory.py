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
        self._trying: dict[str, int] = {}
        """By model, until when the call that tries keeps others back."""

    async def wait_ms(self, model: str) -> int:
        if model not in self._failing:
            return 0
        with self._lock:
            wait_ms, after = self._failing.get(model, CLOSED).asked(self._clock.monotonic_ms())
            if after.failures:
                self._failing[model] = after
            if after.is_open and not wait_ms:
                self._trying[model] = after.open_until_ms
        return wait_ms

    async def untried(self, model: str) -> None:
        if model not in self._trying:
            return
        with self._lock:
            granted_until_ms = self._trying.pop(model, None)
            if granted_until_ms is not None and model in self._failing:
                self._failing[model] = self._failing[model].untried(granted_until_ms)

    async def failed(self, model: str) -> None:
        with self._lock:
            self._trying.pop(model, None)
            self._failing[model] = self._failing.get(model, CLOSED).after_failure(self._clock.monotonic_ms())

    def heard(self, model: str) -> None:
        self._failing.pop(model, None)
        self._trying.pop(model, None)

    async def close(self) -> None:
        return None
