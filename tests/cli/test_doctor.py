"""What `deuz doctor` finds, and the way out that it names."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import redis
from psycopg.conninfo import conninfo_to_dict

from deuz_workers.cli.exits import Exit
from deuz_workers.embedded import EmbeddedPostgres, EmbeddedRedis
from tests.cli.conftest import Deuz, Said


def findings(said: Said, subject: str) -> list[dict[str, Any]]:
    return [finding for finding in said.document["findings"] if finding["subject"] == subject]


def levels(said: Said) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in said.document["findings"]:
        found.setdefault(finding["subject"], set()).add(finding["level"])
    return found


@pytest.mark.usefixtures("sqlite_url")
def test_a_laptop_is_well(deuz: Deuz) -> None:
    """An SQLite file and no server: nothing is broken, and people see the same lines."""
    deuz("db", "migrate")
    said = deuz("doctor", "--json")
    assert said.code == Exit.OK
    assert set.union(*levels(said).values()) == {"ok"}
    assert "for the processes of one machine" in deuz("doctor").out


def test_a_pool_is_well(deuz: Deuz, monkeypatch: pytest.MonkeyPatch, private_redis: EmbeddedRedis) -> None:
    """Durable Postgres and Valkey: schema, three clocks, broker without a visibility timeout, policy."""
    with EmbeddedPostgres() as postgres:
        monkeypatch.setenv("DEUZ_DATABASE_URL", postgres.url)
        monkeypatch.setenv("DEUZ_REDIS_URL", private_redis.url)
        monkeypatch.setenv("DEUZ_BROKER_URL", private_redis.broker_url)
        deuz("db", "migrate")
        [unsigned] = findings(deuz("doctor", "--json"), "settings")
        monkeypatch.setenv("DEUZ_SECRET", "a secret of the whole pool")
        said = deuz("doctor", "--json")
    assert (unsigned["level"], "DEUZ_SECRET" in unsigned["fix"]) == ("warning", True)
    assert said.code == Exit.OK, said.out
    assert set(levels(said)) == {"versions", "schema", "clock", "store", "redis", "broker", "pool", "slots"}
    assert set.union(*levels(said).values()) == {"ok"}
    assert len(findings(said, "clock")) == 2
    assert "synchronous_commit on, fsync on" in findings(said, "store")[0]["said"]
    assert "noeviction" in findings(said, "redis")[0]["said"]


def test_postgres_alone_is_well(deuz: Deuz, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Redis the leases lie in the store's database; before its migration the finding says what to run."""
    with EmbeddedPostgres() as postgres:
        monkeypatch.setenv("DEUZ_DATABASE_URL", postgres.url)
        [before] = findings(deuz("doctor", "--json"), "leases")
        deuz("db", "migrate")
        said = deuz("doctor", "--json")
    assert before["level"] == "broken"
    assert "deuz db migrate" in before["said"]
    assert said.code == Exit.OK, said.out
    assert "in Postgres" in findings(said, "leases")[0]["said"]
    assert "in Postgres" in findings(said, "redis")[0]["said"]


def test_a_redis_that_evicts_is_broken(
    deuz: Deuz, sqlite_url: str, private_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doorbells and leases would be thrown away; the finding names the setting to change."""
    with redis.Redis.from_url(private_redis.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    monkeypatch.setenv("DEUZ_REDIS_URL", private_redis.url)
    said = deuz("doctor", "--json")
    assert said.code == Exit.FAILED
    [finding] = findings(said, "redis")
    assert finding["level"] == "broken"
    assert "allkeys-lru" in finding["said"]
    assert "noeviction" in finding["fix"]
    shown = deuz("doctor")
    assert "broken" in shown.out
    assert finding["fix"] in shown.out


def test_a_missing_migration_is_broken(deuz: Deuz, postgres_dsn: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fix is the command."""
    monkeypatch.setenv("DEUZ_DATABASE_URL", postgres_dsn)
    monkeypatch.setenv("DEUZ_REDIS_URL", redis_url)
    said = deuz("doctor", "--json")
    assert said.code == Exit.FAILED
    [finding] = findings(said, "store")
    assert finding["fix"] == "run: deuz db migrate"
    assert not findings(said, "slots")


def test_commits_that_are_not_kept_are_broken(
    deuz: Deuz, migrated_postgres_dsn: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`synchronous_commit` off, here for one database, would lose acknowledged commits."""
    name = conninfo_to_dict(migrated_postgres_dsn)["dbname"]
    with psycopg.connect(migrated_postgres_dsn, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off'.encode())
    monkeypatch.setenv("DEUZ_DATABASE_URL", migrated_postgres_dsn)
    monkeypatch.setenv("DEUZ_REDIS_URL", redis_url)
    said = deuz("doctor", "--json")
    assert said.code == Exit.FAILED
    [finding] = findings(said, "store")
    assert "synchronous_commit off" in finding["said"]
    assert "synchronous_commit = on" in finding["fix"]


async def test_a_leaked_slot_is_broken(migrated_postgres_dsn: str) -> None:
    """A swarm that counts more running tasks than it has is named."""
    from deuz_workers import Deuz as Application
    from deuz_workers import Settings
    from deuz_workers.cli.doctor import examine
    from tests.cli.agents import pair

    app = Application(settings=Settings(database_url=migrated_postgres_dsn, leases_url="memory://"))
    await app.aio.run_swarm(pair, run_id="s1")
    before = [finding for finding in await examine(app) if finding.subject == "slots"]
    async with await psycopg.AsyncConnection[Any].connect(migrated_postgres_dsn, autocommit=True) as connection:
        await connection.execute("update swarm set running = running + 1")
    after = [finding for finding in await examine(app) if finding.subject == "slots"]
    await app.aclose()
    assert [finding.level for finding in before] == ["ok"]
    assert [finding.level for finding in after] == ["broken"]
    assert "swarm s1 counts 3 running tasks and has 2" in after[0].said


@pytest.mark.usefixtures("sqlite_url")
def test_servers_that_are_away_are_named_by_their_settings(deuz: Deuz, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check stands alone: address and reason are told, the account is not."""
    deuz("db", "migrate")
    monkeypatch.setenv("DEUZ_REDIS_URL", "redis://user:secret@127.0.0.1:1/0")
    said = deuz("doctor", "--json")
    assert said.code == Exit.FAILED
    assert "DEUZ_REDIS_URL" in findings(said, "redis")[0]["fix"]
    assert "DEUZ_BROKER_URL" in findings(said, "broker")[0]["fix"]
    assert findings(said, "schema")[0]["level"] == "ok"
    assert findings(said, "redis")[0]["said"].startswith("redis://127.0.0.1:1/0: ")
    assert "ConnectionError" in findings(said, "redis")[0]["said"]
    assert findings(said, "broker")[0]["said"].startswith("redis://127.0.0.1:1/0: ")
    assert "secret" not in said.out
    assert "user" not in said.out
