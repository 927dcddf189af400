"""Circuit breakers of models: who failed too often is not called for a while, whichever worker it failed for."""

from __future__ import annotations

from typing import Protocol


class Breakers(Protocol):
    """By the model's name, `provider:model`. Never raises and never waits long: what cannot be asked keeps no call back."""

    async def wait_ms(self, model: str) -> int:
        """How long calls of the model are kept back, in milliseconds; 0: one may be sent now, perhaps as the one that tries."""
        ...

    async def untried(self, model: str) -> None:
        """A call that was let pass by `wait_ms` is not sent after all: if it was the one that tries, another may.

        Costs nothing where nothing had failed. Where two calls of a process were let pass about the time that the breaker
        opened, the one that is not sent may give back what the other uses: then one call more tries.
        """
        ...

    async def failed(self, model: str) -> None:
        """A call failed as if nobody was there (`core.breaker.counts`)."""
        ...

    def heard(self, model: str) -> None:
        """Some of an answer has arrived. From any thread; costs nothing where nothing had failed."""
        ...

    async def close(self) -> None:
        """Connections of this process and the running loop are closed."""
        ...


class NoBreakers:
    """Keeps no call back."""

    async def wait_ms(self, model: str) -> int:
        return 0

    async def untried(self, model: str) -> None:
        return None

    async def failed(self, model: str) -> None:
        return None

    def heard(self, model: str) -> None:
        return None

    async def close(self) -> None:
        return None
