"""Which servers to use: those that the environment names come first, only then one of our own is started."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

DATABASE_URL = "DEUZ_DATABASE_URL"
REDIS_URL = "DEUZ_REDIS_URL"


@contextmanager
def postgres_url(data_dir: Path | None = None, *, durable: bool = True) -> Generator[str]:
    """`DEUZ_DATABASE_URL` if set; else an embedded Postgres that runs while the context is open.

    Raises ServerUnavailableError when one has to be started and cannot.
    """
    if given := os.environ.get(DATABASE_URL):
        yield given
        return
    from deuz_workers.embedded.postgres import EmbeddedPostgres

    with EmbeddedPostgres(data_dir, durable=durable) as server:
        yield server.url


@contextmanager
def redis_url() -> Generator[str]:
    """`DEUZ_REDIS_URL` if set; else an embedded Valkey that runs while the context is open.

    Raises ServerUnavailableError when one has to be started and cannot.
    """
    if given := os.environ.get(REDIS_URL):
        yield given
        return
    from deuz_workers.embedded.redis import EmbeddedRedis

    with EmbeddedRedis() as server:
        yield server.url


def broker_url(redis_url: str) -> str:
    """A redis-py URL as Celery spells it: only unix sockets differ (`redis+socket://PATH?virtual_host=DB`)."""
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    database = parse_qs(parts.query).get("db", ["0"])[0]
    account = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return f"redis+socket://{account}{parts.path}?virtual_host={database}"
