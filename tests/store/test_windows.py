"""Rolling windows, on both dialects, by a clock that the test sets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from deuz_workers.core.change import Applied, BudgetExceeded, Head, Outcome, Reserve, Settle
from deuz_workers.core.shared_budget import DEFAULT_BUCKETS, SharedBudget, Window
from deuz_workers.core.usage import Budget
from deuz_workers.store import SqlStore, open_store
from deuz_workers.testing.store_conformance_bench import Bench

T0_MS = 1_750_000_000_000 // 60_000 * 60_000
"""The beginning of a bucket of every window below."""
MINUTE = Window(60_000, 6)
BUCKET_MS = 10_000
KEY = "user:42"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A test that asks for it runs over both."""
    return "sqlite://:memory:" if request.param == "sqlite" else str(request.getfixturevalue("migrated_postgres_dsn"))


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    """One dialect at the beginning of a bucket."""
    store = open_store(url)
    store.now = T0_MS
    yield store
    await store.close()


class Tenant:
    """One run that holds its user to 100 tokens in a window."""

    def __init__(self, store: SqlStore, bench: Bench, head: Head, shared: SharedBudget) -> None:
        self.store, self.bench, self.head, self.shared = store, bench, head, shared
        self.requests = 0

    @staticmethod
    async def of(store: SqlStore, window: Window | None = MINUTE) -> Tenant:
        bench = Bench(store)
        return Tenant(store, bench, await bench.start(), SharedBudget(KEY, Budget(tokens=100), window))

    async def reserve(self, tokens: int, at_ms: int) -> Outcome:
        self.store.now = T0_MS + at_ms
        self.requests += 1
        asked = Reserve(f"{self.requests}", (KEY,), tokens, None, (self.shared,))
        return await self.bench.commit(await self.bench.again(self.head), reserve=asked)

    async def settle(self, request: int, outcome: Any, tokens: int, at_ms: int) -> None:
        self.store.now = T0_MS + at_ms
        ending = Settle(f"{request}", (), outcome, tokens, None)
        await self.bench.applied(await self.bench.again(self.head), settle=(ending,))

    async def counted(self, at_ms: int) -> int | None:
        self.store.now = T0_MS + at_ms
        balance = await self.store.balance(KEY)
        assert balance is not None
        return balance.counted.tokens


REFUSED = BudgetExceeded(KEY, "budget_exceeded")


@pytest.mark.spec("WIN-001", "WIN-006")
async def test_usage_leaves_bucket_by_bucket(store: SqlStore) -> None:
    """What was used counts for at most the window and at least a bucket less, by the clock of the store alone."""
    tenant = await Tenant.of(store)
    for bucket in range(5):
        assert isinstance(await tenant.reserve(20, bucket * BUCKET_MS + 9_999 * (bucket == 0)), Applied)
    assert await tenant.reserve(1, 5 * BUCKET_MS + 9_999) == REFUSED
    assert await tenant.counted(59_999) == 100
    assert await tenant.counted(60_000) == 80  # 50 s after the first was used at the very end of its bucket
    assert isinstance(await tenant.reserve(20, 60_000), Applied)
    assert await tenant.reserve(1, 69_999) == REFUSED
    assert isinstance(await tenant.reserve(20, 70_000), Applied)  # 60 s after the second was used at the beginning of its own
    assert await tenant.counted(1_000_000) == 0


@pytest.mark.spec("WIN-003")
async def test_without_a_window_a_budget_is_for_life(store: SqlStore) -> None:
    """Usage never leaves."""
    tenant = await Tenant.of(store, None)
    assert isinstance(await tenant.reserve(100, 0), Applied)
    assert await tenant.reserve(1, 10**12) == REFUSED


