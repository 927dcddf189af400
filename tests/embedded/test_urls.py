"""Servers that the environment names come before servers of our own."""

from __future__ import annotations

import pytest
import redis
from kombu import Connection

from deuz_workers.embedded import EmbeddedRedis, broker_url, postgres_url, redis_url


def test_given_urls_are_used_and_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """With both variables set, the URLs come back as they are, though no program can be found."""
    monkeypatch.setenv("DEUZ_DATABASE_URL", "postgresql://db.example/app")
    monkeypatch.setenv("DEUZ_REDIS_URL", "redis://cache.example:6379/3")
    monkeypatch.setenv("DEUZ_POSTGRES_BIN_DIR", "/nowhere")
    monkeypatch.setenv("DEUZ_REDIS_SERVER", "/nowhere")
    with postgres_url() as database, redis_url() as cache:
        assert (database, cache) == ("postgresql://db.example/app", "redis://cache.example:6379/3")


def test_without_a_url_a_server_runs_while_the_context_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers inside and is gone outside."""
    monkeypatch.delenv("DEUZ_REDIS_URL", raising=False)
    with redis_url() as url, redis.Redis.from_url(url) as client:
        assert client.ping()
    with redis.Redis.from_url(url, retry=None) as client, pytest.raises(redis.ConnectionError):
        client.ping()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("redis://:secret@host:6379/2", "redis://:secret@host:6379/2"),
        ("rediss://host/0", "rediss://host/0"),
        ("unix:///tmp/a/redis.sock", "redis+socket:///tmp/a/redis.sock?virtual_host=0"),
        ("unix:///tmp/a/redis.sock?db=4", "redis+socket:///tmp/a/redis.sock?virtual_host=4"),
        ("unix://me:pw@/tmp/redis.sock?db=1", "redis+socket://me:pw@/tmp/redis.sock?virtual_host=1"),
    ],
)
def test_celery_spells_unix_sockets_differently(given: str, wanted: str) -> None:
    """Any other URL is the same for both."""
    assert broker_url(given) == wanted


def test_celery_publishes_where_redis_py_reads(private_redis: EmbeddedRedis) -> None:
    """Both spellings name the same database of the same server."""
    with Connection(private_redis.broker_url) as connection:
        connection.SimpleQueue("doorbells").put("ring")
    with redis.Redis.from_url(private_redis.url) as client:
        assert client.llen("doorbells") == 1
