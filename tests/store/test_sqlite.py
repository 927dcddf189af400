"""The SQLite dialect: opening and migrating a file, locks of others, the clock, threads, errors with a way out."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest

from deuz_workers.core.change import Applied
from deuz_workers.errors import ConfigurationError, SchemaTooNewError, StoreError, StoreUnavailableError
from deuz_workers.ports.store import When
from deuz_workers.store import SqlStore, migrate, open_store
from deuz_workers.store.migrations import load_migrations
from deuz_workers.store.sqlite import SqliteDialect
from deuz_workers.store.sqlite_connection import BUSY_MS
from deuz_workers.testing.store_conformance_bench import HOUR_MS, Bench, item
from tests.fake_clock import FakeClock

TTL_MS = 30_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is not there yet."""
    return tmp_path / "runs.db"


@pytest.fixture
async def bench(path: Path) -> AsyncIterator[Bench]:
    """A store on the file that soon loses its patience."""
    store = SqlStore(SqliteDialect(path, busy_ms=50), patience_ms=0)
    yield Bench(store)
    await store.close()


@contextmanager
def locked(path: Path) -> Generator[sqlite3.Connection]:
    """Somebody else's connection that has the write lock."""
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("begin immediate")
        yield other
    finally:
        other.close()


async def ticks(count: int) -> None:
    """The event loop goes round so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


def catalog(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Every table and index but the list of migrations."""
    rows = connection.execute("select name, coalesce(sql, '') from sqlite_master where tbl_name <> 'deuz_schema' order by name")
    return rows.fetchall()


# -- opening -----------------------------------------------------------------------------------------------------------


async def test_all_migrations_make_exactly_the_schema(path: Path) -> None:
    """`schema.sql` and all numbered files give the same tables and indexes."""
    every = tuple(migration.number for migration in load_migrations("sqlite"))
    assert await migrate(f"sqlite:///{path}") == every
    assert await migrate(f"sqlite:///{path}") == ()
    migrated, described = sqlite3.connect(path), sqlite3.connect(":memory:")
    described.executescript(files("deuz_workers.store").joinpath("sql", "sqlite", "schema.sql").read_text("utf-8"))
    assert catalog(migrated) == catalog(described)
    migrated.close()
    described.close()


async def test_a_file_is_opened_by_its_first_use(path: Path) -> None:
    """Making a store touches nothing; the first operation makes file and schema, and a later store finds the runs there."""
    store = open_store(f"sqlite:///{path}")
    assert not path.exists()
    head = await Bench(store).start()
    await store.close()
    later = open_store(f"sqlite:///{path}")
    await later.check_schema()
    found = await later.head(head.scope, head.run_id)
    assert found is not None
    assert found.rid == head.rid
    await later.close()


@pytest.mark.spec("CKP-003")
async def test_memory_is_each_store_s_own() -> None:
    """Two stores in memory know nothing of each other, and what was in memory is gone with its store."""
    one, two = open_store("sqlite://:memory:"), open_store("sqlite://:memory:")
    head = await Bench(one).start()
    assert await two.head(head.scope, head.run_id) is None
    await one.close()
    assert await one.head(head.scope, head.run_id) is None
    await one.close()
    await two.close()


@pytest.mark.spec("SST-004")
async def test_a_newer_schema_is_refused(path: Path) -> None:
    """A file that a later version migrated is not used, and nothing in it is changed."""
    await migrate(f"sqlite:///{path}")
    with sqlite3.connect(path) as other:
        other.execute("insert into deuz_schema (version, name, applied_at_ms) values (9999, 'future', 0)")
        other.commit()
        before = catalog(other)
        store = open_store(f"sqlite:///{path}")
        for refused in (store.check_schema, lambda: store.head("scope", "run"), lambda: Bench(store).start()):
            with pytest.raises(SchemaTooNewError, match="9999"):
                await refused()
        await store.close()
        assert catalog(other) == before
    other.close()


