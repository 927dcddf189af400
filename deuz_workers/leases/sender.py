"""Sending a verb of a lease provider over a network: once more when its answer got lost, since every verb may run twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from deuz_workers.errors import LeaseStoreUnavailableError
from deuz_workers.ports.leases import Gone, Released

RESEND_AFTER_S = 0.05
"""Long enough for a server that restarts on the same machine, short against every TTL."""

C = TypeVar("C")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Sender(Generic[C, A]):
    """Calls of type `C`, answers of type `A`."""

    exchange: Callable[[C], Awaitable[A]]
    """One attempt."""
    nothing_known: tuple[type[BaseException], ...]
    """What an attempt raises whose answer got lost, or that never got there."""
    unavailable: Callable[[BaseException], LeaseStoreUnavailableError]
    """What the last of them means to the caller."""

    async def ask(self, call: C) -> tuple[A, bool]:
        """The answer, and whether the call was sent twice. Raises `LeaseStoreUnavailableError`, and nothing is known then."""
        try:
            return await self.exchange(call), False
        except self.nothing_known:
            await asyncio.sleep(RESEND_AFTER_S)
        try:
            return await self.exchange(call), True
        except self.nothing_known as error:
            raise self.unavailable(error) from None

    async def give_back(self, call: C, read: Callable[[A], Released | Gone]) -> Released | Gone:
        """The answer to a release. Never raises `LeaseStoreUnavailableError`: one that nobody confirmed counts as `again`.

        So does one that was sent twice and finds the lease gone: the first may have given it back with a mark.
        """
        try:
            answer, resent = await self.ask(call)
        except LeaseStoreUnavailableError:
            return Released(again=True)
        released = read(answer)
        return Released(again=True) if resent and isinstance(released, Gone) else released
