"""What only Redis can do to leases: restart, come back with a snapshot, lose answers, be unreachable, be forged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
import redis.asyncio

from deuz_workers.embedded import EmbeddedRedis
from deuz_workers.errors import ConfigurationError, LeaseStoreUnavailableError
from deuz_workers.leases import RedisLeases
from deuz_workers.leases.redis import client_url
from deuz_workers.ports.leases import Gone, Held, Lease, Released, Renewed, Young
from deuz_workers.testing.lease_conformance import KEY, LONG_MS, claim, lapsed, renew, renew_all
from tests.forked import holds_in_child
from tests.leases.benches import RedisBench, redis_bench
from tests.leases.cut_proxy import CutProxy

DAY_MS = 86_400_000
HASH = f"deuz:lease:{KEY}"
CANCEL = f"deuz:lease-cancel:{KEY}"


@pytest.fixture
async def bench(redis_url: str) -> AsyncGenerator[RedisBench]:
    async with redis_bench(redis_url) as bench:
        yield bench


@pytest.fixture
async def private(private_redis: EmbeddedRedis) -> AsyncGenerator[RedisBench]:
    async with redis_bench(private_redis.url) as bench:
        yield bench


async def snapshot(server: EmbeddedRedis) -> dict[bytes, bytes | None]:
    """Everything that the server holds, as it would save it."""
    async with redis.asyncio.Redis.from_url(server.url) as admin:
        return {name: await admin.dump(name) async for name in admin.scan_iter()}


async def restart_with(saved: dict[bytes, bytes | None], server: EmbeddedRedis) -> None:
    """The server restarts and holds what was saved, as after loading a snapshot."""
    server.restart()
    async with redis.asyncio.Redis.from_url(server.url) as admin:
        for name, value in saved.items():
            assert value is not None
            await admin.restore(name, 0, value)


async def test_a_restart_is_a_new_memory(private: RedisBench, private_redis: EmbeddedRedis) -> None:
    """After a restart the living holder re-creates its lease while nobody else is let in."""
    lease = await claim(private, "a")
    private_redis.restart()
    assert isinstance(await private.leases.acquire(KEY, "b", LONG_MS), Young)
    answer = renew(private, lease)
    assert isinstance(answer, Renewed)
    assert answer.lease.epoch != lease.epoch
    assert isinstance(await private.leases.acquire(KEY, "b", LONG_MS), Held)


async def test_a_snapshot_brings_no_old_epoch_back(private: RedisBench, private_redis: EmbeddedRedis) -> None:
    """The restored epoch names another run of the server: memory is young, and a restored lapsed lease proves nothing."""
    lease = await lapsed(private, "a")
    await restart_with(await snapshot(private_redis), private_redis)
    assert isinstance(await private.leases.acquire(KEY, "b", LONG_MS), Young)
    answer = renew(private, lease)
    assert isinstance(answer, Renewed)
    assert answer.lease.epoch != lease.epoch


async def test_a_later_grant_outlives_an_older_snapshot(private: RedisBench, private_redis: EmbeddedRedis) -> None:
    """The snapshot names the holder before the living one; the living one comes back, the one before it does not."""
    before = await claim(private, "a")
    saved = await snapshot(private_redis)
    await private.leases.release(before)
    living = await claim(private, "b")
    await restart_with(saved, private_redis)
    assert isinstance(await private.leases.acquire(KEY, "c", LONG_MS), Held)
    assert isinstance(renew(private, living), Renewed)
    assert renew(private, before) == Gone()
    held = await private.leases.acquire(KEY, "c", LONG_MS)
    assert isinstance(held, Held)
    assert held.owner == "b"


async def test_an_earlier_grant_yields_to_a_newer_snapshot(private: RedisBench, private_redis: EmbeddedRedis) -> None:
    """A holder that was superseded before the snapshot is gone, although memory is new."""
    superseded = await lapsed(private, "a")
    newer = await claim(private, "b")
    await restart_with(await snapshot(private_redis), private_redis)
    assert renew(private, superseded) == Gone()
    assert isinstance(renew(private, newer), Renewed)


async def test_a_forgotten_script_is_sent_again(bench: RedisBench) -> None:
    """A server that lost the script takes it along with the call, in both kinds of connection."""
    lease = await claim(bench, "a")
    await bench.admin.script_flush()
    assert isinstance(await bench.leases.acquire(KEY, "b", LONG_MS), Held)
    await bench.admin.script_flush()
    assert all(isinstance(answer, Renewed) for answer in renew_all(bench, [lease, lease]))


async def test_a_repeated_claim_is_answered_as_the_first(private: RedisBench, private_redis: EmbeddedRedis) -> None:
    """A claim whose answer got lost is sent again, and still learns that its predecessor lapsed."""
    with CutProxy(private_redis.socket) as proxy:
        await lapsed(private, "a")
        leases = RedisLeases(proxy.url)
        await leases.peek(KEY)
        proxy.swallow_next_answer()
        lease = await leases.acquire(KEY, "b", LONG_MS)
        assert isinstance(lease, Lease)
        assert (lease.predecessor, proxy.swallowed) == ("lapsed", 1)
        await leases.close()


async def test_a_release_with_a_lost_answer_counts_as_rung(private: RedisBench, private_redis: EmbeddedRedis) -> None:
    """The second release finds nothing and cannot know what the first one was told, so the holder rings once more."""
    with CutProxy(private_redis.socket) as proxy:
        leases = RedisLeases(proxy.url)
        lease = await leases.acquire(KEY, "a", LONG_MS, force=True)
        assert isinstance(lease, Lease)
        proxy.swallow_next_answer()
        assert await leases.release(lease) == Released(again=True)
        assert (await private.leases.peek(KEY)).ms_left is None
        assert await leases.release(lease) == Gone()
        await leases.close()


async def test_the_heartbeats_connection_does_not_send_again(private_redis: EmbeddedRedis) -> None:
    """A renewal without an answer is over at once; the next one works on a new connection."""
    with CutProxy(private_redis.socket) as proxy:
        leases = RedisLeases(proxy.url)
        lease = await leases.acquire(KEY, "a", LONG_MS, force=True)
        assert isinstance(lease, Lease)
        renewer = leases.renewer(timeout_ms=5_000)
        renewer.renew([lease])
        proxy.swallow_next_answer()
        with pytest.raises(LeaseStoreUnavailableError):
            renewer.renew([lease])
        answers = renewer.renew([lease])
        assert isinstance(answers[0], Renewed)
        renewer.close()
        await leases.close()


async def test_an_unreachable_server_is_unavailable(private: RedisBench, private_redis: EmbeddedRedis) -> None:
    """Every verb says that nothing is known; a release counts as rung, and a later call works."""
    lease = await claim(private, "a")
    private_redis.kill()
    for verb in (
        private.leases.acquire(KEY, "b", LONG_MS),
        private.leases.signal(KEY, "cancel"),
        private.leases.peek(KEY),
    ):
        with pytest.raises(LeaseStoreUnavailableError):
            await verb
    with pytest.raises(LeaseStoreUnavailableError):
        renew(private, lease)
    assert await private.leases.release(lease) == Released(again=True)
    private_redis.start()
    assert isinstance(await private.leases.acquire(KEY, "b", LONG_MS), Young)


async def test_errors_tell_no_secrets(bench: RedisBench, redis_url: str) -> None:
    """Neither password nor host, neither in an error nor in the provider's own text."""
    leases = RedisLeases("redis://worker:hunter2@127.0.0.1:1/0")
    with pytest.raises(LeaseStoreUnavailableError) as caught:
        await leases.peek(KEY)
    await leases.close()
    await bench.admin.set(HASH, "no hash")
    with pytest.raises(LeaseStoreUnavailableError, match="WRONGTYPE") as refused:
        await bench.leases.peek(KEY)
    for text in (str(caught.value), repr(caught.value.__cause__), str(refused.value), repr(leases)):
        assert "hunter2" not in text
        assert "127.0.0.1" not in text
        assert KEY not in text


