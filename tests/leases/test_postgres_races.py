"""What two sessions do to one lease when the second has to wait for the first one's lock, in both orders.

After the wait Postgres re-reads the locked row, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar

import psycopg
import pytest

from deuz_workers.core.marks import Marks
from deuz_workers.leases import PostgresLeases
from deuz_workers.leases.statements import Call, LeaseStatements, Row
from deuz_workers.ports.leases import Gone, Held, Lease, Released, Renewed
from deuz_workers.testing.lease_conformance import KEY, LONG_MS, claim, lapsed, renew, renew_all, signal_of
from tests.leases.benches import SECRET, PostgresBench, postgres_bench
from tests.store.sessions import DEADLINE_S, Sessions

T = TypeVar("T")
U = TypeVar("U")


class OneSession(PostgresLeases):
    """Every verb on one given connection, in its transaction."""

    def __init__(self, url: str, session: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(url, secret=SECRET)
        self._session = session

    async def _fetch(self, here: object, call: Call) -> Row:
        row: Row | None = await (await self._session.execute(call.sql, call.params, binary=True)).fetchone()
        assert row is not None
        return row

    async def renew(self, *leases: Lease) -> Sequence[Renewed | Gone]:
        statements = LeaseStatements(Marks(SECRET))
        call = statements.renew(leases)
        rows: list[Row] = await (await self._session.execute(call.sql, call.params, binary=True)).fetchall()
        return statements.renewed(rows, leases)


class Race:
    """Two sessions on the database of a bench."""

    def __init__(self, url: str, bench: PostgresBench) -> None:
        self._url = url
        self._bench = bench

    async def __call__(
        self,
        first: Callable[[OneSession], Awaitable[T]],
        second: Callable[[OneSession], Awaitable[U]],
        *,
        keep_ms: int = 0,
    ) -> tuple[T, U]:
        """`first` is done and keeps its locks until `second` waits for one, and `keep_ms` longer; what both returned."""
        async with AsyncExitStack() as stack:
            holder, waiter, watcher = [
                await stack.enter_async_context(await psycopg.AsyncConnection[Any].connect(self._url, autocommit=autocommit))
                for autocommit in (False, True, True)
            ]
            one = await first(OneSession(self._url, holder))
            waiting = asyncio.ensure_future(second(OneSession(self._url, waiter)))
            try:
                await Sessions.until_somebody_waits(watcher, waiting)
                await self._bench.pass_ms(keep_ms)
            finally:
                await holder.commit()
            return one, await asyncio.wait_for(waiting, DEADLINE_S)


@pytest.fixture
async def bench(migrated_postgres_dsn: str) -> AsyncGenerator[PostgresBench]:
    async with postgres_bench(migrated_postgres_dsn) as bench:
        yield bench


@pytest.fixture
def race(migrated_postgres_dsn: str, bench: PostgresBench) -> Race:
    return Race(migrated_postgres_dsn, bench)


async def test_two_claims_of_a_free_key(bench: PostgresBench, race: Race) -> None:
    """The second waits for the first one's row, is told who has it, and is told of at the release."""
    first, second = await race(
        lambda leases: leases.acquire(KEY, "a", LONG_MS, force=True),
        lambda leases: leases.acquire(KEY, "b", LONG_MS, force=True),
    )
    assert isinstance(first, Lease)
    assert isinstance(second, Held)
    assert (second.owner, 0 < second.ms_left <= LONG_MS) == ("a", True)
    assert await bench.leases.release(first) == Released(again=True)


async def test_two_claims_of_a_lapsed_lease(bench: PostgresBench, race: Race) -> None:
    """One takes it over; the other sees that, although the lease had lapsed when it began."""
    await lapsed(bench, "dead")
    first, second = await race(
        lambda leases: leases.acquire(KEY, "a", LONG_MS), lambda leases: leases.acquire(KEY, "b", LONG_MS)
    )
    assert isinstance(first, Lease)
    assert (first.predecessor, second) == ("lapsed", Held(getattr(second, "ms_left", 0), "a"))
    assert await bench.leases.release(first) == Released(again=True)


async def test_a_lease_that_lapses_while_a_claim_waits(bench: PostgresBench, race: Race) -> None:
    """Time is read after the wait, and the token is a later one."""
    first, second = await race(
        lambda leases: leases.acquire(KEY, "a", bench.short_ms, force=True),
        lambda leases: leases.acquire(KEY, "b", LONG_MS, force=True),
        keep_ms=2 * bench.short_ms,
    )
    assert isinstance(first, Lease)
    assert isinstance(second, Lease)
    assert (second.predecessor, second.token > first.token) == ("lapsed", True)
    assert (await bench.leases.peek(KEY)).owner == "b"


