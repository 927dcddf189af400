"""Settings to stores and lease providers. Nothing is connected before its first use, so both may be made before a fork."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from deuz_workers.app.settings import Settings
from deuz_workers.breakers import MemoryBreakers, RedisBreakers
from deuz_workers.core.build import Build
from deuz_workers.core.marks import Marks
from deuz_workers.leases import open_leases
from deuz_workers.leases.builds import RedisBuilds
from deuz_workers.leases.redis import SCHEMES, client_url
from deuz_workers.live.redis import RedisLive
from deuz_workers.live.tail import RedisTails
from deuz_workers.ports.breakers import Breakers
from deuz_workers.ports.leases import LeaseProvider
from deuz_workers.ports.runtime import Clock
from deuz_workers.ports.store import RunStore
from deuz_workers.store import SqlStore, open_store


def store_of(settings: Settings) -> SqlStore:
    """The store that `database_url` names. Raises `ConfigurationError` for a URL that is not understood."""
    return open_store(
        settings.database_url,
        ttl_ms=settings.lease_ttl_ms,
        ring_ms=None if settings.broker else 0,
        max_connections=settings.db_pool_size,
        prepare=settings.db_prepare,
        synchronous=settings.sqlite_synchronous,
    )


def leases_of(settings: Settings) -> LeaseProvider:
    """The lease provider that fits the settings. Raises `ConfigurationError` for a URL that is not understood."""
    return open_leases(settings.leases, secret=marks_of(settings, "lease").secret, prepare=settings.db_prepare)


def leases_beside(store: RunStore) -> LeaseProvider | None:
    """In the database of a store that was given as an object, or in a file beside it.

    None: a database in memory, or a store that is none of ours and says of no place that others see.
    """
    url: str | None = getattr(store.dialect, "lease_url", None) if isinstance(store, SqlStore) else None
    return None if url is None else open_leases(url)


def live_of(settings: Settings, clock: Clock) -> tuple[RedisLive, RedisTails] | None:
    """Writer and readers of live streams between processes; None: no setting names a server for them."""
    if settings.live is None:
        return None
    url = client_url(settings.live)
    return RedisLive(url, clock), RedisTails(url)


def builds_of(settings: Settings, build: Build, process: str) -> RedisBuilds | None:
    """Announcements beside the leases, or in a Redis that is there for something else.

    None: there is no Redis, or no broker at which a build could have a queue.
    """
    url = _redis_of(settings)
    return None if url is None or settings.broker is None else RedisBuilds(url, build, process)


def breakers_of(settings: Settings, clock: Clock) -> Breakers:
    """Of models, in that Redis; without one each process keeps its own."""
    url = _redis_of(settings)
    return MemoryBreakers(clock) if url is None else RedisBreakers(client_url(url), clock)


def _redis_of(settings: Settings) -> str | None:
    return next((url for url in (settings.leases, settings.redis_url) if url and urlsplit(url).scheme in SCHEMES), None)


def marks_of(settings: Settings, of: Literal["lease", "bell"]) -> Marks:
    """Writer and reader of revisions that are believed within this pool."""
    secret = settings.secret
    return Marks(None if secret is None else secret.get_secret_value().encode(), of)