@pytest.mark.spec("LSE-013")
async def test_nothing_accumulates(bench: RedisBench) -> None:
    """A released key leaves no trace, a lapsed one and a queued cancel are forgotten within a day."""
    await bench.leases.release(await claim(bench, "a"))
    assert sorted([name async for name in bench.admin.scan_iter()]) == ["deuz:lease-epoch", "deuz:lease-tokens"]
    await lapsed(bench, "b")
    await bench.leases.signal(KEY, "cancel")
    assert 0 < await bench.admin.pttl(HASH) <= DAY_MS
    assert 0 < await bench.admin.pttl(CANCEL) <= DAY_MS


async def test_a_forged_revision_is_not_believed(bench: RedisBench) -> None:
    """A revision in Redis counts only with the signature of the pool's key for this very lease."""
    await lapsed(bench, "a", revision=5)
    genuine = str(await bench.admin.hget(HASH, "mark"))
    for forged in ("9", "9:0123456789abcdef", "99" + genuine, genuine.replace("5:", "6:", 1), ":", "\u00b2:x"):
        await bench.admin.hset(HASH, "mark", forged)
        lease = await claim(bench, "b", bench.short_ms, revision=4)
        assert lease.revision_seen == 4, forged
        await bench.pass_ms(lease.ttl_ms)
    await bench.admin.hset(HASH, "mark", genuine)
    assert (await claim(bench, "c", revision=4)).revision_seen == 5