async def test_tables_of_an_application_stay_as_they_are(path: Path) -> None:
    """The file may be one that an application uses: its tables and rows are not touched."""
    with sqlite3.connect(path) as other:
        other.execute("create table invoices (number integer)")
        other.execute("insert into invoices values (7)")
        other.commit()
        store = open_store(f"sqlite:///{path}")
        await Bench(store).start()
        await store.close()
        assert other.execute("select number from invoices").fetchall() == [(7,)]
    other.close()


@pytest.mark.parametrize(
    ("url", "level"), [("{}", 1), ("{}?synchronous=normal", 1), ("{}?synchronous=full", 2)], ids=["default", "normal", "full"]
)
async def test_commits_wait_for_the_disk_when_asked(path: Path, url: str, level: int) -> None:
    """`?synchronous=full` is set on the connection that commits; without it commits do not wait for the disk."""
    store = open_store("sqlite:///" + url.format(path))
    await Bench(store).start()
    rows = await asyncio.to_thread(_pragma, store, "synchronous")
    assert (rows, await asyncio.to_thread(_pragma, store, "journal_mode")) == (level, "wal")
    await store.close()


def _pragma(store: SqlStore, name: str) -> object:
    assert isinstance(store.dialect, SqliteDialect)
    return store.dialect._of_this_process().connection._connection.execute(f"pragma {name}").fetchone()[0]


@pytest.mark.parametrize("url", ["sqlite:///x.db?synchronous=off", "sqlite:///x.db?mode=ro", "sqlite://x.db", "sqlite:///"])
def test_an_odd_url_is_refused(url: str) -> None:
    """A URL with an unknown setting, or without a path, says what is understood."""
    with pytest.raises(ConfigurationError, match=r"sqlite:///path|synchronous=full"):
        open_store(url)


# -- errors ------------------------------------------------------------------------------------------------------------


async def test_a_failed_open_is_tried_again(tmp_path: Path) -> None:
    """A missing folder is named with the way out; once it is there, the same store works."""
    path = tmp_path / "missing" / "runs.db"
    store = SqlStore(SqliteDialect(path), patience_ms=0)
    with pytest.raises(StoreUnavailableError, match=f"{path}.*make its folder"):
        await store.now_ms()
    path.parent.mkdir()
    await Bench(store).start()
    await store.close()


async def test_a_file_that_is_no_database_is_named(path: Path) -> None:
    """Text where a database should be is an error with the path, and the text stays as it is."""
    path.write_text("To whom it may concern: " * 100)
    store = SqlStore(SqliteDialect(path), patience_ms=0)
    with pytest.raises(StoreUnavailableError, match=f"{path}.*no SQLite database"):
        await store.now_ms()
    await store.close()
    assert path.read_text().startswith("To whom")


async def test_an_error_says_nothing_of_the_values(bench: Bench) -> None:
    """A row that the schema refuses is a StoreError with SQLite's code; neither message nor cause shows what was given."""
    with pytest.raises(StoreError, match="SQLITE_CONSTRAINT_CHECK") as caught:
        await bench.start(kind="sesame", body="sesame")
    assert "sesame" not in f"{caught.value!r}{caught.value.__cause__!r}"
    assert caught.value.__context__ is None or caught.value.__suppress_context__


async def test_a_transaction_of_the_caller_is_refused(bench: Bench) -> None:
    """Only Postgres writes in its caller's transaction; here nothing is written and the error says so."""
    run = bench.run()
    with pytest.raises(ConfigurationError, match="connection"):
        await bench.store.create(run, connection=object())
    assert await bench.store.head(bench.scope, run.run_id) is None


# -- locks of others ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("OPS-004")
async def test_a_locked_file_is_opened_once_it_is_free(path: Path) -> None:
    """A store that first opens a file while another has its lock waits for up to 5 s, and works when the lock is given back."""
    assert BUSY_MS == 5_000
    store = SqlStore(SqliteDialect(path))
    with locked(path) as other:
        opening = asyncio.create_task(Bench(store).start())
        await ticks(50)
        assert not opening.done()
        other.execute("rollback")
        assert (await opening).revision == 0
    await store.close()