async def test_one_claim_sent_twice_at_once(bench: PostgresBench, race: Race) -> None:
    """Both are the same lease."""
    await lapsed(bench, "dead")
    first, second = await race(
        lambda leases: leases.acquire(KEY, "a", LONG_MS), lambda leases: leases.acquire(KEY, "a", LONG_MS)
    )
    assert isinstance(first, Lease)
    assert second == replace(first, predecessor="mine")


async def test_a_claim_waits_for_a_release(bench: PostgresBench, race: Race) -> None:
    """It is granted although the memory is young: that the key was given back is known."""
    lease = await claim(bench, "a")
    released, answer = await race(lambda leases: leases.release(lease), lambda leases: leases.acquire(KEY, "b", LONG_MS))
    assert released == Released(again=False)
    assert isinstance(answer, Lease)
    assert (answer.predecessor, answer.token > lease.token) == ("none", True)


async def test_a_release_waits_for_a_claim(bench: PostgresBench, race: Race) -> None:
    """The claim met a held key, and the release that waited for it says that somebody rang."""
    lease = await claim(bench, "a")
    answer, released = await race(lambda leases: leases.acquire(KEY, "b", LONG_MS), lambda leases: leases.release(lease))
    assert isinstance(answer, Held)
    assert released == Released(again=True)
    assert (await bench.leases.peek(KEY)).ms_left is None


async def test_a_release_waits_for_a_takeover(bench: PostgresBench, race: Race) -> None:
    """It has no effect on the new holder's lease."""
    old = await lapsed(bench, "a")
    new, released = await race(lambda leases: leases.acquire(KEY, "b", LONG_MS), lambda leases: leases.release(old))
    assert isinstance(new, Lease)
    assert released == Gone()
    assert isinstance(renew(bench, new), Renewed)


async def test_a_claim_waits_for_a_renewal(bench: PostgresBench, race: Race) -> None:
    """The lease had lapsed when the claim began and is held when it may go on; the mark is set."""
    lease = replace(await lapsed(bench, "a"), ttl_ms=LONG_MS)
    answers, claimed = await race(lambda leases: leases.renew(lease), lambda leases: leases.acquire(KEY, "b", LONG_MS))
    assert isinstance(answers[0], Renewed)
    assert isinstance(claimed, Held)
    assert await bench.leases.release(lease) == Released(again=True)


async def test_a_renewal_waits_for_a_takeover(bench: PostgresBench, race: Race) -> None:
    """It is told that the lease is gone, and takes no signal of the new holder's along."""
    old = await lapsed(bench, "a")
    await bench.leases.signal(KEY, "cancel")
    new, answers = await race(lambda leases: leases.acquire(KEY, "b", LONG_MS), lambda leases: leases.renew(old))
    assert isinstance(new, Lease)
    assert list(answers) == [Gone()]
    assert signal_of(renew(bench, new)) == "cancel"


async def test_a_renewal_waits_for_a_claim_that_rings(bench: PostgresBench, race: Race) -> None:
    """It prolongs the lease and keeps the mark that was set while it waited."""
    lease = await claim(bench, "a", 5_000)
    _, answers = await race(
        lambda leases: leases.acquire(KEY, "b", LONG_MS), lambda leases: leases.renew(replace(lease, ttl_ms=LONG_MS))
    )
    assert isinstance(answers[0], Renewed)
    assert ((await bench.leases.peek(KEY)).ms_left or 0) > 5_000
    assert await bench.leases.release(lease) == Released(again=True)


async def test_a_renewal_waits_for_a_release(bench: PostgresBench, race: Race) -> None:
    """A lease given back is not brought back."""
    lease = await claim(bench, "a")
    _, answers = await race(lambda leases: leases.release(lease), lambda leases: leases.renew(lease))
    assert list(answers) == [Gone()]
    assert (await bench.leases.peek(KEY)).ms_left is None


@pytest.mark.parametrize("kind", ["cancel", "drain"])
async def test_a_renewal_meets_a_signal(bench: PostgresBench, race: Race, kind: str) -> None:
    """In both orders it is handed over once: by the renewal that waited for it, or by the one after."""
    lease = await claim(bench, "a")
    await bench.leases.signal(KEY, kind)  # type: ignore[arg-type]
    held, answers = await race(
        lambda leases: leases.signal(KEY, kind),  # type: ignore[arg-type]
        lambda leases: leases.renew(lease),
    )
    assert held
    assert [signal_of(answers[0]), signal_of(renew(bench, lease))] == [kind, ""]
    await bench.leases.signal(KEY, kind)  # type: ignore[arg-type]
    answers, held = await race(
        lambda leases: leases.renew(lease),
        lambda leases: leases.signal(KEY, kind),  # type: ignore[arg-type]
    )
    assert held
    assert [signal_of(answers[0]), *(signal_of(renew(bench, lease)) for _ in range(2))] == [kind, kind, ""]


