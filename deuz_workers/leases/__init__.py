"""Who should work on a run now: providers of the contract in :mod:`deuz_workers.ports.leases`.

Redis, Valkey or Postgres for workers on any number of machines, an SQLite file for the processes of one, memory for one
process.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from deuz_workers.errors import ConfigurationError
from deuz_workers.leases.postgres import SCHEMES as POSTGRES
from deuz_workers.leases.postgres import PostgresLeases
from deuz_workers.leases.redis import SCHEMES, RedisLeases
from deuz_workers.leases.sqlite import SqliteLeases, memory_leases
from deuz_workers.ports.leases import LeaseProvider

__all__ = ["PostgresLeases", "RedisLeases", "SqliteLeases", "memory_leases", "open_leases"]


def open_leases(url: str, *, secret: bytes | None = None, prepare: bool = True) -> LeaseProvider:
    """The provider that `url` names; nothing is opened before its first call.

    ``redis://``, ``rediss://``, ``unix://``, ``redis+socket://``; ``postgresql://``, ``postgres://``; ``sqlite:///relative.db``,
    ``sqlite:////absolute.db``; ``memory://``. `secret` signs the revisions that leases on a server carry. `prepare`: off for a
    pooler before Postgres that does not pass prepared statements on. Raises ConfigurationError for any other URL.
    """
    parts = urlsplit(url)
    if parts.scheme in SCHEMES:
        return RedisLeases(url, secret=secret)
    if parts.scheme in POSTGRES:
        return PostgresLeases(url, secret=secret, prepare=prepare)
    if parts.scheme == "sqlite" and not parts.netloc and len(parts.path) > 1:
        return SqliteLeases(unquote(parts.path[1:]))
    if parts.scheme == "memory":
        return memory_leases()
    raise ConfigurationError(
        f"leases cannot be opened at a URL of scheme {parts.scheme!r}; give {', '.join(f'{scheme}://' for scheme in SCHEMES)}, "
        "postgresql://, sqlite:///path or memory://"
    )
