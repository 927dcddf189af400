"""What an engine is given instead of reaching for it: clock, ids, doorbell, prices, threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from deuz_workers.core.change import Bell
from deuz_workers.core.usage import Usage

T = TypeVar("T")


class Clock(Protocol):
    def monotonic_ms(self) -> int:
        """For limits of calls in this process; never compared with another machine's."""
        ...

    def unix_ms(self) -> int:
        """Wall time, for ids and for showing. Expiry is judged by the store."""
        ...

    async def sleep_ms(self, ms: int) -> None: ...


class Ids(Protocol):
    def rid(self) -> UUID:
        """A UUIDv7."""
        ...

    def commit_id(self) -> UUID: ...

    def token(self) -> str:
        """32 hex digits, unguessable."""
        ...


class Doorbell(Protocol):
    async def ring(self, bells: Sequence[Bell]) -> None:
        """Ask for a look at these runs. Best effort: an unreachable broker is logged, the sweep rings again."""
        ...

    async def offer(self, bells: Sequence[Bell]) -> tuple[Bell, ...]:
        """The same while their queues have room; those for which nobody was rung, to be left to the sweep."""
        ...

    async def has_room(self, queue: str) -> bool:
        """The queue holds fewer doorbells than its window, so whoever makes a run rings for it."""
        ...


class Prices(Protocol):
    def cost_micros(self, model: str, usage: Usage) -> int | None:
        """Price in millionths of a US dollar, None if the model is not known."""
        ...


class Threads(Protocol):
    async def call(self, label: str, function: Callable[[], T]) -> T:
        """Run user code off the loop, and raise what it does. Cancelling returns at once and leaves a function that runs."""
        ...

    def running(self) -> Mapping[str, int]:
        """Functions of this process that run now, whether anybody waits for them or not, by label."""
        ...