async def test_a_drain_waits_for_a_release(bench: PostgresBench, race: Race) -> None:
    """It finds nobody, says so and leaves nothing."""
    lease = await claim(bench, "a")
    _, held = await race(lambda leases: leases.release(lease), lambda leases: leases.signal(KEY, "drain"))
    assert held is False
    assert signal_of(renew(bench, await claim(bench, "b"))) == ""


async def test_a_release_waits_for_a_drain(bench: PostgresBench, race: Race) -> None:
    """The drain found a holder and is gone with its lease; the next holder does not hear of it."""
    lease = await claim(bench, "a")
    held, released = await race(lambda leases: leases.signal(KEY, "drain"), lambda leases: leases.release(lease))
    assert (held, released) == (True, Released(again=False))
    assert signal_of(renew(bench, await claim(bench, "b"))) == ""


async def test_a_takeover_waits_for_the_release_of_the_dead(bench: PostgresBench, race: Race) -> None:
    """A holder that comes back and gives a lapsed lease back before the claim: the key has no predecessor any more."""
    old = await lapsed(bench, "a")
    released, new = await race(lambda leases: leases.release(old), lambda leases: leases.acquire(KEY, "b", LONG_MS))
    assert released == Released(again=False)
    assert isinstance(new, Lease)
    assert (new.predecessor, new.token > old.token) == ("none", True)


async def test_two_sessions_begin_one_memory(bench: PostgresBench, race: Race) -> None:
    """The second waits for the first one's epoch and claims under it."""
    await bench.forget()
    first, second = await race(
        lambda leases: leases.acquire(KEY, "a", LONG_MS, force=True),
        lambda leases: leases.acquire(f"{KEY}-other", "b", LONG_MS, force=True),
    )
    assert isinstance(first, Lease)
    assert isinstance(second, Lease)
    assert first.epoch == second.epoch


@pytest.mark.spec("LSE-014")
async def test_a_forgotten_holder_meets_a_claim(bench: PostgresBench, race: Race) -> None:
    """Whoever came first has the key, the other one waits and is told so; in both orders."""
    for holder_first in (True, False):
        old = await claim(bench, f"a-{holder_first}")
        await bench.forget()
        await bench.leases.peek(KEY)

        async def come_back(leases: OneSession) -> object:
            return (await leases.renew(old))[0]  # noqa: B023

        async def take(leases: OneSession) -> object:
            return await leases.acquire(KEY, "b", LONG_MS, force=True)

        if holder_first:
            back, taken = await race(come_back, take)
            assert isinstance(back, Renewed)
            assert isinstance(taken, Held)
        else:
            taken, back = await race(take, come_back)
            assert isinstance(taken, Lease)
            assert back == Gone()
        await bench.forget()


async def test_renewals_in_opposite_orders_never_fail(bench: PostgresBench) -> None:
    """Two heartbeats that renew the same leases in opposite orders wait for each other and deadlock never."""
    leases = [await claim(bench, f"o-{n}", key=f"{KEY}-{n}") for n in range(32)]

    def beats(order: Sequence[Lease]) -> bool:
        return all(isinstance(answer, Renewed) for _ in range(30) for answer in renew_all(bench, order))

    assert await asyncio.gather(*(asyncio.to_thread(beats, order) for order in (leases, leases[::-1]))) == [True, True]


async def test_a_crowd_holds_a_key_one_at_a_time(bench: PostgresBench, migrated_postgres_dsn: str) -> None:
    """Providers that claim and release one key as fast as they can never hold it together, and no token comes twice."""
    held: list[int] = []
    tokens: list[int] = []
    providers = [PostgresLeases(migrated_postgres_dsn) for _ in range(4)]

    async def rounds(leases: PostgresLeases, name: str) -> None:
        done = 0
        while done < 40:
            lease = await leases.acquire(KEY, f"{name}-{done}", LONG_MS, force=True)
            if isinstance(lease, Lease):
                held.append(lease.token)
                await asyncio.sleep(0)
                assert held == [lease.token]
                held.clear()
                tokens.append(lease.token)
                assert isinstance(await leases.release(lease), Released)
                done += 1

    await asyncio.gather(*(rounds(leases, f"p{at}") for at, leases in enumerate(providers)))
    assert len(set(tokens)) == 160
    for leases in providers:
        await leases.close()
