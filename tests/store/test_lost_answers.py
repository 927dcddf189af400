"""Connections to Postgres that are cut in the middle of an operation: nothing is done twice, nothing conflicts with itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Literal

import pytest

from deuz_workers.core.change import Applied
from deuz_workers.errors import StoreUnavailableError
from deuz_workers.store import SqlStore
from deuz_workers.store.dialect import AnswerLost, Row
from deuz_workers.store.postgres import PostgresDialect
from deuz_workers.testing.store_conformance_bench import Bench, change_from, item, message
from tests.proxies import Cut, CuttingProxy


class GoesAway(PostgresDialect):
    """A database that is down from the first lost answer on."""

    def __init__(self, url: str, proxy: CuttingProxy) -> None:
        super().__init__(url)
        self._proxy = proxy

    async def fetch(self, operation: str, params: Mapping[str, object], *, connection: Any = None) -> Sequence[Row]:
        try:
            return await super().fetch(operation, params, connection=connection)
        except AnswerLost:
            self._proxy.refuse()
            raise


pytestmark = pytest.mark.parametrize("when", ["before", "after"])
When = Literal["before", "after"]


@pytest.fixture
def proxy(migrated_postgres_dsn: str) -> Iterator[CuttingProxy]:
    """Stands before the database."""
    with CuttingProxy.before_postgres(migrated_postgres_dsn) as proxy:
        yield proxy


@pytest.fixture
async def far(proxy: CuttingProxy, migrated_postgres_dsn: str) -> AsyncIterator[SqlStore]:
    """A store behind the proxy."""
    store = SqlStore(PostgresDialect(proxy.postgres_url(migrated_postgres_dsn)))
    yield store
    await store.close()


def cut(proxy: CuttingProxy, needle: str, when: When) -> Cut:
    """The next request with `needle` is cut `when` the server has executed it, or before it gets there."""
    return proxy.cut_before(needle.encode()) if when == "before" else proxy.cut_after(needle.encode())


async def test_a_commit_whose_answer_got_lost_is_applied_once(
    bench: Bench, far: SqlStore, proxy: CuttingProxy, when: When
) -> None:
    """The outcome is `Applied` at the next revision with the woken runs, its rows are there once, and the next commit fits."""
    parent = await bench.start()
    head = await bench.start()
    change = change_from(head, messages=(message(0),), wakes=(parent.rid,))
    lost = cut(proxy, change.commit_id.hex, when)
    outcome = await far.commit(change)
    lost.wait()
    assert isinstance(outcome, Applied)
    assert outcome.revision == 1
    assert [bell.run_id for bell in outcome.woken] == [parent.run_id]
    loaded = await bench.store.load(head.scope, head.run_id)
    assert loaded is not None
    assert (loaded.head.revision, len(loaded.messages)) == (1, 1)
    assert (await bench.again(parent)).wake_seq == 1
    after = await far.commit(change_from(loaded.head, messages=(message(1),)))
    assert isinstance(after, Applied)


async def test_a_run_whose_creation_got_lost_is_created_once(
    bench: Bench, far: SqlStore, proxy: CuttingProxy, when: When
) -> None:
    """The creator is told that it created the run; a second producer is told that it was there."""
    run = bench.run(idempotency_key="once")
    lost = cut(proxy, run.rid.hex, when)
    created = await far.create(run)
    lost.wait()
    assert (created.created, created.rid) == (True, run.rid)
    again = await far.create(bench.run(idempotency_key="once"))
    assert (again.created, again.rid) == (False, run.rid)


async def test_a_note_whose_answer_got_lost_is_left_once(bench: Bench, far: SqlStore, proxy: CuttingProxy, when: When) -> None:
    """The run hears the message once, at the place that its writer is told."""
    head = await bench.start()
    lost = cut(proxy, "said once", when)
    noted = await far.add_note(head.scope, head.run_id, "message", '"said once"')
    lost.wait()
    assert noted is not None
    loaded = await bench.store.load(head.scope, head.run_id)
    assert loaded is not None
    assert [(note.seq, note.body) for note in loaded.notes] == [(noted.seq, '"said once"')]


async def test_an_answer_whose_answer_got_lost_is_stored_once(
    bench: Bench, far: SqlStore, proxy: CuttingProxy, when: When
) -> None:
    """Whoever answered is told so, with the bell, and is not told that somebody else was faster."""
    head = await bench.suspended(await bench.start(), item("a"))
    lost = cut(proxy, "yes, by me", when)
    answered = await far.answer_item(head.scope, head.run_id, "a", '"yes, by me"')
    lost.wait()
    assert answered is not None
    assert (answered.stored, answered.open_items, answered.winner) == (True, 0, None)
    assert answered.bell is not None
    assert answered.bell.run_id == head.run_id
    assert (await bench.again(head)).open_items == 0


async def test_a_database_that_stays_away_leaves_the_outcome_unknown(
    bench: Bench, proxy: CuttingProxy, migrated_postgres_dsn: str, when: When
) -> None:
    """A typed error within the store's patience; the same change, offered again later, is applied once."""
    head = await bench.start()
    dialect = GoesAway(proxy.postgres_url(migrated_postgres_dsn), proxy)
    change = change_from(head, messages=(message(0),))
    lost = cut(proxy, change.commit_id.hex, when)
    with pytest.raises(StoreUnavailableError, match="offered again"):
        await SqlStore(dialect, patience_ms=300).commit(change)
    lost.wait()
    assert (await bench.again(head)).revision == (1 if when == "after" else 0)
    proxy.accept()
    outcome = await SqlStore(dialect).commit(change)
    assert isinstance(outcome, Applied)
    assert (await bench.again(head)).revision == 1
    await dialect.close()
