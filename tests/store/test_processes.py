"""Several processes on one store: one winner of every revision, nothing lost by a death, nobody starved."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from deuz_workers.errors import StoreUnavailableError
from deuz_workers.store import SqlStore, open_store
from deuz_workers.testing.store_conformance_bench import Bench, item, message
from tests.forked import holds_in_child

pytestmark = pytest.mark.processes


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A file that is not there yet."""
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture(params=["sqlite_url", "migrated_postgres_dsn"])
def url(request: pytest.FixtureRequest) -> str:
    """A store that processes share, of either dialect."""
    return request.getfixturevalue(request.param)


@pytest.fixture
async def bench(url: str) -> AsyncIterator[Bench]:
    """This process' own store there."""
    store = open_store(url)
    yield Bench(store)
    await store.close()


@pytest.fixture
async def file_bench(sqlite_url: str) -> AsyncIterator[Bench]:
    """This process' own store on a SQLite file."""
    store = open_store(sqlite_url)
    yield Bench(store)
    await store.close()


async def together(*commands: tuple[str, ...]) -> list[Any]:
    """Start one process per command, let all begin at once, and return what each said."""
    processes: list[Process] = []
    try:
        for command in commands:
            module = (sys.executable, "-m", "tests.store.store_process")
            processes.append(await asyncio.create_subprocess_exec(*module, *command, stdin=PIPE, stdout=PIPE))
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b'"ready"\n'
        spoken = await asyncio.gather(*(process.communicate(b"\n") for process in processes))
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.communicate()
    return [json.loads(out) for out, _ in spoken]


@pytest.mark.spec("DST-012", "CKP-009")
async def test_two_processes_commit_one_run(url: str, bench: Bench) -> None:
    """Of two processes that commit one run as fast as they can, exactly one makes each revision."""
    head = await bench.start()
    command = ("commit", url, bench.scope, head.run_id, "200")
    ours = await together(command, command)
    assert sorted(ours[0] + ours[1]) == list(range(1, 201))
    loaded = await bench.store.load(bench.scope, head.run_id)
    assert loaded is not None
    assert (loaded.head.revision, len(loaded.messages), loaded.head.journal_seq) == (200, 200, 200)


@pytest.mark.spec("DEF-351")
async def test_an_item_is_answered_by_one_of_many_processes(url: str, bench: Bench) -> None:
    """Four processes answer one item at once: one answer is stored and rings, and the others are told which."""
    head = await bench.suspended(await bench.start(), item("a", kind="deferral"))
    answers = await together(*[("answer", url, bench.scope, head.run_id, "a")] * 4)
    assert sorted(stored for stored, _, _ in answers) == [False, False, False, True]
    assert len({winner for _, winner, _ in answers}) == 1
    assert [rang for stored, _, rang in answers if stored] == [True]


@pytest.mark.spec("CKP-001")
async def test_what_was_committed_survives_the_death_of_its_process(url: str, bench: Bench) -> None:
    """A process that is killed right after a commit returned has lost nothing: who loads the run finds every part."""
    head = await bench.start(messages=(message(0, "first"),))
    assert await together(("die", url, bench.scope, head.run_id)) == [1]
    fresh = open_store(url)
    loaded = await fresh.load(bench.scope, head.run_id)
    assert loaded is not None
    assert (loaded.head.revision, [row.body for row in loaded.messages]) == (1, ["first", "last words"])
    assert [row.body for row in await fresh.journal(bench.scope, head.run_id, 0, 10)] == ["died"]
    await fresh.close()


async def test_no_writer_of_a_file_is_starved(sqlite_url: str, file_bench: Bench) -> None:
    """Eight processes that write to one file without a pause all get all their commits through; no wait was given up."""
    heads = [await file_bench.start() for _ in range(8)]
    applied = await together(*(("append", sqlite_url, file_bench.scope, head.run_id, "100") for head in heads))
    assert applied == [100] * 8
    assert [(await file_bench.again(head)).revision for head in heads] == [100] * 8


async def test_processes_make_a_file_together(sqlite_url: str) -> None:
    """Four processes that open a file which is not there bring its schema about once, and all can use it."""
    made = await together(*[("create", sqlite_url, str(place)) for place in range(4)])
    assert made == [True] * 4
    store = open_store(sqlite_url)
    assert [await store.head("scope", f"run-{place}") is not None for place in range(4)] == [True] * 4
    await store.close()


async def test_a_fork_uses_a_connection_of_its_own(file_bench: Bench) -> None:
    """A forked child and its parent use one store object, and see each other's commits."""
    head = await file_bench.start()

    async def commit() -> bool:
        await file_bench.applied(await file_bench.again(head), body="of the child")
        await file_bench.store.close()
        return True

    assert holds_in_child(lambda: asyncio.run(commit()))
    now = await file_bench.again(head)
    assert (now.revision, now.body) == (1, "of the child")
    await file_bench.applied(now)


async def test_a_memory_does_not_follow_a_fork() -> None:
    """A store in memory is refused in a child, with the way out, instead of being empty there."""
    store: SqlStore = open_store("sqlite://:memory:")
    store.patience_ms = 0
    head = await Bench(store).start()

    def refused() -> bool:
        with pytest.raises(StoreUnavailableError, match="use a file"):
            asyncio.run(store.head(head.scope, head.run_id))
        return True

    assert holds_in_child(refused)
    assert await store.head(head.scope, head.run_id) is not None
    await store.close()
