"""Migrations of Postgres: what they make, who may run them, and what a wrong schema answers."""

from __future__ import annotations

import asyncio
import sqlite3
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from deuz_workers.errors import MigrationMissingError, SchemaTooNewError, StoreError, StoreUnavailableError
from deuz_workers.store import migrate, open_store, opening
from deuz_workers.store.migrations import Migration, load_migrations
from deuz_workers.store.opening import dialect_of
from tests import servers

CATALOG = (
    """
    select 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull::text,
           coalesce(pg_get_expr(d.adbin, d.adrelid), '')
    from pg_class c
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
    where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and c.relname <> 'deuz_schema'
    """,
    """
    select 'constraint', c.relname, o.conname, pg_get_constraintdef(o.oid), '', ''
    from pg_constraint o join pg_class c on c.oid = o.conrelid
    where c.relnamespace = 'public'::regnamespace and c.relname <> 'deuz_schema'
    """,
    """
    select 'index', tablename, indexname, indexdef, '', ''
    from pg_indexes where schemaname = 'public' and tablename <> 'deuz_schema'
    """,
    """
    select 'kind', c.relname, c.relkind::text, c.relpersistence::text, '', ''
    from pg_class c where c.relnamespace = 'public'::regnamespace and c.relname !~ '^deuz_schema'
    """,
    """
    select 'option', c.relname, unnest(c.reloptions), '', '', ''
    from pg_class c where c.relnamespace = 'public'::regnamespace and c.reloptions is not null
    """,
)


def catalog(url: str) -> list[tuple[Any, ...]]:
    """Every table, sequence, column, constraint, index, storage option, and what is logged, in one order."""
    with psycopg.connect(url) as connection:
        found = [row for query in CATALOG for row in connection.execute(cast(Any, query)).fetchall()]
    return sorted(found, key=repr)


async def test_all_migrations_make_exactly_the_schema(databases: servers.Databases) -> None:
    """`schema.sql` and all numbered files give the same tables, sequences, columns, constraints, indexes and options."""
    schema = files("deuz_workers.store").joinpath("sql", "postgres", "schema.sql").read_text("utf-8")
    with databases.fresh() as migrated, databases.fresh() as described:
        await migrate(migrated)
        with psycopg.connect(described) as connection:
            connection.execute(cast(Any, schema))
        assert catalog(migrated) == catalog(described)
        assert len(catalog(migrated)) > 100


async def test_migrating_again_does_nothing(postgres_dsn: str) -> None:
    """The first call applies every migration, the second none; the store then finds its schema."""
    every = tuple(migration.number for migration in load_migrations("postgres"))
    assert await migrate(postgres_dsn) == every
    assert await migrate(postgres_dsn) == ()
    store = open_store(postgres_dsn)
    await store.check_schema()
    await store.close()


async def test_an_old_estimate_without_money_counts_as_one_without_a_price(postgres_dsn: str, tmp_path: Path) -> None:
    """In both databases, for rows of a build that did not write down whether a price was known; one with money had a price, and
    rows of later builds say it themselves."""
    rows = [("old", 0, ""), ("old money", 7, ""), ("new and free", 0, "m")]
    for url in (postgres_dsn, f"sqlite:///{tmp_path}/runs.db"):
        dialect = dialect_of(url)
        every = load_migrations(dialect.name)
        before = next(at for at, one in enumerate(every) if one.name == "unpriced")
        await dialect.migrate(every[:before])
        opened: Any = psycopg.connect(url) if dialect.name == "postgres" else sqlite3.connect(tmp_path / "runs.db")
        rid, at = ("gen_random_uuid()", "at") if dialect.name == "postgres" else ("randomblob(16)", "at_ms")
        when = "now()" if dialect.name == "postgres" else "1"
        for request_id, micros, model in rows:
            opened.execute(
                f"insert into reservation (rid, request_id, scope_key, tokens, micros, {at}, model) "
                f"values ({rid}, '{request_id}', 'k', 5, {micros}, {when}, '{model}')"
            )
        opened.commit()
        await dialect.migrate(every)
        found = {name: bool(priced) for name, priced in opened.execute("select request_id, priced from reservation").fetchall()}
        assert found == {"old": False, "old money": True, "new and free": True}
        opened.close()
        await dialect.close()


async def test_two_migrators_at_once(postgres_dsn: str) -> None:
    """Four migrators of an empty database: each migration is applied by exactly one of them, and none fails."""
    applied = await asyncio.gather(*(migrate(postgres_dsn) for _ in range(4)))
    every = [migration.number for migration in load_migrations("postgres")]
    assert sorted(number for numbers in applied for number in numbers) == every


async def test_a_missing_migration_says_what_to_run(postgres_dsn: str) -> None:
    """An empty database is told apart from one that is away: operations and the check name the command."""
    store = open_store(postgres_dsn)
    with pytest.raises(MigrationMissingError, match="deuz db migrate"):
        await store.check_schema()
    with pytest.raises(MigrationMissingError, match="deuz db migrate"):
        await store.head("scope", "run")
    await store.close()


@pytest.mark.spec("SST-004")
async def test_a_newer_schema_is_refused(migrated_postgres_dsn: str) -> None:
    """A database that a later version migrated is neither used nor migrated."""
    with psycopg.connect(migrated_postgres_dsn) as connection:
        connection.execute("insert into deuz_schema (version, name) values (9999, 'future')")
    store = open_store(migrated_postgres_dsn)
    with pytest.raises(SchemaTooNewError, match="9999"):
        await store.check_schema()
    with pytest.raises(SchemaTooNewError, match="9999"):
        await migrate(migrated_postgres_dsn)
    await store.close()


async def test_a_migration_that_fails_leaves_nothing(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All missing migrations are one transaction: a broken last one takes the others with it."""
    broken = (*load_migrations("postgres"), Migration(9999, "broken", "create table half (id int); select 1/0"))
    monkeypatch.setattr(opening, "load_migrations", {"postgres": broken}.__getitem__)
    with pytest.raises(StoreError, match="22012"):
        await migrate(postgres_dsn)
    assert catalog(postgres_dsn) == []


async def test_an_unreachable_database_is_named_without_its_password() -> None:
    """The error says where, and neither user nor password."""
    with pytest.raises(StoreUnavailableError, match=r"'runs' at 127\.0\.0\.1:1") as caught:
        await migrate("postgresql://someone:sesame@127.0.0.1:1/runs?application_name=x")
    assert "sesame" not in repr(caught.value)
    assert "someone" not in repr(caught.value)
