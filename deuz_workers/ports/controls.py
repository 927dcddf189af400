"""What a store keeps of operators' orders about everything that begins: brakes, rates, keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from deuz_workers.core.brake import BrakeAct, BrakeKind
from deuz_workers.core.controls import Controls
from deuz_workers.core.rate import Draw, Rate, RateName


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A concurrency key that was ever named or set: runs that may run at a time, hold a slot, asked for one."""

    scope: str
    key: str
    slots: int
    used: int
    waiting: int


class ControlStore(Protocol):
    """Part of :class:`~deuz_workers.ports.store.RunStore`, with what is said there about every operation."""

    async def controls(self) -> Controls:
        """What everything that begins has to heed, and the time; one small read."""
        ...

    async def set_brake(self, kind: BrakeKind, name: str, reason: str | None, actor: str | None) -> None:
        """It is set, in place of one that was, and the act is kept; whoever reads the controls from now on sees it."""
        ...

    async def lift_brake(self, kind: BrakeKind, name: str, reason: str | None, actor: str | None) -> bool:
        """It is gone and the act is kept; False: there was none. Runs that met it were put off, see `loosen`."""
        ...

    async def loosen(self, kind: BrakeKind, name: str, limit: int) -> int:
        """The sweep looks at once at runs that were put off and may have met this brake; how many.

        Up to `limit` of begun and as many of queued ones: to be repeated until it is 0.
        """
        ...

    async def brake_acts(self, limit: int) -> tuple[BrakeAct, ...]:
        """Who set and lifted brakes, newest first."""
        ...

    async def set_rate(self, rate: Rate) -> None:
        """So much may begin per minute from now on, and a full bucket at once; without any limit there is none."""
        ...

    async def take_rate(self, draws: Sequence[Draw]) -> int:
        """Take all of it, or nothing and return the milliseconds after which it may be there; 0: taken.

        A name without a rate has all of it. Taken twice where the answer got lost, which only makes others wait.
        """
        ...

    async def give_rate(self, names: Sequence[RateName], tokens: int) -> None:
        """Tokens that were taken and not used; below zero: those that were used and not taken."""
        ...

    async def shut_rate(self, names: Sequence[RateName], wait_ms: int) -> None:
        """Nothing can be taken of these for so long. One that is shut for longer stays so."""
        ...

    async def list_rates(self, scope: str | None) -> tuple[Rate, ...]:
        """Of keys of a scope, or of all, and of the pool."""
        ...

    async def list_keys(self, scope: str | None, limit: int) -> tuple[KeyRow, ...]:
        """Concurrency keys of a scope, or of all, in order."""
        ...
