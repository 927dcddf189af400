"""Named statements with the server's own placeholders, `$1` for the first name that a statement uses.

psycopg would look for its placeholders at every execution, and remembers what it found only of statements up to 4,096 bytes
(`psycopg/_queries.py`): 0.1 ms for every commit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from deuz_workers.store.statements import load_statements

_NAME = re.compile(r"%\((\w+)\)s")


@dataclass(frozen=True, slots=True)
class Statement:
    sql: bytes
    names: tuple[str, ...]
    """Of its parameters, in the order of their numbers."""

    def values(self, params: Mapping[str, object]) -> list[object]:
        """The parameters that the statement uses, in order. Raises `KeyError` for one that is not given."""
        return [params[name] for name in self.names]


def numbered(sql: str) -> Statement:
    """A statement with ``%(name)s`` placeholders, and ``%%`` for a percent sign."""
    names = tuple(dict.fromkeys(_NAME.findall(sql)))
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    return Statement(_NAME.sub(lambda match: numbers[match[1]], sql).replace("%%", "%").encode(), names)


@cache
def postgres_statements() -> Mapping[str, Statement]:
    """All named statements of `sql/postgres`."""
    return MappingProxyType({name: numbered(sql) for name, sql in load_statements("postgres").items()})
