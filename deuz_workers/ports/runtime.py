"""What an engine is given instead of reaching for it: clock, ids, doorbell, prices, threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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
    async def offer(self, bells: Sequence[Bell], *, spare: bool = False) -> tuple[Bell, ...]:
        """Ask for a look at these runs while their queues have room, and return the others. Best effort, never raises.

        The broker looks at a queue and adds to it in one act, so that none is longer than its window. `spare`: also on the
        places that are kept for the sweep.
        """
        ...

    def leave(self, queues: Collection[str]) -> None:
        """Runs of these queues wait as rows: whoever feeds them in this process looks as soon as there may be room."""
        ...

    async def has_room(self, queue: str) -> bool:
        """The queue holds fewer doorbells than everybody may put there, so whoever makes a run rings for it."""
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
