"""The window of a queue at a real broker: it is looked at and added to in one act, whoever comes at the same moment."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from deuz_workers.app.bell import BrokerBell, broker_queue
from deuz_workers.app.broker_connection import WINDOW_OPTION, SteadyChannel, SteadyConnection, window_key
from deuz_workers.core.change import Bell
from deuz_workers.core.marks import Marks
from deuz_workers.core.window import open_places
from deuz_workers.engine.system_clock import SystemClock, SystemIds

WINDOW = 8
PRODUCERS, TAKERS, EACH = 3, 2, 150
NAME = broker_queue("default")
LISTS = [NAME + suffix for suffix in ("", "\x06\x163", "\x06\x166", "\x06\x169")]


def bell_at(url: str, window: int = WINDOW) -> BrokerBell:
    return BrokerBell(url, SystemIds(), SystemClock(), Marks(None, "bell"), window)


def bells(count: int, queue: str = "default", priority: int = 0) -> list[Bell]:
    return [Bell("a", f"r{number}", queue, priority=priority) for number in range(count)]


def waiting(client: redis.Redis) -> int:
    """Doorbells in the lists of all priorities, at one moment."""
    with client.pipeline(transaction=True) as pipe:
        for name in LISTS:
            pipe.llen(name)
        return sum(pipe.execute())


def produce(url: str, number: int) -> None:
    """Offer doorbells of every priority until all were taken; some as the sweep does."""

    async def offer() -> None:
        bell = bell_at(url)
        left = [Bell("a", f"{number}-{at}", "default", priority=at % 3 - 1) for at in range(EACH)]
        while left:
            left = [*await bell.offer(left[:5], spare=number == 0), *left[5:]]
        bell.close()

    asyncio.run(offer())


@contextmanager
def watched(url: str) -> Generator[list[int]]:
    """How long the queue is, looked at all the time."""
    over, seen = threading.Event(), [0]

    def watch() -> None:
        with redis.Redis.from_url(url) as client:
            while not over.is_set():
                seen.append(waiting(client))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def take(url: str, names: list[str], over: threading.Event) -> None:
    with redis.Redis.from_url(url) as client:
        while not over.is_set():
            message: Any = client.lmpop(len(LISTS), *LISTS, direction="RIGHT")
            if message:
                names.append(json.loads(message[1][0])["headers"]["id"])


def test_a_queue_is_never_longer_than_its_window(redis_url: str, broker_url: str) -> None:
    """Processes offer more than there is room for while others take: none is too many, none is lost, none comes twice."""
    names: list[str] = []
    over = threading.Event()
    takers = [threading.Thread(target=take, args=(redis_url, names, over)) for _ in range(TAKERS)]
    context = multiprocessing.get_context("spawn")
    producers = [context.Process(target=produce, args=(broker_url, number)) for number in range(PRODUCERS)]
    with watched(redis_url) as seen:
        for producer in producers:
            producer.start()
        with redis.Redis.from_url(redis_url) as client:
            until = time.monotonic() + 60
            while waiting(client) < WINDOW:
                assert time.monotonic() < until
            for taker in takers:
                taker.start()
            for producer in producers:
                producer.join()
            until = time.monotonic() + 20
            while waiting(client):
                assert time.monotonic() < until
            over.set()
            for taker in takers:
                taker.join()
            most = int(client.hget(window_key(NAME), "most") or 0)
    assert len(names) == len(set(names)) == PRODUCERS * EACH
    assert max(seen) <= most == WINDOW


def test_the_broker_counts_places_as_the_rule_does(broker_url: str, redis_url: str) -> None:
    """Of windows of every size: who comes like everybody gets the open places, the sweep the others."""
    with SteadyConnection(broker_url) as connection:
        channel: Any = connection.channel()
        assert isinstance(channel, SteadyChannel)
        for size in (*range(1, 70), 500):
            messages = [(1, "x")] * (size + 3)
            assert channel.push(f"q{size}", messages, size, spare=False)[0] == open_places(size)
            assert channel.push(f"q{size}", messages, size, spare=True)[0] == size - open_places(size)
            look = channel.look(f"q{size}", size, None, 0)
            assert (look.waiting, look.size, look.room, look.spare) == (size, size, 0, 0)


async def test_a_window_is_the_same_for_everybody_and_not_below_what_waits(broker_url: str) -> None:
    """One process lets it grow, another one finds it grown; it goes back with the queue."""
    sweeping, other = bell_at(broker_url), bell_at(broker_url)
    look = await sweeping.look("default", size=40)
    assert look is not None
    assert look.size == 40
    assert len(await other.offer(bells(50))) == 50 - open_places(40)
    for size in (1, 20):
        look = await sweeping.look("default", size=size)
        assert look is not None
        assert (look.size, look.waiting) == (30, 30)
    assert await other.offer(bells(1), spare=True)
    await other.discard_queue("default")
    look = await other.look("default")
    assert look is not None
    assert (look.size, look.waiting) == (WINDOW, 0)
    for bell in (sweeping, other):
        bell.close()


async def test_one_process_at_a_time_is_told_to_feed(broker_url: str) -> None:
    """Once in so long, and not where there is no room."""
    one, other = bell_at(broker_url), bell_at(broker_url)
    looks = [await bell.look("default", apart_ms=60_000) for bell in (one, other, one)]
    assert [look is not None and look.may_feed for look in looks] == [True, False, False]
    await one.offer(bells(WINDOW, "full"), spare=True)
    look = await one.look("full", apart_ms=60_000)
    assert look is not None
    assert not look.may_feed
    one.close()
    other.close()


async def test_a_doorbell_that_a_worker_gives_back_needs_a_place(
    broker_url: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As after the death of a prefork child: it is back if there is room, else it is dropped, which costs a look."""
    bell = bell_at(broker_url)
    await bell.offer(bells(3))
    options = {"ack_emulation": False, WINDOW_OPTION: WINDOW}
    with SteadyConnection(broker_url, transport_options=options) as connection, redis.Redis.from_url(redis_url) as client:
        queue = connection.SimpleQueue(NAME)
        messages = [queue.get(timeout=5), queue.get(timeout=5)]
        messages[0].requeue()
        assert waiting(client) == 2
        await bell.offer(bells(WINDOW), spare=True)
        with caplog.at_level(logging.WARNING):
            messages[1].requeue()
        assert waiting(client) == WINDOW
        queue.close()
    assert [record.getMessage() for record in caplog.records] == [f"bell_dropped queue={NAME}"]
    bell.close()


