"""Database URLs to stores."""

from __future__ import annotations

from pathlib import Path
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
    ring_ms: int | None = None,
    max_connections: int | None = None,
    prepare: bool | None = None,
    synchronous: Literal["normal", "full"] = "normal",
) -> SqlStore:
    """A store that connects at its first use, once per process and event loop.

    `url`: ``postgresql://...`` (what libpq reads), ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or
    ``sqlite://:memory:``, which lives as long as the store and needs no migration; a file may be followed by
    ``?synchronous=full``. `ttl_ms` and `ring_ms`: see `SqlStore`.
    `max_connections` and `prepare` are for Postgres, see `PostgresDialect`, `synchronous` for SQLite, see `SqliteDialect`.
    Raises `ConfigurationError` for any other URL.
    """
    dialect = dialect_of(url, max_connections=max_connections, prepare=prepare, synchronous=synchronous)
    return SqlStore(dialect, ttl_ms=ttl_ms, ring_ms=ring_ms)


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
        path = sqlite_file(url)
        if path is not None:
            return SqliteDialect(path, synchronous=_synchronous(url.partition("?")[2]) or synchronous)
    elif url.startswith(("postgresql://", "postgres://")):
        from deuz_workers.store.postgres import PostgresDialect

        return PostgresDialect(url, max_connections=max_connections, prepare=prepare)
    scheme = urlsplit(url).scheme or "none"
    raise ConfigurationError(
        f"a database URL of scheme '{scheme}' is not understood; use postgresql://..., sqlite:///path or {MEMORY}"
    )


def sqlite_file(url: str) -> Path | None:
    """The file that an SQLite URL names, whether it is there or not; None for memory and for any other URL."""
    path = url.partition("?")[0]
    if not path.startswith("sqlite:///") or path == "sqlite:///":
        return None
    return Path(path.removeprefix("sqlite:///"))


def _synchronous(query: str) -> Literal["normal", "full"] | None:
    """What a SQLite URL says about it."""
    match query:
        case "":
            return None
        case "synchronous=normal":
            return "normal"
        case "synchronous=full":
            return "full"
        case _:
            raise ConfigurationError("a SQLite URL takes ?synchronous=normal or ?synchronous=full and nothing else")
