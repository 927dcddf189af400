"""What the fixtures of tests/conftest.py promise."""

from __future__ import annotations

import psycopg
import pytest
import redis

from deuz_workers.embedded import EmbeddedPostgres, EmbeddedRedis
from deuz_workers.errors import ServerUnavailableError
from tests import servers

seen: list[str] = []


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_an_empty_database_of_its_own(postgres_dsn: str, turn: int) -> None:
    """A table made by one test is not there in the next one."""
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("CREATE TABLE mine (turn int)")
        connection.execute("INSERT INTO mine VALUES (%s)", [turn])
    assert postgres_dsn not in seen
    seen.append(postgres_dsn)


def migrate_at_once(url: str) -> None:
    """A migration that is a plain function."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE note AS SELECT 'made once' AS text")


async def migrate_in_a_loop(url: str) -> None:
    """A migration that is a coroutine function."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute("CREATE TABLE note AS SELECT 'made once' AS text")


@pytest.mark.parametrize("migration", [migrate_at_once, migrate_in_a_loop])
def test_a_migration_runs_once_and_every_database_has_its_outcome(
    databases: servers.Databases, migration: servers.Migrate
) -> None:
    """The template is migrated by the first user, later ones copy it; a plain function and a coroutine both do."""
    own = servers.Databases(databases.url)
    calls: list[str] = []

    def migrate(url: str) -> object:
        calls.append(url)
        return migration(url)

    try:
        for _ in range(2):
            with own.fresh(own.migrated_template(migrate)) as url, psycopg.connect(url) as connection:
                assert connection.execute("SELECT text FROM note").fetchall() == [("made once",)]
        assert len(calls) == 1
    finally:
        own.close()


def test_databases_are_dropped_although_somebody_is_connected(databases: servers.Databases) -> None:
    """A test that forgets to close its connection leaves no database behind."""
    with databases.fresh() as url:
        forgotten = psycopg.connect(url)
    with pytest.raises(psycopg.OperationalError):
        forgotten.execute("SELECT 1")
    forgotten.close()
    with psycopg.connect(databases.url) as connection:
        names = connection.execute("SELECT datname FROM pg_database").fetchall()
    assert (servers.database_name(url),) not in names


@pytest.mark.parametrize("turn", [1, 2])
def test_redis_is_empty_at_the_start_of_every_test(redis_url: str, turn: int) -> None:
    """What one test stored is not there in the next one."""
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("turn", turn)


def test_a_private_postgres_keeps_its_commits_over_a_kill(private_postgres: EmbeddedPostgres) -> None:
    """An acknowledged commit is there after SIGKILL and restart, also with durable=False."""
    with psycopg.connect(private_postgres.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
    private_postgres.kill()
    private_postgres.start()
    with psycopg.connect(private_postgres.url) as connection:
        assert connection.execute("SELECT one FROM kept").fetchall() == [(1,)]


def test_a_private_redis_is_another_server(private_redis: EmbeddedRedis, redis_url: str) -> None:
    """Killing it leaves the shared one alone."""
    private_redis.kill()
    with redis.Redis.from_url(redis_url) as client:
        assert client.ping()


def test_a_missing_server_skips_on_a_laptop_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """CI=true turns the skip into a failure that says why."""
    error = ServerUnavailableError("no Postgres found")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Postgres found"):
        servers.unavailable(error)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no Postgres found"):
        servers.unavailable(error)
