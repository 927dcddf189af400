"""Live parts over a real Valkey: what is put comes, once, in order, or readers are told that it does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest
import redis

from deuz_workers.core.live import LivePart, encode_parts
from deuz_workers.embedded import EmbeddedRedis
from deuz_workers.engine.system_clock import SystemClock
from deuz_workers.live import redis as over_redis
from deuz_workers.live.redis import MAX_ENTRY_CHARS, MOST_CHARS, RedisLive
from deuz_workers.live.tail import RedisTails

STREAM = "deuz:live:run:default/r"


def text(n: int | str, step: int = 1) -> LivePart:
    return LivePart("text", step, step, {"text": f"{n} "})


class Reader:
    """Keeps what comes, and waits for it."""

    def __init__(self) -> None:
        self.parts: list[LivePart] = []
        self._more = asyncio.Event()

    def __call__(self, parts: Sequence[LivePart]) -> None:
        self.parts.extend(parts)
        self._more.set()

    @property
    def text(self) -> str:
        return "".join(str(part.data["text"]) for part in self.parts if part.kind == "text")

    async def until(self, end: str) -> None:
        await self.until_true(lambda: self.text.endswith(end))

    async def until_true(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not is_true():
                self._more.clear()
                await self._more.wait()


@pytest.fixture
async def live(redis_url: str) -> AsyncGenerator[RedisLive]:
    made = RedisLive(redis_url, SystemClock())
    yield made
    await asyncio.to_thread(made.close)


def server(url: str) -> Any:
    return redis.Redis.from_url(url, decode_responses=True)


async def test_everything_that_is_put_after_subscribing_comes_in_few_entries(live: RedisLive, redis_url: str) -> None:
    """A thousand fragments at once are a handful of entries, and arrive whole and in order."""
    reader = Reader()
    subscription = await RedisTails(redis_url).subscribe("default", "r", reader)
    assert subscription.is_connected
    for n in range(1_000):
        live.put("default", "r", text(n))
    await reader.until("999 ")
    assert reader.text == "".join(f"{n} " for n in range(1_000))
    with server(redis_url) as client:
        assert client.xlen(STREAM) <= 5
    await subscription.close()


async def test_what_nobody_reads_does_not_leave_the_process(live: RedisLive, redis_url: str) -> None:
    """No stream is made, and what was put before a reader came stays unread."""
    live.put("default", "r", text("early"))
    await asyncio.to_thread(live.close)
    with server(redis_url) as client:
        assert client.keys("*") == []
    reader = Reader()
    subscription = await RedisTails(redis_url).subscribe("default", "r", reader)
    live.put("default", "r", text("late"))
    await reader.until("late ")
    assert reader.text == "late "
    await subscription.close()


async def test_a_stream_is_capped_and_expires(live: RedisLive, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the newest entries, and is gone a minute after the last, as is the wish to read after its reader."""
    monkeypatch.setattr(over_redis, "MOST_ENTRIES", 3)
    reader = Reader()
    subscription = await RedisTails(redis_url).subscribe("default", "r", reader)
    for n in range(6):
        live.put("default", "r", text(n))
        await reader.until(f"{n} ")
    with server(redis_url) as client:
        assert client.xlen(STREAM) == 3
        assert 0 < client.pttl(STREAM) <= over_redis.KEEP_MS
        assert client.pttl("deuz:live-wish:run:default/r") > 0
    await subscription.close()


async def test_many_runs_are_read_over_one_connection(live: RedisLive, redis_url: str) -> None:
    """A reader who comes while another waits for news is served at once; each gets its own run's parts, and both of one run."""
    tails = RedisTails(redis_url)
    first, twin, second = Reader(), Reader(), Reader()
    subscriptions = [await tails.subscribe("default", "r", first), await tails.subscribe("default", "r", twin)]
    subscriptions.append(await tails.subscribe("default", "s", second))
    live.put("default", "s", text("s"))
    live.put("default", "r", text("r"))
    await asyncio.gather(first.until("r "), twin.until("r "), second.until("s "))
    assert (first.text, twin.text, second.text) == ("r ", "r ", "s ")
    with server(redis_url) as client:
        assert sum("xread" in entry["cmd"] for entry in client.client_list()) == 1
    for subscription in subscriptions:
        await subscription.close()
    with server(redis_url) as client:
        assert sum("xread" in entry["cmd"] for entry in client.client_list()) == 0


