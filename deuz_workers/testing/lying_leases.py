"""A lease provider that grants everyone, as a failed-over Redis or a stopped clock can.

Whoever is correct only because a lease was held is found out by it: with this provider every promise about effects and
state must still hold, since those rest on the revision in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Literal

from deuz_workers.ports.leases import Gone, Lease, Peek, Released, Renewed


class LyingLeases:
    """Every claim is granted, every renewal confirmed, nobody is ever seen to hold anything, signals get lost.

    `predecessor`: what every claim is told about the last holder.
    """

    def __init__(self, *, predecessor: Literal["none", "lapsed"] = "none") -> None:
        self._predecessor: Literal["none", "lapsed"] = predecessor
        self._tokens = count(1)

    async def acquire(self, key: str, owner: str, ttl_ms: int, *, revision: int = 0, force: bool = False) -> Lease:
        return Lease(key, owner, next(self._tokens), "lie", ttl_ms, self._predecessor, revision)

    async def release(self, lease: Lease) -> Released | Gone:
        return Released(again=False)

    async def signal(self, key: str, kind: Literal["cancel", "drain"]) -> bool:
        return False

    async def peek(self, key: str) -> Peek:
        return Peek(ms_left=None, memory_age_ms=86_400_000)

    def renewer(self, *, timeout_ms: int) -> LyingRenewer:
        return LyingRenewer()

    async def close(self) -> None:
        """There is nothing to close."""


class LyingRenewer:
    """Confirms every renewal."""

    def renew(self, leases: Sequence[Lease]) -> Sequence[Renewed | Gone]:
        return [Renewed(lease, "") for lease in leases]

    def close(self) -> None:
        """There is nothing to close."""