async def test_without_a_key_no_revision_is_written(redis_url: str) -> None:
    """A pool without a signing key tells nobody any revision, and believes none."""
    async with redis_bench(redis_url, secret=None) as bench:
        await lapsed(bench, "a", revision=5)
        assert await bench.admin.hget(HASH, "mark") == "0"
        await bench.admin.hset(HASH, "mark", "7")
        assert (await claim(bench, "b", revision=4)).revision_seen == 4


async def test_two_providers_share_one_server(bench: RedisBench, redis_url: str) -> None:
    """Processes with providers of their own see each other's leases; another prefix is another world."""
    await claim(bench, "a")
    async with redis_bench(redis_url) as other:
        assert isinstance(await other.leases.acquire(KEY, "b", LONG_MS), Held)
    elsewhere = RedisLeases(redis_url, prefix="other:")
    assert isinstance(await elsewhere.acquire(KEY, "b", LONG_MS, force=True), Lease)
    await elsewhere.close()


def test_a_provider_serves_one_loop_after_another(redis_url: str) -> None:
    """Connections belong to the loop that made them; the next loop gets its own."""
    leases = RedisLeases(redis_url)

    async def hold_once() -> object:
        lease = await leases.acquire(KEY, "a", LONG_MS, force=True)
        assert isinstance(lease, Lease)
        released = await leases.release(lease)
        await leases.close()
        return released

    assert [asyncio.run(hold_once()) for _ in range(2)] == [Released(again=False)] * 2


def test_a_forked_child_connects_by_itself(redis_url: str) -> None:
    """The child sees its parent's lease through a connection of its own, and the parent's works on after the child ended."""
    leases = RedisLeases(redis_url)
    with asyncio.Runner() as runner:
        lease = runner.run(leases.acquire(KEY, "parent", LONG_MS, force=True))
        assert isinstance(lease, Lease)
        assert holds_in_child(lambda: asyncio.Runner().run(is_held_by_parent(leases)))
        assert runner.run(leases.release(lease)) == Released(again=True)
        runner.run(leases.close())


async def is_held_by_parent(leases: RedisLeases) -> bool:
    answer = await leases.acquire(KEY, "child", LONG_MS)
    return isinstance(answer, Held) and answer.owner == "parent"


async def test_calls_beyond_the_pool_wait_their_turn(bench: RedisBench) -> None:
    """A hundred claims at once use four connections and all succeed. Others of this process may have some of their own."""
    others = {client["id"] for client in await bench.admin.client_list()}
    leases = await asyncio.gather(*(claim(bench, "a", key=f"{KEY}-{n}") for n in range(100)))
    assert len({lease.token for lease in leases}) == 100
    clients = [client for client in await bench.admin.client_list() if client["id"] not in others]
    assert 1 <= len([client for client in clients if client["cmd"] in ("evalsha", "eval")]) <= 4


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://:pw@h:1/2", "redis://:pw@h:1/2"),
        ("rediss://h/0?ssl_cert_reqs=none", "rediss://h/0?ssl_cert_reqs=none"),
        ("unix:///run/r.sock?db=3", "unix:///run/r.sock?db=3"),
        ("redis+socket:///run/r.sock?virtual_host=3", "unix:///run/r.sock?db=3"),
        ("redis+socket://me:p%40ss@/run/r.sock", "unix://me@/run/r.sock?password=p%40ss"),
    ],
)
def test_urls_of_redis_and_of_celery(url: str, expected: str) -> None:
    """Celery's spelling of a socket means the same server as redis-py's."""
    assert client_url(url) == expected


def test_another_url_is_refused() -> None:
    """The error names the scheme and nothing of what follows it."""
    with pytest.raises(ConfigurationError, match="'amqp'") as caught:
        RedisLeases("amqp://user:hunter2@host")
    assert "hunter2" not in str(caught.value)


async def test_celerys_spelling_of_a_socket_connects(bench: RedisBench, broker_url: str) -> None:
    """The same lease is seen through either URL."""
    await claim(bench, "a")
    leases = RedisLeases(broker_url)
    assert isinstance(await leases.acquire(KEY, "b", LONG_MS), Held)
    await leases.close()
