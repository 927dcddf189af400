"""The order of locks, statement by statement: while one waits for a row, it has none of the rows that come later.

A CTE is read only as far as somebody asks for its rows, so a lock that is taken in one is taken late unless all of it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import psycopg
import pytest

from deuz_workers.core.change import Applied
from deuz_workers.ports.store import Cascade
from deuz_workers.testing.store_conformance_bench import Bench, SwarmBench
from tests.store.sessions import Sessions

HEAD, TASK, SWARM = (
    "select 1 from run_head where rid = %s for no key update",
    "select 1 from swarm_task where run_rid = %s for no key update",
    "select 1 from swarm where rid = %s for no key update",
)


async def waits(sessions: Sessions, held: tuple[str, Any], act: Callable[[], Awaitable[Any]], later: tuple[str, Any]) -> Any:
    """What `act` returns, which waited for the row `held` and had not locked the row `later` meanwhile."""
    async with (
        await psycopg.AsyncConnection.connect(sessions.url) as holder,
        await psycopg.AsyncConnection.connect(sessions.url, autocommit=True) as watcher,
    ):
        await holder.execute(cast(Any, held[0]), held[1])
        acting = asyncio.ensure_future(act())
        try:
            await sessions.until_somebody_waits(watcher, acting)
            await watcher.execute(cast(Any, f"{later[0]} nowait"), (later[1],))
        finally:
            await holder.rollback()
            outcome = await acting
        return outcome


async def started(bench: Bench, edges: dict[str, list[str]], *tasks: str) -> SwarmBench:
    swarm = await bench.swarm(edges, slots=len(tasks))
    assert sorted(await swarm.fill()) == sorted(tasks)
    return swarm


@pytest.mark.parametrize("dependent", ["a", "z"])
async def test_an_ending_locks_all_its_tasks_before_the_swarm(bench: Bench, sessions: Sessions, dependent: str) -> None:
    """Those behind its own, too; else two endings of the same dependents wait for each other."""
    swarm = await started(bench, {"m": [], dependent: ["m"]}, "m")
    held = (TASK, (swarm.runs[dependent].rid,))
    change = await swarm.change("m", "completed", "completed")
    outcome = await waits(sessions, held, lambda: bench.store.commit(change), (SWARM, swarm.rid))
    assert isinstance(outcome, Applied)
    assert await swarm.statuses() == {"m": "completed", dependent: "ready"}


@pytest.mark.parametrize("task", ["m", "n", "o", "p"])
async def test_an_ending_locks_all_heads_before_its_task(bench: Bench, sessions: Sessions, task: str) -> None:
    """That of the swarm, which a failure wakes, stands before or behind its own."""
    swarm = await started(bench, {name: [] for name in "mnop"}, *"mnop")
    change = await swarm.change(task, "failed", "failed")
    later = (TASK, swarm.runs[task].rid)
    outcome = await waits(sessions, (HEAD, (swarm.rid,)), lambda: bench.store.commit(change), later)
    assert isinstance(outcome, Applied)


@pytest.mark.parametrize("held", ["b", "c", "d"])
async def test_blocking_locks_all_its_tasks_before_the_swarm(bench: Bench, sessions: Sessions, held: str) -> None:
    """Whichever of them it waits for."""
    swarm = await started(bench, {"a": [], **{name: ["a"] for name in "bcd"}}, "a")
    await swarm.end("a", "failed")
    place = (TASK, (swarm.runs[held].rid,))
    outcome = await waits(sessions, place, lambda: bench.store.block_downstream(swarm.rid, 10), (SWARM, swarm.rid))
    assert isinstance(outcome, Cascade)
    assert set((await swarm.statuses()).values()) == {"failed", "blocked"}


@pytest.mark.parametrize("held", ["a", "b", "c"])
async def test_cancelling_locks_all_its_tasks_before_the_swarm(bench: Bench, sessions: Sessions, held: str) -> None:
    """Whichever of them it waits for."""
    swarm = await bench.swarm({name: [] for name in "abc"})
    place = (TASK, (swarm.runs[held].rid,))
    outcome = await waits(sessions, place, lambda: bench.store.cancel_tasks(swarm.rid, 10), (SWARM, swarm.rid))
    assert isinstance(outcome, Cascade)
    assert set((await swarm.statuses()).values()) == {"cancelled"}