@pytest.mark.spec("OPS-004")
async def test_a_file_that_stayed_locked_is_opened_by_the_next_call(path: Path, bench: Bench) -> None:
    """The first use of the store finds the lock for too long; the next one opens the file."""
    with locked(path), pytest.raises(StoreUnavailableError, match="stayed locked"):
        await bench.start()
    assert (await bench.start()).revision == 0


async def test_a_writer_waits_without_the_loop(path: Path) -> None:
    """While another process has the write lock, reads go on, the event loop ticks, and a write is done when it is free."""
    store = SqlStore(SqliteDialect(path))
    bench = Bench(store)
    head = await bench.start()
    with locked(path) as other:
        writing = asyncio.create_task(bench.commit(head))
        for _ in range(50):
            await asyncio.sleep(0)
            assert (await bench.again(head)).revision == 0
        assert not writing.done()
        other.execute("rollback")
        assert isinstance(await writing, Applied)
    await store.close()


async def test_a_lock_that_stays_is_named(path: Path, bench: Bench) -> None:
    """When the lock is not given back, all who wait give up after the same time, with path and way out; nothing is written."""
    head = await bench.start()
    with locked(path):
        outcomes = await asyncio.gather(*(bench.commit(head) for _ in range(20)), return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, StoreUnavailableError)
        assert str(path) in outcome.message
        assert "stayed locked by another process for 50 ms" in outcome.message
    assert isinstance(await bench.commit(head), Applied)


async def test_closing_waits_for_what_was_begun(path: Path) -> None:
    """An operation that waits for a lock when the store is closed is finished, not dropped."""
    store = SqlStore(SqliteDialect(path))
    bench = Bench(store)
    head = await bench.start()
    with locked(path) as other:
        writing = asyncio.create_task(bench.commit(head))
        await ticks(10)
        closing = asyncio.create_task(store.close())
        await ticks(10)
        assert not closing.done()
        other.execute("rollback")
        assert isinstance(await writing, Applied)
        await closing


# -- threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["file", "memory"])
async def test_loops_of_several_threads_share_a_store(path: Path, where: str) -> None:
    """Four loops in four threads commit and read through one store object, each run's revisions in order."""
    store = SqlStore(SqliteDialect(path if where == "file" else None))
    bench = Bench(store)
    heads = [await bench.start() for _ in range(4)]

    async def commits(place: int) -> None:
        head = heads[place]
        for _ in range(50):
            await bench.applied(head)
            head = await bench.again(head)

    await asyncio.gather(*(asyncio.to_thread(asyncio.run, commits(place)) for place in range(4)))
    assert [(await bench.again(head)).revision for head in heads] == [50] * 4
    await store.close()


# -- the clock ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> FakeClock:
    """Stands still until it is moved."""
    return FakeClock()


@pytest.fixture
async def timed(clock: FakeClock) -> AsyncIterator[Bench]:
    """A store whose time is `clock`."""
    store = SqlStore(SqliteDialect(None, clock=clock), ttl_ms=TTL_MS)
    yield Bench(store)
    await store.close()


@pytest.mark.spec("DEF-164")
async def test_times_are_the_injected_clock_s(timed: Bench, clock: FakeClock) -> None:
    """`now_ms`, starts, deadlines, journal and creation carry the given time to the millisecond, and no other."""
    assert await timed.store.now_ms() == clock.unix_ms()
    head = await timed.start(start=When(in_ms=500), deadline=When(at_ms=clock.unix_ms() + 2_000))
    assert (head.due_in_ms, head.deadline_in_ms, head.created_at_ms) == (500, 2_000, clock.unix_ms())
    clock.advance(499)
    head = await timed.again(head)
    assert (head.due_in_ms, head.has_work) == (1, False)
    clock.advance(1)
    assert (await timed.again(head)).has_work
    await timed.applied(head, journal=("j",))
    assert [row.at_ms for row in await timed.store.journal(timed.scope, head.run_id, 0, 1)] == [clock.unix_ms()]


