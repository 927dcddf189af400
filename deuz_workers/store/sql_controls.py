"""Brakes, rates and keys over SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from uuid import uuid4

from deuz_workers.core.brake import Brake, BrakeAct, BrakeKind
from deuz_workers.core.controls import Controls
from deuz_workers.core.rate import BURST_MS, Draw, Rate, RateName
from deuz_workers.ports.controls import KeyRow
from deuz_workers.store.dialect import Row

READS = frozenset(("brake_acts", "controls", "list_keys", "list_rates"))


class SqlControls(Protocol):
    """The part of a SQL store that knows them."""

    async def _fetch(
        self, operation: str, params: Mapping[str, object], connection: Any = None
    ) -> Sequence[Row]: ...  # of the store

    async def controls(self) -> Controls:
        return _controls_of(await self._fetch("controls", {}))

    async def set_brake(self, kind: BrakeKind, name: str, reason: str | None, actor: str | None) -> None:
        given = {"kind": kind, "name": name, "reason": reason, "actor": actor, "act_id": uuid4()}
        await self._fetch("set_brake", given)

    async def lift_brake(self, kind: BrakeKind, name: str, reason: str | None, actor: str | None) -> bool:
        given = {"kind": kind, "name": name, "reason": reason, "actor": actor, "act_id": uuid4()}
        return bool((await self._fetch("lift_brake", given))[0]["lifted"])

    async def loosen(self, kind: BrakeKind, name: str, limit: int) -> int:
        place = {what: name if kind == what else None for what in ("scope", "agent", "queue")}
        return (await self._fetch("loosen", {**place, "limit": limit}))[0]["count"]

    async def brake_acts(self, limit: int) -> tuple[BrakeAct, ...]:
        return tuple(BrakeAct(**row) for row in await self._fetch("brake_acts", {"limit": limit}))

    async def set_rate(self, rate: Rate) -> None:
        place = {"kind": rate.of.kind, "scope": rate.of.scope, "name": rate.of.name, "burst_ms": BURST_MS}
        limits = {"calls": rate.calls_per_minute, "tokens": rate.tokens_per_minute, "at_a_time": rate.at_a_time}
        await self._fetch("set_rate", {**place, **limits})

    async def take_rate(self, draws: Sequence[Draw]) -> int:
        asked = {"calls": [draw.calls for draw in draws], "tokens": [draw.tokens for draw in draws], "burst_ms": BURST_MS}
        return (await self._fetch("take_rate", {**_lists([draw.of for draw in draws]), **asked}))[0]["wait_ms"]

    async def give_rate(self, names: Sequence[RateName], tokens: int) -> None:
        await self._fetch("give_rate", {**_lists(names), "tokens": tokens})

    async def shut_rate(self, names: Sequence[RateName], wait_ms: int) -> None:
        await self._fetch("shut_rate", {**_lists(names), "wait_ms": wait_ms})

    async def list_rates(self, scope: str | None) -> tuple[Rate, ...]:
        return tuple(map(_rate_of, await self._fetch("list_rates", {"scope": scope})))

    async def list_keys(self, scope: str | None, limit: int) -> tuple[KeyRow, ...]:
        return tuple(KeyRow(**row) for row in await self._fetch("list_keys", {"scope": scope, "limit": limit}))


def _controls_of(rows: Sequence[Row]) -> Controls:
    brakes = (
        Brake(row["kind"], row["name"], row["reason"], row["actor"], row["at_ms"]) for row in rows if row["what"] == "brake"
    )
    rates = (RateName(row["kind"], row["name"]) for row in rows if row["what"] == "rate" and row["has_rate"])
    slots = {row["name"]: row["at_a_time"] for row in rows if row["what"] == "rate" and row["at_a_time"] is not None}
    return Controls(rows[0]["now_ms"], tuple(brakes), frozenset(rates), bool(rows[0]["has_key_rates"]), slots)


def _rate_of(row: Row) -> Rate:
    of = RateName(row["kind"], row["name"], row["scope"])
    return Rate(of, row["calls_per_minute"], row["tokens_per_minute"], row["at_a_time"])


def _lists(names: Sequence[RateName]) -> dict[str, object]:
    return {
        "kinds": [name.kind for name in names],
        "scopes": [name.scope for name in names],
        "names": [name.name for name in names],
    }
