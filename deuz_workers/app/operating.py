"""What operators say about everything that begins: `app.operator`, and `app.aio.operator` for code on an event loop."""

from __future__ import annotations

from collections.abc import Sequence

from deuz_workers.app.access import Access
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.app.names import check_id
from deuz_workers.core.brake import BRAKE_KINDS, Brake, BrakeAct, BrakeKind
from deuz_workers.core.rate import MOST_AT_A_TIME, MOST_PER_MINUTE, RATE_KINDS, Rate, RateKind, RateName
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.controls import KeyRow

LOOSENED = 5_000
"""Runs of each kind in one statement, after a brake was lifted."""
MOST_TEXT_CHARS = 2_000
"""Of a reason and a name of a person."""


class AsyncOperator:
    """Everything it says is a row that every process reads twice a second; nothing is running that would have to be told."""

    def __init__(self, access: Access) -> None:
        self._store = access.store

    async def set_brake(self, kind: BrakeKind, name: str, *, reason: str | None = None, actor: str | None = None) -> None:
        """No model call and no tool begins any more of this scope, agent, tool, model or queue, within a second, anywhere.

        What is under way ends as it would and is saved. Runs that meet the brake wait and go on when it is lifted; those that
        hold a slot of a key or a swarm keep it. A brake that is set already gets this reason. Kept: who, when and why.

        Raises: ConfigurationError; StoreUnavailableError, and asking again is safe.
        """
        _check_brake(kind, name)
        await self._store.set_brake(kind, name, _text("a reason", reason), _text("a person", actor))

    async def lift_brake(self, kind: BrakeKind, name: str, *, reason: str | None = None, actor: str | None = None) -> bool:
        """It is gone, and the sweep looks at the runs that met it. False: there was none; they are looked at all the same.

        Raises like `set_brake`.
        """
        _check_brake(kind, name)
        lifted = await self._store.lift_brake(kind, name, _text("a reason", reason), _text("a person", actor))
        while await self._store.loosen(kind, name, LOOSENED):
            pass
        return lifted

    async def brakes(self) -> tuple[Brake, ...]:
        """Those that are set."""
        return (await self._store.controls()).brakes

    async def brake_acts(self, limit: int = 100) -> tuple[BrakeAct, ...]:
        """Who set and lifted brakes, newest first."""
        return await self._store.brake_acts(limit)

    async def limit_rate(
        self,
        kind: RateKind,
        name: str,
        *,
        calls_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        at_a_time: int | None = None,
        scope: str | None = None,
    ) -> None:
        """So many calls, and tokens of model calls, may begin per minute of a tool, of a model, or of a concurrency key.

        Over all workers, within a second; without any limit there is none any more. `at_a_time`: so many calls of a tool run at
        the same time; of a key that is `limit_key`. `scope`: of a key, `default` if it is
        not given; tools and models are limited for the whole pool. Raises: ConfigurationError; StoreUnavailableError, and
        asking again is safe.
        """
        _check_kind("a rate", kind, RATE_KINDS)
        check_id(f"a {kind}", name)
        if kind != "key" and scope is not None:
            raise ConfigurationError(f"a {kind} is limited for the whole pool, not for scope {scope!r}; leave the scope out")
        if at_a_time is not None and kind != "tool":
            raise ConfigurationError(f"at_a_time is of a tool, not of a {kind}; how many runs of a key run, limit_key says")
        if at_a_time is not None and (type(at_a_time) is not int or not 1 <= at_a_time <= MOST_AT_A_TIME):
            raise ConfigurationError(f"at_a_time is a whole number from 1 to {MOST_AT_A_TIME}, not {at_a_time!r}")
        if kind == "tool" and tokens_per_minute is not None:
            raise ConfigurationError("a tool uses no tokens; limit its calls_per_minute")
        for what, most in (("calls_per_minute", calls_per_minute), ("tokens_per_minute", tokens_per_minute)):
            if most is not None and (type(most) is not int or not 1 <= most <= MOST_PER_MINUTE):
                stop = "to stop all of it, set a brake"
                raise ConfigurationError(f"{what} is a whole number from 1 to {MOST_PER_MINUTE}, not {most!r}; {stop}")
        of = RateName(kind, name, check_id("a scope", scope or "default") if kind == "key" else "")
        await self._store.set_rate(Rate(of, calls_per_minute, tokens_per_minute, at_a_time))

    async def rates(self, scope: str | None = None) -> tuple[Rate, ...]:
        """Of keys of the scope, or of all, and of tools and models."""
        return await self._store.list_rates(scope)

    async def keys(self, scope: str | None = None, limit: int = 1_000) -> tuple[KeyRow, ...]:
        """Concurrency keys that were named or set, with how many runs hold a slot and wait."""
        return await self._store.list_keys(scope, limit)


class Operator:
    """The same for code without an event loop."""

    def __init__(self, aio: AsyncOperator) -> None:
        self._aio = aio

    def set_brake(self, kind: BrakeKind, name: str, *, reason: str | None = None, actor: str | None = None) -> None:
        """See `AsyncOperator.set_brake`."""
        LOOP.run(self._aio.set_brake(kind, name, reason=reason, actor=actor))

    def lift_brake(self, kind: BrakeKind, name: str, *, reason: str | None = None, actor: str | None = None) -> bool:
        """See `AsyncOperator.lift_brake`."""
        return LOOP.run(self._aio.lift_brake(kind, name, reason=reason, actor=actor))

    def brakes(self) -> tuple[Brake, ...]:
        """Those that are set."""
        return LOOP.run(self._aio.brakes())

    def brake_acts(self, limit: int = 100) -> tuple[BrakeAct, ...]:
        """Who set and lifted brakes, newest first."""
        return LOOP.run(self._aio.brake_acts(limit))

    def limit_rate(
        self,
        kind: RateKind,
        name: str,
        *,
        calls_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        at_a_time: int | None = None,
        scope: str | None = None,
    ) -> None:
        """See `AsyncOperator.limit_rate`."""
        limits = {"calls_per_minute": calls_per_minute, "tokens_per_minute": tokens_per_minute, "at_a_time": at_a_time}
        LOOP.run(self._aio.limit_rate(kind, name, **limits, scope=scope))

    def rates(self, scope: str | None = None) -> tuple[Rate, ...]:
        """See `AsyncOperator.rates`."""
        return LOOP.run(self._aio.rates(scope))

    def keys(self, scope: str | None = None, limit: int = 1_000) -> tuple[KeyRow, ...]:
        """See `AsyncOperator.keys`."""
        return LOOP.run(self._aio.keys(scope, limit))


def _check_brake(kind: object, name: object) -> None:
    _check_kind("a brake", kind, BRAKE_KINDS)
    check_id(f"a {kind}", name)


def _check_kind(what: str, kind: object, kinds: Sequence[str]) -> None:
    if kind not in kinds:
        raise ConfigurationError(f"{what} is of one of {', '.join(kinds)}, not of {kind!r}")


def _text(what: str, text: str | None) -> str | None:
    """Raises `ConfigurationError` for one that no database keeps, or that is very long."""
    if text is not None and (not isinstance(text, str) or not text.isprintable() or len(text) > MOST_TEXT_CHARS):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"{what} is printable text of up to {MOST_TEXT_CHARS} characters")
    return text or None
