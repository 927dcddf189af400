"""Announcements of builds, on a real server."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable

import pytest
import redis

from deuz_workers.core.build import Build, build_of, member, shared_queue
from deuz_workers.leases import builds as module
from deuz_workers.leases.builds import RedisBuilds

OLD = build_of({"clerk": {"binding_id": "1"}, "veteran": {}}, ["join"])
NEW = build_of({"clerk": {"binding_id": "2"}}, ["join"])
LONG_MS = 60_000
Process = Callable[[Build, str], RedisBuilds]


@pytest.fixture
async def process(redis_url: str) -> AsyncGenerator[Process]:
    """Makes processes of a build by name."""
    made: list[RedisBuilds] = []

    def make(build: Build, name: str) -> RedisBuilds:
        made.append(RedisBuilds(redis_url, build, name))
        return made[-1]

    yield make
    for one in made:
        await one.close()


def test_a_build_is_what_it_can_run() -> None:
    """The same agents with the same bindings, in any order, and the same reducers."""
    assert build_of({"a": {"x": 1}, "b": {}}, ["c", "d"]) == build_of({"b": {}, "a": {"x": 1}}, ["d", "c"])
    assert build_of({"a": {"x": 1}}, []).name != build_of({"a": {"x": 2}}, []).name
    assert OLD.queue("default") == f"default@{OLD.name}"
    assert shared_queue(OLD.queue("default.quarantine")) == "default.quarantine"
    assert shared_queue("default") == "default"


async def test_what_a_living_process_announced_is_found(process: Process) -> None:
    """By agent alone and under its own binding, at the queues that it takes from, and by other builds only."""
    old, new = process(OLD, "o"), process(NEW, "n")
    assert await old.announce(["default", "slow"], LONG_MS)
    assert await new.announce(["default"], LONG_MS)
    bound = member("clerk", {"binding_id": "1"})
    assert await new.find("default", bound) == OLD.queue("default")
    assert await new.find("slow", bound) == OLD.queue("slow")
    assert await new.find("default", member("veteran")) == OLD.queue("default")
    assert await new.find("default", member("clerk", {"binding_id": "3"})) is None
    assert await new.find("elsewhere", bound) is None
    assert await old.find("default", bound) is None


async def test_a_build_is_there_while_one_of_its_processes_is(process: Process) -> None:
    """One that leaves takes nothing away from the others; only the first that comes is told so."""
    first, second, new = process(OLD, "1"), process(OLD, "2"), process(NEW, "n")
    assert [await one.announce(["default"], LONG_MS) for one in (first, second, first)] == [True, False, False]
    await first.withdraw(["default"])
    assert await new.find("default", member("veteran")) == OLD.queue("default")
    await second.withdraw(["default"])
    assert await new.find("default", member("veteran")) is None
    assert await second.announce(["default"], LONG_MS)


async def test_of_several_builds_that_can_a_living_one_is_found(process: Process) -> None:
    """Whoever announced it last, if that one is gone."""
    old, new, other = process(OLD, "o"), process(NEW, "n"), process(build_of({}, ["another"]), "x")
    await new.announce(["default"], LONG_MS)
    await old.announce(["default"], LONG_MS)
    await old.withdraw(["default"])
    assert await other.find("default", member("join")) == NEW.queue("default")


async def test_an_announcement_lapses(process: Process) -> None:
    """A process that died is forgotten by the server's clock, and leaves nothing but the name of its queue."""
    old, new = process(OLD, "o"), process(NEW, "n")
    await old.announce(["default"], 1)
    while await new.find("default", member("veteran")) is not None:
        pass
    assert await old.announce(["default"], LONG_MS)


async def test_queues_that_a_build_left_are_told_once(
    process: Process, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before they were left alone for a while, and never those of a living one."""
    old, new = process(OLD, "o"), process(NEW, "n")
    await old.announce(["default"], 1)
    await new.announce(["default"], LONG_MS)
    assert await new.forgotten() == []
    monkeypatch.setattr(module, "KEEP_MS", 0)
    found: list[str] = []
    while not found:
        found = await new.forgotten()
    assert found == [OLD.queue("default")]
    assert await new.forgotten() == []
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        assert client.zrange("deuz:builds", 0, -1) == [NEW.queue("default")]


async def test_a_server_that_is_away_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is raised, nothing is found, and the log has no address."""
    caplog.set_level(logging.WARNING)
    away = RedisBuilds("redis://:hunter2@127.0.0.1:1/0", OLD, "o")
    assert not await away.announce(["default"], LONG_MS)
    assert await away.find("default", member("clerk")) is None
    assert await away.forgotten() == []
    await away.withdraw(["default"])
    await away.close()
    assert [record.getMessage() for record in caplog.records] == ["builds_unreachable error=ConnectionError"]