async def test_what_others_put_into_a_queue_leaves_less_room(broker_url: str, redis_url: str) -> None:
    """A message that is no doorbell is let in, whatever the window says, since nobody could put it there again."""
    bell = bell_at(broker_url)
    with SteadyConnection(broker_url, transport_options={"ack_emulation": False, WINDOW_OPTION: 1}) as connection:
        producer = connection.Producer()
        for _ in range(3):
            producer.publish({}, exchange="", routing_key=NAME, headers={"task": "deuz.enqueue"}, serializer="json")
    assert len(await bell.offer(bells(WINDOW))) == WINDOW - open_places(WINDOW) + 3
    bell.close()


async def test_a_broker_without_scripts_is_asked_first(redis_url: str, broker_url: str) -> None:
    """A user that may not run them, and a transport that is no Redis: one that asks alone keeps to the window."""
    with redis.Redis.from_url(redis_url) as client:
        client.execute_command("ACL", "SETUSER", "plain", "on", ">secret", "~*", "&*", "+@all", "-@scripting")
        scheme, _, rest = broker_url.partition("://")
        try:
            for url in (f"{scheme}://plain:secret@{rest.rpartition('@')[2]}", "memory://"):
                bell = bell_at(url)
                left = await bell.offer(bells(WINDOW + 1))
                assert len(left) == 1 + WINDOW - open_places(WINDOW)
                assert not await bell.has_room("default")
                assert await bell.offer(left, spare=True) == left[2:]
                look = await bell.look("default", size=100)
                assert look is not None
                assert (look.waiting, look.size) == (WINDOW, WINDOW)
                await bell.discard_queue("default")
                bell.close()
        finally:
            client.execute_command("ACL", "DELUSER", "plain")
