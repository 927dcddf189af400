"""The doorbell: what a message at the broker says, and what happens without a broker."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from deuz_workers.app.bell import BrokerBell, SilentBell, bell_of, broker_queue, local_queue
from deuz_workers.app.broker_connection import SteadyChannel, SteadyConnection
from deuz_workers.app.doorbell import AppDoorbell
from deuz_workers.app.settings import Settings
from deuz_workers.core.change import Bell
from deuz_workers.core.marks import Marks
from deuz_workers.engine.system_clock import SystemClock, SystemIds
from deuz_workers.workers.celery_app import make_celery
from tests.fake_clock import FakeClock
from tests.forked import holds_in_child

BELL = Bell("acme", "r1", "slow", revision=3, agent="x")


def messages(url: str, queue: str) -> list[dict[str, object]]:
    """What waits in a queue, in the lists of all its priorities."""
    with redis.Redis.from_url(url) as client:
        lists = client.scan_iter(f"{broker_queue(queue)}*")
        return [json.loads(message) for key in lists for message in client.lrange(key, 0, -1)]


async def test_a_message_says_which_run_to_look_at_and_nothing_else(redis_url: str, broker_url: str) -> None:
    """Celery's protocol, version 2: the task `deuz.step` with scope, run id and revision on the bell's own queue."""
    bell = BrokerBell(broker_url, SystemIds(), SystemClock(), Marks(None, "bell"))
    await bell.offer([BELL, Bell("acme", "r2", "fast")])
    bell.close()
    [message] = messages(redis_url, "slow")
    assert json.loads(base64.b64decode(str(message["body"])))[:2] == [["acme", "r1", 3], {}]
    headers = message["headers"]
    assert isinstance(headers, dict)
    assert (headers["task"], headers["ignore_result"], headers["argsrepr"]) == ("deuz.step", True, "(...)")
    assert len(messages(redis_url, "fast")) == 1


async def test_a_broker_that_is_away_is_counted_and_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The first loss is logged at once, later ones together and not each; no URL is in the log, and few attempts are made."""
    clock = FakeClock()
    bell = BrokerBell("redis://:hunter2@127.0.0.1:1/0", SystemIds(), clock, Marks(None, "bell"))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await bell.offer([BELL])
        clock.advance(60_000)
        await bell.offer([BELL])
    bell.close()
    assert [record.getMessage() for record in caplog.records] == [
        "bell_lost count=1 error=OperationalError",
        "bell_lost count=3 error=OperationalError",
    ]


async def test_a_restarted_broker_is_rung_over_a_new_connection(redis_url: str, broker_url: str) -> None:
    """A connection that the server closed in between loses nothing."""
    bell = BrokerBell(broker_url, SystemIds(), SystemClock(), Marks(None, "bell"))
    await bell.offer([BELL])
    with redis.Redis.from_url(redis_url) as client:
        client.client_kill_filter(_type="normal", skipme=True)
    await bell.offer([BELL])
    bell.close()
    assert len(messages(redis_url, "slow")) == 2


def test_a_forked_child_rings_over_its_own_connection(redis_url: str, broker_url: str) -> None:
    """Neither thread nor connection of the parent is used there."""
    bell = BrokerBell(broker_url, SystemIds(), SystemClock(), Marks(None, "bell"))

    def ring() -> bool:
        asyncio.run(bell.offer([BELL]))
        return True

    assert ring()
    assert holds_in_child(ring)
    assert ring()
    bell.close()
    assert len(messages(redis_url, "slow")) == 3


def test_without_a_broker_nobody_is_rung() -> None:
    """And queues have the same names on both sides of the prefix."""
    assert isinstance(bell_of(None, SystemIds(), Marks(None, "bell"), 1), SilentBell)
    assert local_queue(broker_queue("slow")) == "slow"


async def test_a_broker_that_is_away_leaves_everything_to_the_sweep() -> None:
    """Its queues have no room, and what was offered comes back."""
    bell = BrokerBell("redis://127.0.0.1:1/0", SystemIds(), FakeClock(), Marks(None, "bell"))
    assert await bell.offer([BELL]) == (BELL,)
    assert not await bell.has_room(BELL.queue)
    bell.close()


async def test_drivers_of_the_process_hear_what_the_broker_hears() -> None:
    """As long as they are open, in any number."""

    class Ear(SilentBell):
        def __init__(self) -> None:
            self.heard: list[str] = []

        async def ring(self, bells: Sequence[Bell]) -> None:
            self.heard += [bell.run_id for bell in bells]

        async def offer(self, bells: Sequence[Bell], *, spare: bool = False) -> tuple[Bell, ...]:
            await self.ring(bells)
            return ()

    outer, first, second = Ear(), Ear(), Ear()
    bell = AppDoorbell(outer)
    bell.add(first)
    await bell.offer([Bell("s", "a", "q")])
    bell.add(second)
    bell.discard(first)
    await bell.offer([Bell("s", "b", "q")])
    assert (outer.heard, first.heard, second.heard) == (["a", "b"], ["a"], ["b"])


def test_one_client_publishes_until_its_connections_are_given_up(broker_url: str) -> None:
    """Making one per message costs more than sending it; one over a pool that was closed could send nothing."""
    with SteadyConnection(broker_url) as connection:
        channel: Any = connection.channel()
        with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
            assert first is second
        channel._disconnect_pools()
        with channel.conn_or_acquire() as third:
            assert third is not first
            assert third.ping()


def test_the_worker_publishes_its_events_in_the_same_way(broker_url: str) -> None:
    """Three events a step go over the application's own connections."""
    celery = make_celery(settings=Settings(broker_url=broker_url))
    with celery.connection_for_write() as connection:
        assert isinstance(connection.channel(), SteadyChannel)