@pytest.mark.spec("WIN-004")
@pytest.mark.parametrize("lost", [False, True])
async def test_a_hold_nobody_settles_ages_out(store: SqlStore, lost: bool) -> None:
    """It counts in the bucket in which it was made, also when its call is known to be lost; the whole of it is still shown."""
    tenant = await Tenant.of(store)
    assert isinstance(await tenant.reserve(100, 0), Applied)
    if lost:
        await tenant.settle(1, "unknown", 0, 30_000)
    assert await tenant.reserve(1, 59_999) == REFUSED
    assert isinstance(await tenant.reserve(100, 60_000), Applied)
    balance = await store.balance(KEY)
    assert balance is not None
    assert (balance.held.tokens, balance.unknown.tokens) == ((100, 100) if lost else (200, 0))
    assert balance.in_window == Budget(100, 0)


@pytest.mark.spec("WIN-004")
async def test_a_settlement_counts_in_the_bucket_of_its_reservation(store: SqlStore) -> None:
    """Not in that of the moment in which the reply came."""
    tenant = await Tenant.of(store)
    assert isinstance(await tenant.reserve(100, 0), Applied)
    await tenant.settle(1, "settled", 60, 55_000)
    assert await tenant.counted(59_999) == 60
    assert isinstance(await tenant.reserve(40, 59_999), Applied)
    assert await tenant.counted(60_000) == 40
    assert isinstance(await tenant.reserve(60, 60_000), Applied)


@pytest.mark.spec("WIN-005")
@pytest.mark.parametrize("folded_late", [False, True])
async def test_a_settlement_after_the_window_changes_history_alone(store: SqlStore, folded_late: bool) -> None:
    """What counts now stays; totals and usage say what was used."""
    tenant = await Tenant.of(store)
    assert isinstance(await tenant.reserve(100, 0), Applied)
    assert isinstance(await tenant.reserve(70, 100_000), Applied)
    await tenant.settle(1, "settled", 90, 100_001)
    assert await tenant.counted(100_001) == 70
    if folded_late:
        assert isinstance(await tenant.reserve(30, 100_002), Applied)
    balance = await store.balance(KEY)
    assert balance is not None
    assert balance.spent.tokens == 90
    assert (await store.usage(KEY))[0].spent.tokens == 90
    assert await tenant.reserve(31, 100_003) == REFUSED


@pytest.mark.spec("WIN-012")
async def test_a_window_has_twelve_buckets_unless_it_says_otherwise(store: SqlStore) -> None:
    """It behaves as with the documented number, and is the same window."""
    tenant = await Tenant.of(store, Window(60_000))
    assert Window(60_000) == Window(60_000, 12)
    assert DEFAULT_BUCKETS == 12
    assert isinstance(await tenant.reserve(100, 4_999), Applied)
    assert await tenant.counted(59_999) == 100
    assert await tenant.counted(60_000) == 0
    tenant.shared = SharedBudget(KEY, Budget(tokens=100), Window(60_000, 12))
    assert isinstance(await tenant.reserve(100, 60_000), Applied)


async def test_a_clock_that_goes_back_frees_nothing(store: SqlStore) -> None:
    """The newest bucket stays the newest, so that what was used counts as long as it would have."""
    tenant = await Tenant.of(store)
    assert isinstance(await tenant.reserve(60, 30_000), Applied)
    assert isinstance(await tenant.reserve(40, 0), Applied)
    assert await tenant.reserve(1, 0) == REFUSED
    assert await tenant.counted(89_999) == 100
    assert await tenant.counted(90_000) == 0


@pytest.mark.spec("BUD-016")
async def test_usage_since_a_moment_counts_its_bucket_whole(store: SqlStore) -> None:
    """Settled and held amounts from the beginning of the bucket into which the moment falls; in all without a moment."""
    tenant = await Tenant.of(store)
    for at_ms, tokens in ((1_000, 10), (12_000, 20), (19_000, 30), (25_000, 40)):
        assert isinstance(await tenant.reserve(tokens, at_ms), Applied)
    await tenant.settle(3, "settled", 25, 26_000)
    found = [await store.usage(KEY, since) for since in (None, T0_MS + 10_000, T0_MS + 18_000, T0_MS + 20_000, T0_MS + 30_000)]
    sums = [sum((row.spent.tokens or 0) + (row.held.tokens or 0) for row in rows) for rows in found]
    assert sums == [95, 85, 85, 40, 0]
