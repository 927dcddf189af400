"""What only SQLite can do to leases: be shared by processes, be locked, be told the time."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from deuz_workers.engine.system_clock import SystemClock
from deuz_workers.errors import ConfigurationError, LeaseStoreUnavailableError
from deuz_workers.leases import SqliteLeases, memory_leases, open_leases
from deuz_workers.leases.table import CLEANUP_EVERY_MS, KEEP_MS, LeaseTable
from deuz_workers.ports.leases import Gone, Held, Lease, Released, Renewed, Young
from deuz_workers.testing.lease_conformance import KEY, LONG_MS, RENEWER_TIMEOUT_MS
from tests.fake_clock import FakeClock
from tests.forked import holds_in_child

ROUNDS = 40
RIVALS = 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.sqlite3"


def count_under_a_lease(path: Path, counter: Path, owner: str) -> None:
    """Raise the number in `counter` again and again, reading and writing it apart, whenever the lease is granted."""

    async def work() -> None:
        leases = SqliteLeases(path)
        done = 0
        while done < ROUNDS:
            lease = await leases.acquire(KEY, f"{owner}-{done}", LONG_MS, force=True)
            if isinstance(lease, Lease):
                number = int(counter.read_text())
                await asyncio.sleep(0)
                counter.write_text(str(number + 1))
                await leases.release(lease)
                done += 1
        await leases.close()

    asyncio.run(work())


@pytest.mark.processes
@pytest.mark.spec("DST-012")
def test_processes_share_a_file(path: Path, tmp_path: Path) -> None:
    """Processes that open one new file at the same time never hold a key together: no count is lost."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    spawn = multiprocessing.get_context("spawn")
    rivals = [spawn.Process(target=count_under_a_lease, args=(path, counter, f"rival-{n}")) for n in range(RIVALS)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    assert [rival.exitcode for rival in rivals] == [0] * RIVALS
    assert counter.read_text() == str(RIVALS * ROUNDS)


def test_a_forked_child_opens_a_connection_of_its_own(path: Path) -> None:
    """The child sees its parent's lease, and the parent's connection works on after the child ended."""
    leases = SqliteLeases(path)
    lease = asyncio.run(claim_forced(leases, "parent"))
    assert holds_in_child(lambda: isinstance(asyncio.run(leases.acquire(KEY, "child", LONG_MS)), Held))
    assert asyncio.run(leases.release(lease)) == Released(again=True)
    asyncio.run(leases.close())


async def claim_forced(leases: SqliteLeases, owner: str) -> Lease:
    answer = await leases.acquire(KEY, owner, LONG_MS, force=True)
    assert isinstance(answer, Lease)
    return answer


@pytest.mark.spec("LSE-011")
async def test_time_is_the_given_clocks(path: Path) -> None:
    """A lease lapses by the clock that was given, however little real time has passed."""
    clock = FakeClock()
    leases = SqliteLeases(path, clock=clock)
    await leases.acquire(KEY, "a", LONG_MS, force=True)
    clock.advance(LONG_MS - 1)
    assert isinstance(await leases.acquire(KEY, "b", LONG_MS), Held)
    clock.advance(1)
    assert isinstance(await leases.acquire(KEY, "b", LONG_MS), Lease)
    await leases.close()


@pytest.mark.spec("LSE-011")
async def test_time_is_the_machines_by_default(path: Path) -> None:
    """Without a clock the epoch is born at the machine's time, so processes that share the file agree on it."""
    leases = SqliteLeases(path)
    before_ms = SystemClock().unix_ms()
    answer = await leases.acquire(KEY, "a", LONG_MS)
    after_ms = SystemClock().unix_ms()
    assert isinstance(answer, Young)
    assert before_ms <= int(answer.epoch.partition(":")[0]) <= after_ms
    await leases.close()


@pytest.mark.spec("LSE-013")
async def test_nothing_accumulates(path: Path) -> None:
    """A released key has no row; lapsed leases and queued cancels are deleted by the first claim a day later."""
    clock = FakeClock()
    leases = SqliteLeases(path, clock=clock)

    def rows() -> list[int]:
        with closing(sqlite3.connect(path)) as sql:
            return [sql.execute(f"select count(*) from {table}").fetchone()[0] for table in ("lease", "lease_cancel")]

    released = await claim_forced(leases, "a")
    await leases.release(released)
    assert rows() == [0, 0]
    for n in range(5):
        await leases.acquire(f"{KEY}-{n}", "dies", LONG_MS, force=True)
        await leases.signal(f"{KEY}-{n}", "cancel")
    clock.advance(KEEP_MS)
    await leases.acquire(KEY, "b", LONG_MS)
    assert rows() == [6, 5]
    clock.advance(LONG_MS + CLEANUP_EVERY_MS + 1)
    await leases.acquire(KEY, "c", LONG_MS)
    assert rows() == [1, 0]
    await leases.close()


async def test_a_lease_forgotten_by_age_is_gone(path: Path) -> None:
    """The holder that comes back after more than a day finds memory whole and its lease not in it."""
    clock = FakeClock()
    leases = SqliteLeases(path, clock=clock)
    lease = await claim_forced(leases, "a")
    clock.advance(KEEP_MS + LONG_MS + 1)
    await leases.acquire(f"{KEY}-other", "b", LONG_MS)
    renewer = leases.renewer(timeout_ms=RENEWER_TIMEOUT_MS)
    assert renewer.renew([lease]) == [Gone()]
    renewer.close()
    await leases.close()


async def test_a_repeated_claim_is_answered_as_the_first(path: Path) -> None:
    """The same call sent twice learns of the same predecessor."""
    clock = FakeClock()
    table = LeaseTable(str(path), clock, RENEWER_TIMEOUT_MS)
    table.acquire(KEY, "a", LONG_MS, 0, True, "first call")
    clock.advance(LONG_MS)
    answers = [table.acquire(KEY, "b", LONG_MS, 0, False, "second call") for _ in range(2)]
    table.close()
    assert answers[0] == answers[1]
    assert isinstance(answers[0], Lease)
    assert answers[0].predecessor == "lapsed"


async def test_a_locked_file_is_unavailable(path: Path) -> None:
    """A renewal that finds the write lock taken beyond its timeout raises, and works once the lock is free."""
    leases = SqliteLeases(path)
    lease = await claim_forced(leases, "a")
    renewer = leases.renewer(timeout_ms=1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(LeaseStoreUnavailableError, match="SQLITE_BUSY"):
            renewer.renew([lease])
        other.execute("rollback")
    assert isinstance(renewer.renew([lease])[0], Renewed)
    renewer.close()
    await leases.close()


async def test_a_file_that_is_no_database_is_unavailable(path: Path) -> None:
    """Every verb says that nothing is known, a release counts as rung; the error does not name the path."""
    path.write_text("this is not a database, and it is long enough to be read as one" * 10)
    leases = SqliteLeases(path)
    for verb in (leases.acquire(KEY, "a", LONG_MS), leases.signal(KEY, "drain"), leases.peek(KEY)):
        with pytest.raises(LeaseStoreUnavailableError, match="SQLITE_NOTADB") as caught:
            await verb
        assert str(path) not in str(caught.value)
    lease = Lease(KEY, "a", 1, "epoch", LONG_MS, "none")
    assert await leases.release(lease) == Released(again=True)
    await leases.close()


async def test_memory_is_never_young() -> None:
    """Nobody can have held a lease before this memory existed, so a laptop does not wait after a crash."""
    leases = memory_leases()
    assert isinstance(await leases.acquire(KEY, "a", LONG_MS), Lease)
    await leases.close()


async def test_a_url_opens_its_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative and absolute files, memory; anything else is refused with the spellings that work."""
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///a%20file.db", f"sqlite:///{tmp_path}/b.db", "memory://"):
        leases = open_leases(url)
        assert isinstance(await leases.acquire(KEY, "a", LONG_MS, force=True), Lease)
        await leases.close()
    assert {file.name for file in tmp_path.iterdir() if file.suffix == ".db"} == {"a file.db", "b.db"}
    for url in ("mysql://u:hunter2@h/db", "sqlite://", "sqlite://host/x", "leases.db"):
        with pytest.raises(ConfigurationError, match=r"sqlite:///path or memory://") as caught:
            open_leases(url)
        assert "hunter2" not in str(caught.value)
