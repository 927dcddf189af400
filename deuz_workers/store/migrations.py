"""Numbered SQL files that are never edited; applying all of them to an empty database gives exactly `schema.sql`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from deuz_workers.errors import MigrationMissingError, SchemaTooNewError

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One file, `0001_name.sql`. Applied ones are recorded in the table `deuz_schema (version, name, applied_at)`."""

    number: int
    name: str
    sql: str


@cache
def load_migrations(dialect: str) -> tuple[Migration, ...]:
    """All migrations of `sql/<dialect>/migrations`, in order; numbers run from 1 without a gap."""
    found: list[Migration] = []
    for file in files("deuz_workers.store").joinpath("sql", dialect, "migrations").iterdir():
        if match := _NAME.fullmatch(file.name):
            found.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations of {dialect} are not numbered 1, 2, 3 ...: {[migration.number for migration in found]}")
    return tuple(found)


def check_version(dialect: str, version: int) -> None:
    """Raises `MigrationMissingError` or `SchemaTooNewError` unless a database at `version` fits this package."""
    migrations = load_migrations(dialect)
    if version < len(migrations):
        raise MigrationMissingError(
            f"the database schema is at migration {version}, this package needs {len(migrations)}; run `deuz db migrate`",
            found=version,
            needed=len(migrations),
        )
    check_known(version, migrations)


def check_known(version: int, migrations: Sequence[Migration]) -> None:
    """Raises `SchemaTooNewError` if a database at `version` had a migration that is not among `migrations`."""
    if version > len(migrations):
        raise SchemaTooNewError(
            f"the database schema is at migration {version}, this package knows {len(migrations)}; upgrade deuz_workers",
            found=version,
            known=len(migrations),
        )
