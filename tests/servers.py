"""The servers of one pytest process: started at the first use, shared by its tests, gone when it ends.

Under pytest-xdist every worker has servers of its own. A start costs half a second once per worker, and in exchange a
test that stalls, fills or floods a server disturbs no other worker, and nobody has to find out who ends a shared one.

With `DEUZ_DATABASE_URL` or `DEUZ_REDIS_URL` set, tests use those servers instead: databases of their own on the first,
and on the second the database of the URL, which must be empty when the session starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest
import redis
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from deuz_workers.embedded import EmbeddedPostgres, postgres_url, redis_url
from deuz_workers.embedded.account import server_account
from deuz_workers.embedded.kept import KeptProcess
from deuz_workers.errors import ServerUnavailableError

MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30
"""Two sessions, each with its write-ahead log at its longest (1 GB), and as much again for rows."""
Migrate = Callable[[str], object]
"""Takes the URL of an empty database and makes the schema there; may be a coroutine function."""


def unavailable(error: ServerUnavailableError) -> NoReturn:
    """A laptop without the server skips the test; CI, which must have it, fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(error.message)
    pytest.skip(error.message)


class Databases:
    """Hands out databases on one Postgres server, each a copy of a template; closes what it made."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._admin = psycopg.connect(url, autocommit=True)
        self._session = f"deuz_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}_{secrets.token_hex(4)}"
        # A copy of the files takes 6 ms instead of 15, but needs two checkpoints, which wait for the disk if fsync is on.
        fsync = self._admin.execute("SELECT current_setting('fsync')").fetchone()
        self._strategy = "file_copy" if fsync == ("off",) else "wal_log"
        self._made = 0
        self._migrated: str | None = None

    def url_of(self, name: str) -> str:
        """URL of the database `name` on this server."""
        scheme, _, rest = self.url.partition("://")
        server, _, tail = rest.partition("/")
        _, question, query = tail.partition("?")
        return f"{scheme}://{server}/{name}{question}{query}"

    @contextlib.contextmanager
    def fresh(self, template: str = "template1") -> Generator[str]:
        """URL of a new database; at the end it is dropped, whoever is still connected."""
        self._made += 1
        name = f"{self._session}_{self._made}"
        self._create(name, template)
        try:
            yield self.url_of(name)
        finally:
            self._drop(name)

    def migrated_template(self, migrate: Migrate) -> str:
        """Name of a database that `migrate` was applied to once; nobody can connect to it any more."""
        if self._migrated is None:
            name = f"{self._session}_migrated"
            self._create(name, "template1")
            try:
                outcome = migrate(self.url_of(name))
                if inspect.iscoroutine(outcome):
                    asyncio.run(outcome)
            except BaseException:
                self._drop(name)
                raise
            self._admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name)))
            self._admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            self._migrated = name
        return self._migrated

    def close(self) -> None:
        """The template is dropped and the connection closed."""
        if self._migrated is not None:
            self._drop(self._migrated)
        self._admin.close()

    def _create(self, name: str, template: str) -> None:
        names = {"name": sql.Identifier(name), "template": sql.Identifier(template), "strategy": sql.Identifier(self._strategy)}
        self._admin.execute(sql.SQL("CREATE DATABASE {name} TEMPLATE {template} STRATEGY {strategy}").format(**names))

    def _drop(self, name: str) -> None:
        self._admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@contextlib.contextmanager
def vanishing_folder() -> Generator[Path]:
    """A folder for data directories: the server's account reaches it, and it vanishes even if pytest is killed.

    In memory where there is room, since a container's disk takes ten times as long for the same files. Not below
    `tmp_path`, which the server's account cannot enter when we are root.
    """
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES
    keeper = KeptProcess(server_account(), socket_name="", under=MEMORY if has_room else None)
    try:
        yield keeper.folder
    finally:
        keeper.close()


@contextlib.contextmanager
def shared_databases(folder: Path) -> Generator[Databases]:
    """The Postgres of this test run; its data, unless the server is a given one, lie in `folder`."""
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(postgres_url(folder / "shared", durable=False))
        except ServerUnavailableError as error:
            unavailable(error)
        databases = Databases(url)
        stack.callback(databases.close)
        yield databases


@contextlib.contextmanager
def shared_redis() -> Generator[str]:
    """The Valkey of this test run; refuses a given one whose database holds anything, since tests empty it."""
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(redis_url())
        except ServerUnavailableError as error:
            unavailable(error)
        with redis.Redis.from_url(url) as client:
            if client.dbsize():
                pytest.fail("the database of DEUZ_REDIS_URL is not empty, and tests would flush it; name an empty one")
        yield url


def flush(url: str) -> None:
    """The database of `url` is empty; streams, scripts' keys and the lease epoch are gone with it."""
    with redis.Redis.from_url(url) as client:
        client.flushdb()


class PristineCluster:
    """A Postgres data directory fresh from initdb, copied for every server that a test may break."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copies = 0

    def copy(self) -> Path:
        """A new data directory; made by initdb the first time (0.4 s), then copied (some 40 ms)."""
        original = self._folder / "pristine"
        if not original.exists():
            EmbeddedPostgres(original, durable=False).start().stop()
        self._copies += 1
        copy = self._folder / f"data{self._copies}"
        subprocess.run(["cp", "-a", original, copy], check=True)  # keeps the owner, which is the server's account
        return copy


def database_name(url: str) -> str:
    """The database that `url` names."""
    return str(conninfo_to_dict(url)["dbname"])