async def test_a_subscription_that_is_given_up_while_it_is_made_leaves_nothing(redis_url: str) -> None:
    """Nobody has it, so nobody can close it: no connection reads on, and executors are not told any more that somebody does."""
    tails, tasks = RedisTails(redis_url), asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await tails.subscribe("default", "r", Reader())
    assert asyncio.all_tasks() == tasks


async def test_a_subscription_that_is_closed_twice_leaves_the_next_one_alone(live: RedisLive, redis_url: str) -> None:
    """The second reader of the run is told what comes."""
    tails, reader = RedisTails(redis_url), Reader()
    first = await tails.subscribe("default", "r", Reader())
    await first.close()
    second = await tails.subscribe("default", "r", reader)
    await first.close()
    live.put("default", "r", text("on"))
    await reader.until("on ")
    await second.close()


async def test_entries_of_others_are_lost_and_end_no_read(live: RedisLive, redis_url: str) -> None:
    """What is no text, or lacks what its kind is shown with; other runs of the connection go on, and so does this one."""
    tails, reader, other = RedisTails(redis_url), Reader(), Reader()
    subscriptions = [await tails.subscribe("default", "r", reader), await tails.subscribe("default", "s", other)]
    with server(redis_url) as client:
        for written in (
            b"\xff\xfe",
            '["text",1,1,{}]',
            '["tool",1,1,{"call_id":5,"tool":"t"}]',
            '["warning",1,1,{"setting":"s"}]',
        ):
            client.xadd(STREAM, {"0": written})
    await reader.until_true(lambda: len(reader.parts) == 4)
    assert {part.kind for part in reader.parts} == {"lost"}
    live.put("default", "r", text("on"))
    live.put("default", "s", text("too"))
    await asyncio.gather(reader.until("on "), other.until("too "))
    for subscription in subscriptions:
        await subscription.close()


