"""The lease suite over Redis, Postgres, an SQLite file and memory, and the requirement rows that its tests check."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from deuz_workers.testing.lease_conformance import LeaseBench, LeaseConformance, claim
from tests.leases.benches import file_bench, memory_bench, postgres_bench, redis_bench

pytest.mark.spec("LSE-001")(LeaseConformance.test_a_key_has_one_holder)
pytest.mark.spec("LSE-001")(LeaseConformance.test_one_of_many_simultaneous_claims_wins)
pytest.mark.spec("LSE-002")(LeaseConformance.test_tokens_grow_with_every_new_holder)
pytest.mark.spec("LSE-003")(LeaseConformance.test_a_signal_is_handed_over_once)
pytest.mark.spec("LSE-004")(LeaseConformance.test_expiry_alone_is_not_loss)
pytest.mark.spec("LSE-005")(LeaseConformance.test_a_superseded_holder_is_told_gone)
pytest.mark.spec("LSE-006")(LeaseConformance.test_an_outdated_release_has_no_effect)
pytest.mark.spec("LSE-007")(LeaseConformance.test_a_signal_says_whether_anybody_holds_the_key)
pytest.mark.spec("LSE-008")(LeaseConformance.test_a_cancel_waits_for_a_holder)
pytest.mark.spec("LSE-009")(LeaseConformance.test_a_drain_dies_with_its_holder)


async def tokens_of_four(bench: LeaseBench) -> list[int]:
    """Of four holders of a key, the last one after a loss of memory."""
    tokens: list[int] = []
    for owner in ("a", "b", "c"):
        lease = await claim(bench, owner)
        tokens.append(lease.token)
        await bench.leases.release(lease)
    await bench.forget()
    return [*tokens, (await claim(bench, "d")).token]


class Fresh(LeaseConformance):
    """What ours promise beyond the contract."""

    @pytest.mark.spec("LSE-002")
    async def test_a_fresh_provider_counts_from_one(self, bench: LeaseBench) -> None:
        """The first three holders of a key have the tokens 1, 2 and 3, and after a loss of memory the next one has 1 again."""
        assert await tokens_of_four(bench) == [1, 2, 3, 1]


@pytest.mark.spec("LSE-010")
class TestRedis(Fresh):
    @pytest.fixture
    async def bench(self, redis_url: str) -> AsyncGenerator[LeaseBench]:
        async with redis_bench(redis_url) as bench:
            yield bench


@pytest.mark.spec("LSE-010")
class TestPostgres(LeaseConformance):
    @pytest.fixture
    async def bench(self, migrated_postgres_dsn: str) -> AsyncGenerator[LeaseBench]:
        async with postgres_bench(migrated_postgres_dsn) as bench:
            yield bench

    @pytest.mark.spec("LSE-002")
    async def test_tokens_go_on_after_a_loss_of_memory(self, bench: LeaseBench) -> None:
        """The first three holders of a key have the tokens 1, 2 and 3, and the one after a loss of memory has 4."""
        assert await tokens_of_four(bench) == [1, 2, 3, 4]


@pytest.mark.spec("LSE-010")
class TestSqliteFile(Fresh):
    @pytest.fixture
    async def bench(self, tmp_path: Path) -> AsyncGenerator[LeaseBench]:
        async with file_bench(tmp_path / "leases.sqlite3") as bench:
            yield bench


@pytest.mark.spec("LSE-010")
class TestMemory(Fresh):
    @pytest.fixture
    async def bench(self) -> AsyncGenerator[LeaseBench]:
        async with memory_bench() as bench:
            yield bench
