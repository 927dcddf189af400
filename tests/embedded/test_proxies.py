"""What the proxies of :mod:`tests.proxies` do to a connection, checked against real servers."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest
import redis

from tests.proxies import DEADLINE_S, CuttingProxy, TlsPostgresProxy


def rows(url: str) -> list[tuple[str, ...]]:
    """What the table `note` holds."""
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT text FROM note").fetchall()


def make_table(url: str) -> None:
    """An empty table `note`."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE note (text text)")


@pytest.mark.parametrize(("when", "stored"), [("before", []), ("after", [("needle-1",)])])
def test_a_commit_is_lost_before_it_arrives_or_its_answer_after(
    postgres_dsn: str, when: str, stored: list[tuple[str, ...]]
) -> None:
    """The client sees the same error in both cases; only the database knows which it was."""
    make_table(postgres_dsn)
    with CuttingProxy.before_postgres(postgres_dsn) as proxy:
        client = psycopg.connect(proxy.postgres_url(postgres_dsn), autocommit=True)
        client.execute("INSERT INTO note SELECT 'earlier' WHERE false")
        cut = proxy.cut_before(b"needle-1") if when == "before" else proxy.cut_after(b"needle-1")
        with pytest.raises(psycopg.OperationalError):
            client.execute("INSERT INTO note VALUES (%s)", ["needle-1"])
        cut.wait()
        client.close()
        assert rows(postgres_dsn) == stored
        with psycopg.connect(proxy.postgres_url(postgres_dsn)) as again:
            assert again.execute("SELECT 'needle-1'").fetchall() == [("needle-1",)], "a cut is made once"


@pytest.mark.parametrize(("when", "stored"), [("before", None), ("after", b"needle")])
def test_a_redis_command_is_lost_or_its_answer_is(redis_url: str, when: str, stored: bytes | None) -> None:
    """The server has executed the command in the second case only."""
    with CuttingProxy.before_redis(redis_url) as proxy:
        cut = proxy.cut_before(b"needle") if when == "before" else proxy.cut_after(b"needle")
        with redis.Redis.from_url(proxy.redis_url(), retry=None) as client, pytest.raises(redis.ConnectionError):
            client.set("key", "needle")
        cut.wait()
    with redis.Redis.from_url(redis_url) as client:
        assert client.get("key") == stored


def test_a_cut_resets_every_open_connection(postgres_dsn: str) -> None:
    """New ones are accepted at once."""
    with CuttingProxy.before_postgres(postgres_dsn) as proxy:
        url = proxy.postgres_url(postgres_dsn)
        clients = [psycopg.connect(url) for _ in range(2)]
        proxy.cut()
        for client in clients:
            with pytest.raises(psycopg.OperationalError):
                client.execute("SELECT 1")
            client.close()
        with psycopg.connect(url) as client:
            client.execute("SELECT 1")
        assert proxy.accepted == 3


def test_a_refusing_proxy_is_a_server_that_is_down(redis_url: str) -> None:
    """Until it accepts again, on the same port."""
    with CuttingProxy.before_redis(redis_url) as proxy, redis.Redis.from_url(proxy.redis_url(), retry=None) as client:
        proxy.refuse()
        with pytest.raises(redis.ConnectionError, match="refused"):
            client.ping()
        proxy.accept()
        assert client.ping()


def test_held_replies_arrive_when_they_are_released(redis_url: str) -> None:
    """The server executes the request meanwhile, and the client goes on waiting."""
    answers: list[object] = []
    with CuttingProxy.before_redis(redis_url) as proxy, redis.Redis.from_url(proxy.redis_url(), retry=None) as client:
        client.ping()
        proxy.hold_replies()
        asking = threading.Thread(target=lambda: answers.append(client.rpush("list", "one")))
        asking.start()
        with redis.Redis.from_url(redis_url) as direct:
            assert direct.blpop(["list"], timeout=DEADLINE_S) == (b"list", b"one")
        assert answers == []
        proxy.release_replies()
        asking.join(DEADLINE_S)
    assert answers == [1]


@pytest.mark.parametrize("mode", ["require", "verify-full"])
def test_a_postgres_without_tls_is_reached_over_tls(postgres_dsn: str, tmp_path: Path, mode: str) -> None:
    """libpq itself says that the connection is encrypted, and verifies the certificate if asked to."""
    with TlsPostgresProxy.before_postgres(postgres_dsn).present_certificate(tmp_path) as proxy:
        url = f"{proxy.postgres_url(postgres_dsn)}?sslmode={mode}&sslrootcert={proxy.ca_file}"
        with psycopg.connect(url) as connection:
            assert connection.pgconn.ssl_in_use
            assert connection.execute("SELECT repeat('x', 300000)").fetchone() == ("x" * 300000,)


def test_the_tls_proxy_turns_plain_clients_away(postgres_dsn: str, tmp_path: Path) -> None:
    """A client that forgets `sslmode` is not served by accident."""
    with (
        TlsPostgresProxy.before_postgres(postgres_dsn).present_certificate(tmp_path) as proxy,
        pytest.raises(psycopg.OperationalError),
    ):
        psycopg.connect(f"{proxy.postgres_url(postgres_dsn)}?sslmode=disable")
