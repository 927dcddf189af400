"""Leases: who should work on a key now. Liveness only; what may be written is decided by the store's revision.

Time is the provider's own (the server's), never the caller's. Every call may be repeated, since a client may send it again
when its answer got lost. `LeaseStoreUnavailableError` means nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Lease:
    key: str
    owner: str
    """New for every claim."""
    token: int
    """Grows whenever the key goes to a new holder. Reported, never trusted as a fence: a flush starts it again."""
    epoch: str
    """Names the uninterrupted memory of the provider under which this was granted."""
    ttl_ms: int
    predecessor: Literal["none", "lapsed", "mine"]
    """`lapsed`: the last holder did not give it back, so its step may have ended in the middle."""
    revision_seen: int = 0
    """Highest revision that any holder reported."""


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody else has it. The key is marked, and its release tells the holder that somebody rang."""

    ms_left: int
    owner: str


@dataclass(frozen=True, slots=True)
class Young:
    """The provider's memory is younger than the TTL and knows no predecessor, so nothing was claimed.

    A living holder may not have renewed yet. Claim with `force` only a row that is not in the middle of a step.
    """

    ms_until_old: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Released:
    again: bool
    """Somebody rang meanwhile: ring once more. Also true when the release could not be confirmed."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The caller does not hold the key (any more)."""


@dataclass(frozen=True, slots=True)
class Renewed:
    lease: Lease
    signal: Literal["", "cancel", "drain"]
    """Told once."""


@dataclass(frozen=True, slots=True)
class Peek:
    ms_left: int | None
    """None: nobody holds it."""
    memory_age_ms: int
    owner: str = ""
    """Of the claim that holds it; empty when nobody does. Its part before `#` names the process."""


class LeaseRenewer(Protocol):
    """Synchronous, with a connection of its own and no retries: for the heartbeat thread."""

    def renew(self, leases: Sequence[Lease]) -> Sequence[Renewed | Gone]:
        """Prolong all of them by their TTL in one call, in the given order. Expiry alone is not loss."""
        ...

    def close(self) -> None: ...


class LeaseProvider(Protocol):
    async def acquire(
        self, key: str, owner: str, ttl_ms: int, *, revision: int = 0, force: bool = False
    ) -> Lease | Held | Young: ...

    async def release(self, lease: Lease) -> Released | Gone:
        """Give the key back; an outdated lease has no effect."""
        ...

    async def signal(self, key: str, kind: Literal["cancel", "drain"]) -> bool:
        """Leave a signal for the next renewal; True if somebody holds the key. `drain` dies with the present holder."""
        ...

    async def peek(self, key: str) -> Peek: ...

    def renewer(self, *, timeout_ms: int) -> LeaseRenewer: ...

    async def close(self) -> None: ...
