"""What only Postgres can do to leases: crash, restart, lose answers, fall silent, be unreachable, be forged, be locked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from typing import Any

import psycopg
import pytest

from deuz_workers.embedded import EmbeddedPostgres
from deuz_workers.errors import ConfigurationError, LeaseStoreUnavailableError
from deuz_workers.leases import PostgresLeases, open_leases
from deuz_workers.leases import postgres as adapter
from deuz_workers.ports.leases import Gone, Held, Lease, Released, Renewed, Young
from deuz_workers.store import migrate
from deuz_workers.testing.lease_conformance import KEY, LONG_MS, claim, lapsed, renew
from tests.forked import holds_in_child
from tests.leases.benches import SECRET, PostgresBench, postgres_bench
from tests.proxies import CuttingProxy


@pytest.fixture
async def bench(migrated_postgres_dsn: str) -> AsyncGenerator[PostgresBench]:
    async with postgres_bench(migrated_postgres_dsn) as bench:
        yield bench


@pytest.fixture
def proxy(migrated_postgres_dsn: str) -> Generator[CuttingProxy]:
    with CuttingProxy.before_postgres(migrated_postgres_dsn) as proxy:
        yield proxy


@pytest.fixture
async def through(proxy: CuttingProxy, migrated_postgres_dsn: str) -> AsyncGenerator[PostgresLeases]:
    """Leases of which `proxy` may swallow the answers."""
    leases = PostgresLeases(proxy.postgres_url(migrated_postgres_dsn), secret=SECRET)
    yield leases
    await leases.close()


async def forced(leases: PostgresLeases, owner: str) -> Lease:
    answer = await leases.acquire(KEY, owner, LONG_MS, force=True)
    assert isinstance(answer, Lease)
    return answer


def renewed(leases: PostgresLeases, lease: Lease, timeout_ms: int = 5_000) -> Renewed | Gone:
    renewer = leases.renewer(timeout_ms=timeout_ms)
    try:
        return renewer.renew([lease])[0]
    finally:
        renewer.close()


async def rows(bench: PostgresBench, query: str) -> list[tuple[Any, ...]]:
    return await (await bench.admin.execute(query)).fetchall()  # type: ignore[arg-type]


@pytest.mark.spec("LSE-014")
async def test_a_crash_of_the_server_begins_a_new_memory(private_postgres: EmbeddedPostgres) -> None:
    """Killed and started again it remembers nothing: nobody else is let in before the living holder came back."""
    await migrate(private_postgres.url)
    leases = PostgresLeases(private_postgres.url)
    lease = await forced(leases, "a")
    private_postgres.kill()
    private_postgres.start()
    assert isinstance(await leases.acquire(KEY, "b", LONG_MS), Young)
    answer = renewed(leases, lease)
    assert isinstance(answer, Renewed)
    assert (answer.lease.token, answer.lease.epoch != lease.epoch) == (lease.token, True)
    assert isinstance(await leases.acquire(KEY, "b", LONG_MS, force=True), Held)
    assert await leases.release(answer.lease) == Released(again=True)
    assert (await forced(leases, "c")).token > lease.token
    await leases.close()


async def test_a_restart_forgets_nothing(private_postgres: EmbeddedPostgres) -> None:
    """After an orderly stop the lease is there, under its epoch, and the connections of before are replaced unnoticed."""
    await migrate(private_postgres.url)
    leases = PostgresLeases(private_postgres.url)
    lease = await forced(leases, "a")
    private_postgres.restart()
    assert isinstance(await leases.acquire(KEY, "b", LONG_MS), Held)
    assert renewed(leases, lease) == Renewed(lease, "")
    assert await leases.release(lease) == Released(again=True)
    await leases.close()


async def test_a_repeated_claim_is_answered_as_the_first(
    bench: PostgresBench, proxy: CuttingProxy, through: PostgresLeases
) -> None:
    """A claim whose answer got lost is sent again, and still learns that its predecessor lapsed."""
    await lapsed(bench, "a")
    await through.peek(KEY)
    cut = proxy.cut_after(b"owner-b")
    lease = await through.acquire(KEY, "owner-b", LONG_MS)
    assert isinstance(lease, Lease)
    assert (lease.predecessor, cut.happened.is_set()) == ("lapsed", True)


async def test_a_release_with_a_lost_answer_counts_as_rung(
    bench: PostgresBench, proxy: CuttingProxy, through: PostgresLeases
) -> None:
    """The second release finds nothing and cannot know what the first one was told, so the holder rings once more."""
    lease = await forced(through, "owner-a")
    cut = proxy.cut_after(b"owner-a")
    assert await through.release(lease) == Released(again=True)
    assert cut.happened.is_set()
    assert (await bench.leases.peek(KEY)).ms_left is None
    assert await through.release(lease) == Gone()


async def test_the_heartbeats_connection_does_not_send_again(proxy: CuttingProxy, through: PostgresLeases) -> None:
    """A renewal without an answer is over at once; the next one works on a new connection."""
    lease = await forced(through, "owner-a")
    renewer = through.renewer(timeout_ms=5_000)
    renewer.renew([lease])
    accepted = proxy.accepted
    proxy.cut_after(b"owner-a")
    with pytest.raises(LeaseStoreUnavailableError):
        renewer.renew([lease])
    assert proxy.accepted == accepted
    assert renewer.renew([lease]) == [Renewed(lease, "")]
    renewer.close()


async def test_a_silent_server_is_given_up(
    proxy: CuttingProxy, through: PostgresLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls and renewals end soon after their timeout although the connection stands; later ones work."""
    monkeypatch.setattr(adapter, "CALL_TIMEOUT_S", 0.1)
    lease = await forced(through, "a")
    renewer = through.renewer(timeout_ms=100)
    renewer.renew([lease])
    proxy.hold_replies()
    began = time.monotonic()
    with pytest.raises(LeaseStoreUnavailableError):
        await asyncio.to_thread(renewer.renew, [lease])
    assert time.monotonic() - began < 1
    assert await asyncio.wait_for(through.release(lease), 10) == Released(again=True)
    proxy.release_replies()
    assert isinstance(await asyncio.to_thread(renewer.renew, [lease]), list)
    assert isinstance(await forced(through, "b"), Lease)
    renewer.close()