async def test_a_key_of_another_type_silences_its_own_run_and_no_other(
    live: RedisLive, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One run's key holds a text before anybody reads it, another's becomes one while it is read: the third is read on, on
    the same loop and from the same process. A key that is a stream again is read again."""
    client = server(redis_url)
    client.set(STREAM, "of somebody else")
    client.persist(STREAM)
    tails = RedisTails(redis_url)
    readers = {name: Reader() for name in "rst"}
    subscriptions = {name: await tails.subscribe("default", name, reader) for name, reader in readers.items()}
    assert [subscriptions[name].is_connected for name in "rst"] == [False, True, True]
    for name in "rst":
        live.put("default", name, text(1))
    await readers["s"].until("1 ")
    await readers["t"].until("1 ")
    client.set("deuz:live:run:default/t", "of somebody else")
    for number in range(2, 5):
        for name in "rst":
            live.put("default", name, text(number))
        await readers["s"].until(f"{number} ")
    assert readers["s"].text == "1 2 3 4 "
    assert caplog.text.count("live_odd_key run=r") == 2  # by the writer, and by the reading side
    assert "live_unreachable" not in caplog.text
    assert "live_unread" not in caplog.text
    client.delete(STREAM)
    again = Reader()
    subscriptions["again"] = await tails.subscribe("default", "r", again)
    assert subscriptions["again"].is_connected
    live.put("default", "r", text(5))
    await readers["r"].until("5 ")
    await again.until("5 ")
    for subscription in subscriptions.values():
        await subscription.close()
    client.close()


async def test_reading_a_lot_says_the_wish_to_read_no_more_often(redis_url: str) -> None:
    """Once a second, not with every entry: a gateway reads hundreds a second."""
    reader = Reader()
    subscription = await RedisTails(redis_url).subscribe("default", "r", reader)
    with server(redis_url) as client:
        client.config_resetstat()
        for n in range(200):
            [written] = encode_parts([text(n)], max_value_bytes=1_000)
            client.xadd(STREAM, {"0": written})
            await reader.until(f"{n} ")
        assert client.info("commandstats").get("cmdstat_set", {"calls": 0})["calls"] < 50
    await subscription.close()


async def test_what_is_too_large_for_one_entry_comes_in_several(live: RedisLive, redis_url: str) -> None:
    """Long texts are cut into parts; a large raw result is left to its receipt."""
    reader = Reader()
    subscription = await RedisTails(redis_url).subscribe("default", "r", reader)
    long = "x" * (MAX_ENTRY_CHARS * 3)
    live.put(
        "default",
        "r",
        LivePart("text", 1, 1, {"text": long}),
        LivePart("tool", 1, 2, {"call_id": "c", "tool": "t", "value": "y" * 20_000}),
        LivePart("tool", 1, 2, {"call_id": "d", "tool": "t", "value": [1]}),
        text("end"),
    )
    await reader.until("end ")
    assert reader.text == f"{long}end "
    assert [part.data for part in reader.parts if part.kind == "tool"] == [
        {"call_id": "c", "tool": "t", "elsewhere": True},
        {"call_id": "d", "tool": "t", "value": [1]},
    ]
    with server(redis_url) as client:
        sizes = [sum(map(len, fields.values())) for _, fields in client.xrange(STREAM)]
    assert len(sizes) > 1
    assert max(sizes) < MAX_ENTRY_CHARS * 1.5
    await subscription.close()


async def test_a_writer_that_writes_more_than_fits_drops_and_says_how_much(
    live: RedisLive, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The buffer of a run is bounded; what does not fit is counted, in the log and for the reader, without content."""
    reader = Reader()
    subscription = await RedisTails(redis_url).subscribe("default", "r", reader)
    many = [LivePart("text", 1, 1, {"text": "secret" * 10_000})] * 40
    live.put("default", "r", *many)
    await reader.until_true(lambda: any(part.kind == "dropped" for part in reader.parts))
    dropped = next(part for part in reader.parts if part.kind == "dropped")
    assert dropped.data["count"] == 40 - MOST_CHARS // (60_000 + over_redis.PART_CHARS)
    assert "live_overflow run=r" in caplog.text
    assert "secret" not in caplog.text
    await subscription.close()


async def test_after_a_flush_reading_goes_on(live: RedisLive, redis_url: str) -> None:
    """The wish to read is said again within a second, and the newer entries are found."""
    reader = Reader()
    subscription = await RedisTails(redis_url).subscribe("default", "r", reader)
    live.put("default", "r", text("one"))
    await reader.until("one ")
    with server(redis_url) as client:
        client.flushall()
    async with asyncio.timeout(30):
        while not reader.text.endswith("two "):
            live.put("default", "r", text("two"))
            await asyncio.sleep(0.05)
    await subscription.close()


async def test_a_server_that_is_away_costs_parts_and_nothing_else(
    private_redis: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    """Putting never raises or waits; each side says so once, and both go on when it is back."""
    caplog.set_level(logging.WARNING)
    live, tails = RedisLive(private_redis.url, SystemClock()), RedisTails(private_redis.url)
    reader = Reader()
    subscription = await tails.subscribe("default", "r", reader)
    live.put("default", "r", text("one"))
    await reader.until("one ")
    private_redis.kill()
    async with asyncio.timeout(30):
        while subscription.is_connected or "live_unreachable" not in caplog.text:
            live.put("default", "r", text("secret"))
            await asyncio.sleep(0.01)
    private_redis.start()
    async with asyncio.timeout(30):
        while not reader.text.endswith("two "):
            live.put("default", "r", text("two"))
            await asyncio.sleep(0.05)
    assert subscription.is_connected
    assert (caplog.text.count("live_unreachable"), caplog.text.count("live_unread "), caplog.text.count("live_back")) == (
        1,
        1,
        1,
    )
    assert "secret" not in caplog.text
    await subscription.close()
    await asyncio.to_thread(live.close)


async def test_a_reader_of_a_server_that_is_away_waits_a_moment_and_goes_on(private_redis: EmbeddedRedis) -> None:
    """It is not connected, and can be closed."""
    private_redis.kill()
    subscription = await RedisTails(private_redis.url).subscribe("default", "r", Reader())
    assert not subscription.is_connected
    await subscription.close()
    private_redis.start()


def test_urls_with_passwords_are_in_no_repr() -> None:
    """Of neither side."""
    url = "redis://:hunter2@host:6379/0"
    assert "hunter2" not in f"{RedisLive(url, SystemClock())!r} {RedisTails(url)!r}"
