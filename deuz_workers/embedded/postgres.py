"""A real Postgres of our own: for the demo, for `--keep` on a laptop, and for the tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from deuz_workers.embedded.binaries import POSTGRES_SOURCES, Program, Source, find_program, reject_postgres
from deuz_workers.embedded.data_folder import DataFolder
from deuz_workers.embedded.kept import KeptProcess, Stop
from deuz_workers.embedded.server import Availability, EmbeddedServer
from deuz_workers.errors import ServerUnavailableError

INITDB_S = 120.0
"""Longest initdb. It takes 0.4 s."""
MAX_CONNECTIONS = 100


class EmbeddedPostgres(EmbeddedServer):
    """Postgres on a unix socket, stopped and cleared up when this process ends, however it ends.

    `data_dir`: where the database lives and stays (made when missing); `None`: a temporary one that goes with the server.
    `durable=False` makes no write wait for the disk: enough for a SIGKILL of the server, not for a power cut.
    """

    name: ClassVar[str] = "Postgres"
    socket_name: ClassVar[str] = ".s.PGSQL.5432"

    def __init__(
        self, data_dir: Path | str | None = None, *, durable: bool = True, sources: Sequence[Source] = POSTGRES_SOURCES
    ) -> None:
        super().__init__()
        self._wanted_data_dir = None if data_dir is None else Path(data_dir).expanduser().absolute()
        self._durable = durable
        self._sources = sources
        self._data: DataFolder | None = None
        self._program: Program | None = None

    @classmethod
    def available(cls, sources: Sequence[Source] = POSTGRES_SOURCES) -> Availability:
        """Whether there is a Postgres program here; starts nothing."""
        try:
            program = find_program(sources, reject_postgres, cls.name)
        except ServerUnavailableError as error:
            return Availability(False, error.message)
        return Availability(True, f"{program.path} ({program.source})")

    @property
    def url(self) -> str:
        """URL of the database `postgres` for the superuser; see :meth:`url_of` for another one."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """URL of `database` on this server, whether it exists or not."""
        return f"postgresql://postgres@/{quote(database, safe='')}?host={quote(str(self.folder), safe='')}"

    @property
    def data_dir(self) -> Path:
        """Where the database lies."""
        return self._data_folder().path

    def _prepare(self, process: KeptProcess) -> None:
        data = DataFolder(self._wanted_data_dir or process.folder / "data", process.account)
        with data.locked():
            data.check()
            program = find_program(self._sources, partial(reject_postgres, major=data.major), self.name)
            self._program = program.reachable_by(process.account, process.folder / "package")
            self._data = data
            if data.major is None:
                self._initialise(process, data)

    def _initialise(self, process: KeptProcess, data: DataFolder) -> None:
        log = process.folder / "initdb.log"
        options = ["--username=postgres", "--encoding=UTF8", "--locale=C", "--auth-local=trust", "--auth-host=reject"]
        if not self._durable:
            options.append("--no-sync")
        with data.made_new() as unfinished:
            program = self._found().path.with_name("initdb")
            process.run([program, *options, "--pgdata", unfinished], log=log, stop=[Stop(signal.SIGTERM, 5.0)])
            if process.wait_for_end(timeout_s=INITDB_S) != 0:
                raise self._failure(process, log, "could not make its data directory")

    def _command(self, process: KeptProcess) -> list[str | Path]:
        data = self._data_folder()
        data.clear_stale_pid_file()
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(process.folder),
            "unix_socket_permissions": "0700",
            "max_connections": str(MAX_CONNECTIONS),
            "shared_buffers": "32MB",  # a laptop's; the working set of an agent runtime is its hot rows
            "logging_collector": "off",
            "log_destination": "stderr",
            # Only fsync: with synchronous_commit off a killed server would forget commits that it has acknowledged,
            # and without full_page_writes a kill in the middle of a write could tear a page.
            "fsync": "on" if self._durable else "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self._found().path, "-D", data.path, *options]

    def _stop_steps(self) -> Sequence[Stop]:
        return (Stop(signal.SIGINT, 20.0), Stop(signal.SIGQUIT, 5.0))  # fast shutdown, then immediate

    def _is_ready(self, process: KeptProcess) -> bool:
        status = self._data_folder().postmaster()
        return status is not None and status.is_ready and status.pid == process.pid

    def _found(self) -> Program:
        assert self._program is not None, "_prepare runs first"
        return self._program

    def _data_folder(self) -> DataFolder:
        if self._data is None:
            raise ServerUnavailableError("Postgres is not started; call start() or use it in a with statement")
        return self._data


def default_data_dir() -> Path:
    """Where a database that is to stay lives unless the user says otherwise.

    `$XDG_DATA_HOME/deuz/postgres`, usually below `~/.local/share`. For root `/var/lib/deuz/postgres`: the server runs
    under another account then, which must not be let into root's home.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/deuz/postgres")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "deuz/postgres"