async def test_a_locked_table_is_unavailable(bench: PostgresBench, migrated_postgres_dsn: str) -> None:
    """A renewal that finds the table locked beyond its timeout raises and leaves no statement waiting behind it."""
    lease = await claim(bench, "a")
    renewer = bench.leases.renewer(timeout_ms=100)
    async with await psycopg.AsyncConnection[Any].connect(migrated_postgres_dsn) as other:
        await other.execute("lock table lease")
        with pytest.raises(LeaseStoreUnavailableError):
            await asyncio.to_thread(renewer.renew, [lease])
        query = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        for _ in range(500):
            if not await rows(bench, query):
                break
            await asyncio.sleep(0.01)
        assert await rows(bench, query) == []
    assert renewer.renew([lease]) == [Renewed(lease, "")]
    renewer.close()


async def test_an_unreachable_server_is_unavailable(private_postgres: EmbeddedPostgres) -> None:
    """Every verb says that nothing is known; a release counts as rung, and a later call works."""
    await migrate(private_postgres.url)
    leases = PostgresLeases(private_postgres.url)
    lease = await forced(leases, "a")
    private_postgres.kill()
    for verb in (leases.acquire(KEY, "b", LONG_MS), leases.signal(KEY, "cancel"), leases.peek(KEY)):
        with pytest.raises(LeaseStoreUnavailableError):
            await verb
    with pytest.raises(LeaseStoreUnavailableError):
        renewed(leases, lease)
    assert await leases.release(lease) == Released(again=True)
    private_postgres.start()
    assert isinstance(await leases.acquire(KEY, "b", LONG_MS), Young)
    await leases.close()


async def test_a_database_without_the_tables_says_what_to_run(postgres_dsn: str) -> None:
    """The error names the command; in both kinds of connection."""
    leases = PostgresLeases(postgres_dsn)
    with pytest.raises(LeaseStoreUnavailableError, match="deuz db migrate"):
        await leases.peek(KEY)
    with pytest.raises(LeaseStoreUnavailableError, match="deuz db migrate"):
        renewed(leases, Lease(KEY, "a", 1, "epoch", LONG_MS, "none"))
    await leases.close()


