"""Databases that cannot be used as they are set: where, why, at once, and without the account."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from deuz_workers.errors import ConfigurationError, StoreRefusedError, StoreUnavailableError
from deuz_workers.store import SqlStore, migrate, open_store
from deuz_workers.store.postgres import PostgresDialect


async def refused(url: str) -> tuple[StoreUnavailableError, float]:
    """What a read says, and after how many seconds."""
    store = open_store(url)
    began = time.monotonic()
    try:
        with pytest.raises(StoreUnavailableError) as caught:
            await store.now_ms()
    finally:
        await store.close()
    return caught.value, time.monotonic() - began


@pytest.mark.parametrize("host", ["...", "a" * 64])
async def test_a_host_that_no_resolver_takes_is_refused_in_words(host: str) -> None:
    """Also by what has no patience, such as a migration: no error of Python's codecs comes through."""
    url = f"postgresql://ann:hunter2@{host}/x"
    error, _ = await refused(url)
    with pytest.raises(StoreRefusedError) as caught:
        await migrate(url)
    for message in (error.message, caught.value.message):
        assert f"database 'x' at {host}:5432: that is no name of a host" in message
        assert "hunter2" not in message


@pytest.mark.parametrize(
    ("role", "name", "words"), [("nobody", None, "role does not exist"), (None, "none", "database does not")]
)
async def test_what_will_not_go_away_is_said_at_once(postgres_dsn: str, role: str | None, name: str | None, words: str) -> None:
    """Server, database and kind of the cause; no patience, since waiting does not help."""
    parts = urlsplit(postgres_dsn)
    account = f"{role}:hunter2@" if role else f"{parts.netloc.rpartition('@')[0]}@"
    host = parts.netloc.rpartition("@")[2]
    url = urlunsplit((parts.scheme, account + host, f"/{name}" if name else parts.path, parts.query, ""))
    error, seconds = await refused(url)
    assert isinstance(error, StoreRefusedError)
    assert words in error.message
    assert f"database {(name or parts.path[1:])!r}" in error.message
    assert "hunter2" not in error.message
    assert "offered again" not in error.message
    assert seconds < 4


async def test_a_server_that_is_away_is_named_with_the_reason() -> None:
    """Host, port and database; a read is nothing that may be offered again."""
    store = SqlStore(PostgresDialect("postgresql://ann:hunter2@127.0.0.1:1/shop"), patience_ms=1)
    with pytest.raises(StoreUnavailableError) as caught:
        await store.now_ms()
    await store.close()
    assert "database 'shop' at 127.0.0.1:1: refused" in caught.value.message
    assert not isinstance(caught.value, StoreRefusedError)
    assert "hunter2" not in caught.value.message
    assert "offered again" not in caught.value.message


async def test_a_file_that_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    """Its folder does not exist."""
    error, seconds = await refused(f"sqlite:///{tmp_path}/none/deuz.db")
    assert isinstance(error, StoreRefusedError)
    assert f"{tmp_path}/none/deuz.db" in error.message
    assert seconds < 2


async def test_a_file_that_is_no_database_is_said_at_once(tmp_path: Path) -> None:
    """Its path and what to do; the file stays as it is."""
    path = tmp_path / "notes.txt"
    path.write_text("no database, and long enough to be read as one " * 20)
    before = path.read_bytes()
    error, seconds = await refused(f"sqlite:///{path}")
    assert isinstance(error, StoreRefusedError)
    assert f"'{path}' cannot be used (SQLITE_NOTADB); it is no SQLite database; name another file" in error.message
    assert "offered again" not in error.message
    assert seconds < 2
    assert path.read_bytes() == before


def test_a_url_that_libpq_cannot_read_is_a_mistake() -> None:
    """Nothing of it is repeated."""
    with pytest.raises(ConfigurationError) as caught:
        PostgresDialect("postgresql://ann:hunter2@host:5432/x?nonsense=1")
    assert "hunter2" not in caught.value.message