async def test_the_sweep_comes_when_a_ringer_did_not(timed: Bench, clock: FakeClock) -> None:
    """A commit at work, a note and a last answer are swept a TTL later if nobody rang, and not before."""
    at_work = await timed.start()
    assert await timed.swept(ttl_ms=HOUR_MS) == [at_work.run_id]
    await timed.applied(at_work)
    noted, answered = [await timed.suspended(await timed.start(), item("a")) for _ in range(2)]
    await timed.store.add_note(timed.scope, noted.run_id, "message", "{}")
    await timed.store.answer_item(timed.scope, answered.run_id, "a", "yes")
    clock.advance(TTL_MS - 1)
    assert await timed.swept() == []
    clock.advance(1)
    assert sorted(await timed.swept()) == sorted([at_work.run_id, noted.run_id, answered.run_id])


async def test_commits_leave_the_sweep_where_it_is(timed: Bench, clock: FakeClock) -> None:
    """While the sweep is more than half a TTL away a commit does not move it; then it moves it a whole TTL on."""
    head = await timed.start()
    await timed.applied(head)
    clock.advance(TTL_MS // 2 - 1)
    await timed.applied(await timed.again(head))
    clock.advance(TTL_MS // 2 + 1)
    assert await timed.swept(ttl_ms=TTL_MS) == [head.run_id]
    clock.advance(TTL_MS // 2 + 1)
    await timed.applied(await timed.again(head))
    clock.advance(TTL_MS // 2)
    assert await timed.swept() == []


async def test_a_run_comes_back_when_it_is_due(timed: Bench, clock: FakeClock) -> None:
    """A later due time, a back-off, a deadline of a suspended run and a postponed look are each swept at their moment."""
    later, ended_badly, waiting, postponed = [
        await timed.start(deadline=When(in_ms=4_000) if place == 2 else None) for place in range(4)
    ]
    await timed.swept(ttl_ms=HOUR_MS)
    await timed.applied(later, due_in_ms=1_000)
    await timed.store.record_unclean_end(ended_badly.rid, 0, 2_000)
    await timed.store.postpone(timed.scope, postponed.run_id, 3_000)
    await timed.suspended(waiting)
    for head in (later, ended_badly, postponed, waiting):
        clock.advance(999)
        assert await timed.swept(ttl_ms=HOUR_MS) == []
        clock.advance(1)
        assert await timed.swept(ttl_ms=HOUR_MS) == [head.run_id]


async def test_an_item_expires_at_its_moment(timed: Bench, clock: FakeClock) -> None:
    """An answer in the last millisecond is stored; one at the expiry is not."""
    head = await timed.suspended(await timed.start(), item("a", expires_in_ms=1_000), item("b", expires_in_ms=1_000))
    clock.advance(999)
    in_time = await timed.store.answer_item(timed.scope, head.run_id, "a", "yes")
    clock.advance(1)
    late = await timed.store.answer_item(timed.scope, head.run_id, "b", "yes")
    assert in_time is not None
    assert late is not None
    assert (in_time.stored, late.stored) == (True, False)


async def test_a_task_carries_its_times(timed: Bench, clock: FakeClock) -> None:
    """A task starts when it first gets a slot, also if it later waits and gets another, and ends with its commit."""
    swarm = await timed.swarm({"a": ()})
    clock.advance(10)
    await swarm.fill()
    started = clock.unix_ms()
    await swarm.suspend("a", item("i"))
    clock.advance(10)
    await timed.store.answer_item(timed.scope, swarm.runs["a"].run_id, "i", "yes")
    await swarm.fill()
    clock.advance(10)
    await swarm.end("a")
    snapshot = await timed.store.swarm_snapshot(swarm.rid)
    assert snapshot is not None
    assert [(task.started_at_ms, task.ended_at_ms) for task in snapshot.tasks] == [(started, clock.unix_ms())]


async def test_what_sqlite_cannot_store_is_an_error_of_the_store(bench: Bench) -> None:
    """As in Postgres: half of a surrogate pair in a name, a number of more than 64 bits. The store goes on."""
    for asked in (bench.store.head("default", "\ud800"), bench.store.journal("default", "r", 0, 2**70)):
        with pytest.raises(StoreError, match="SQLite cannot store"):
            await asked
    assert await bench.store.head("default", "nosuch") is None