async def test_errors_tell_no_secrets() -> None:
    """Neither account nor host, neither in an error nor in the provider's own text."""
    leases = PostgresLeases("postgresql://someone:hunter2@127.0.0.1:1/runs")
    errors: list[LeaseStoreUnavailableError] = []
    with pytest.raises(LeaseStoreUnavailableError) as caught:
        await leases.acquire(KEY, "a", LONG_MS)
    errors.append(caught.value)
    with pytest.raises(LeaseStoreUnavailableError) as caught:
        renewed(leases, Lease(KEY, "a", 1, "epoch", LONG_MS, "none"))
    errors.append(caught.value)
    for text in (repr(leases), *(str(error) + repr(error.__cause__) for error in errors)):
        assert not any(secret in text for secret in ("hunter2", "someone", "127.0.0.1", KEY))
    await leases.close()


@pytest.mark.spec("LSE-012")
async def test_time_is_the_databases(bench: PostgresBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose clock is a day off sees a held lease as held, and its own lapse no later than others see it."""
    await claim(bench, "a")
    monkeypatch.setattr(time, "time", lambda: 4_000_000_000.0)
    assert isinstance(await bench.leases.acquire(KEY, "b", LONG_MS), Held)
    [(left_ms,)] = await rows(bench, "select extract(epoch from until_at - now()) * 1000 from lease")
    assert 0 < left_ms <= LONG_MS


@pytest.mark.spec("LSE-013")
async def test_nothing_accumulates(bench: PostgresBench) -> None:
    """A released key has no row; lapsed leases and queued cancels are deleted a day later, a bounded number at a time."""
    await bench.leases.release(await claim(bench, "a"))
    assert await rows(bench, "select * from lease") == []
    for n in range(5):
        await claim(bench, "dies", key=f"{KEY}-{n}")
        await bench.leases.signal(f"{KEY}-{n}", "cancel")
    assert await bench.leases.sweep() == 0
    await bench.admin.execute("update lease set until_at = now() - interval '25 hours'")
    await bench.admin.execute("update lease_cancel set at = now() - interval '25 hours'")
    assert [await bench.leases.sweep(3) for _ in range(3)] == [6, 4, 0]


async def test_claims_sweep_once_a_minute(bench: PostgresBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first claim of a process sweeps, the next ones do not until a minute has passed."""
    old = f"insert into lease values ('{KEY}-old', 'dead', 1, now() - interval '25 hours', '0', '', 'none')"
    await bench.admin.execute(old)
    await claim(bench, "a")
    assert await rows(bench, "select owner from lease") == [("a",)]
    await bench.admin.execute(old)
    await claim(bench, "a")
    assert len(await rows(bench, "select owner from lease")) == 2
    monkeypatch.setattr(adapter, "SWEEP_EVERY_S", 0.0)
    await claim(bench, "a")
    assert len(await rows(bench, "select owner from lease")) == 1


async def test_a_lease_forgotten_by_age_is_gone(bench: PostgresBench) -> None:
    """The holder that comes back after more than a day finds memory whole and its lease not in it."""
    lease = await claim(bench, "a")
    await bench.admin.execute("update lease set until_at = now() - interval '25 hours'")
    await bench.leases.sweep()
    assert renew(bench, lease) == Gone()


async def test_a_forged_revision_is_not_believed(bench: PostgresBench) -> None:
    """A revision in the table counts only with the signature of the pool's key for this very lease."""
    await lapsed(bench, "a", revision=5)
    [(genuine,)] = await rows(bench, "select mark from lease")
    for forged in ("9", "9:0123456789abcdef", "9" * 40, genuine.replace("5:", "6:", 1), ":", "", "\u00b2:x"):
        await bench.admin.execute("update lease set mark = %s", [forged])
        lease = await claim(bench, "b", bench.short_ms, revision=4)
        assert lease.revision_seen == 4, forged
        await bench.pass_ms(lease.ttl_ms)
    await bench.admin.execute("update lease set mark = %s", [genuine])
    assert (await claim(bench, "c", revision=4)).revision_seen == 5


async def test_without_a_key_no_revision_is_written(migrated_postgres_dsn: str) -> None:
    """A pool without a signing key tells nobody any revision, and believes none."""
    async with postgres_bench(migrated_postgres_dsn, secret=None) as bench:
        await lapsed(bench, "a", revision=5)
        assert await rows(bench, "select mark from lease") == [("0",)]
        await bench.admin.execute("update lease set mark = '7'")
        assert (await claim(bench, "b", revision=4)).revision_seen == 4


async def test_without_prepared_statements(migrated_postgres_dsn: str, bench: PostgresBench) -> None:
    """For poolers that do not pass them on: the verbs work and nothing is prepared."""
    leases = open_leases(migrated_postgres_dsn, prepare=False)
    for _ in range(4):
        lease = await leases.acquire(KEY, "a", LONG_MS, force=True)
        assert isinstance(lease, Lease)
        await leases.release(lease)
    await leases.close()


def test_a_provider_serves_one_loop_after_another(migrated_postgres_dsn: str) -> None:
    """Connections belong to the loop that made them; the next loop gets its own."""
    leases = PostgresLeases(migrated_postgres_dsn)

    async def hold_once() -> object:
        released = await leases.release(await forced(leases, "a"))
        await leases.close()
        return released

    assert [asyncio.run(hold_once()) for _ in range(2)] == [Released(again=False)] * 2


def test_a_forked_child_connects_by_itself(migrated_postgres_dsn: str) -> None:
    """The child sees its parent's lease through a connection of its own, and the parent's works on after the child ended."""
    leases = PostgresLeases(migrated_postgres_dsn)
    with asyncio.Runner() as runner:
        lease = runner.run(forced(leases, "parent"))
        assert holds_in_child(lambda: asyncio.Runner().run(is_held_by_parent(leases)))
        assert runner.run(leases.release(lease)) == Released(again=True)
        runner.run(leases.close())


async def is_held_by_parent(leases: PostgresLeases) -> bool:
    answer = await leases.acquire(KEY, "child", LONG_MS)
    return isinstance(answer, Held) and answer.owner == "parent"


async def test_calls_beyond_the_connections_wait_their_turn(bench: PostgresBench) -> None:
    """A hundred claims at once use two connections and all succeed."""
    leases = await asyncio.gather(*(claim(bench, "a", key=f"{KEY}-{n}") for n in range(100)))
    assert len({lease.token for lease in leases}) == 100
    query = (
        "select count(*) from pg_stat_activity where application_name = 'deuz_workers leases' and datname = current_database()"
    )
    assert await rows(bench, query) == [(adapter.MAX_CONNECTIONS,)]


async def test_a_cancelled_claim_leaves_the_provider_usable(bench: PostgresBench, migrated_postgres_dsn: str) -> None:
    """A call that is cancelled while it waits for a lock gives its place back and is ended at the server too."""
    async with await psycopg.AsyncConnection[Any].connect(migrated_postgres_dsn) as other:
        await other.execute("lock table lease")
        calls = [asyncio.ensure_future(bench.leases.acquire(KEY, f"o{n}", LONG_MS, force=True)) for n in range(4)]
        await asyncio.sleep(0.1)
        for call in calls:
            call.cancel()
        assert all(
            isinstance(answer, asyncio.CancelledError) for answer in await asyncio.gather(*calls, return_exceptions=True)
        )
    assert isinstance(await bench.leases.acquire(KEY, "a", LONG_MS, force=True), Lease)


def test_another_url_is_refused() -> None:
    """The error names the scheme and nothing of what follows it; both spellings of Postgres open it."""
    with pytest.raises(ConfigurationError, match="'amqp'") as caught:
        PostgresLeases("amqp://user:hunter2@host")
    assert "hunter2" not in str(caught.value)
    for scheme in ("postgresql", "postgres"):
        assert isinstance(open_leases(f"{scheme}://host/database"), PostgresLeases)
