"""Database URLs to stores."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from deuz_workers.errors import ConfigurationError
from deuz_workers.store.dialect import Dialect
from deuz_workers.store.migrations import load_migrations
from deuz_workers.store.sql_store import SqlStore

MEMORY = "sqlite://:memory:"


def open_store(
    url: str,
    *,
    ttl_ms: int = 30_000,
    max_connections: int | None = None,
    prepare: bool | None = None,
    synchronous: Literal["normal", "full"] = "normal",
) -> SqlStore:
    """A store that connects at its first use, once per process and event loop.

    `url`: ``postgresql://...`` (what libpq reads), ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or
    ``sqlite://:memory:``, which lives as long as the store and needs no migration. `ttl_ms`: TTL of leases.
    `max_connections` and `prepare` are for Postgres, see `PostgresDialect`, `synchronous` for SQLite, see `SqliteDialect`.
    Raises `ConfigurationError` for any other URL.
    """
    dialect = dialect_of(url, max_connections=max_connections, prepare=prepare, synchronous=synchronous)
    return SqlStore(dialect, ttl_ms=ttl_ms)


async def migrate(url: str) -> tuple[int, ...]:
    """Bring the schema up to this version; returns the numbers of the migrations that were applied.

    A second migrator waits for the first. Needs a direct connection, no transaction pooler. Raises `SchemaTooNewError`,
    `StoreUnavailableError`.
    """
    dialect = dialect_of(url)
    try:
        return await dialect.migrate(load_migrations(dialect.name))
    finally:
        await dialect.close()


def dialect_of(
    url: str,
    *,
    max_connections: int | None = None,
    prepare: bool | None = None,
    synchronous: Literal["normal", "full"] = "normal",
) -> Dialect:
    """The dialect of a URL, not connected yet; only the driver that it needs is imported."""
    if url.startswith("sqlite:"):
        from deuz_workers.store.sqlite import SqliteDialect

        if url == MEMORY:
            return SqliteDialect(None, synchronous=synchronous)
        path = url.removeprefix("sqlite:///")
        if path and path != url:
            return SqliteDialect(path, synchronous=synchronous)
    elif url.startswith(("postgresql://", "postgres://")):
        from deuz_workers.store.postgres import PostgresDialect

        return PostgresDialect(url, max_connections=max_connections, prepare=prepare)
    scheme = urlsplit(url).scheme or "none"
    raise ConfigurationError(
        f"a database URL of scheme '{scheme}' is not understood; use postgresql://..., sqlite:///path or {MEMORY}"
    )
