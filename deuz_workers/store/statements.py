"""Named SQL statements, read from `.sql` files of this package.

A file is a row of sections. ``-- name: x`` begins a statement, ``-- part: x`` a piece that statements of the same folder
include with a line ``-- include: x``, so that what several statements share is written once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

_SECTION = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_INCLUDE = re.compile(r"^ *-- include: (\w+)\n", re.MULTILINE)


@cache
def load_statements(dialect: str) -> Mapping[str, str]:
    """All statements of `sql/<dialect>/*.sql` by name, parts put in. A name twice or an unknown part is a `ValueError`."""
    found: dict[str, dict[str, str]] = {"name": {}, "part": {}}
    for file in sorted(files("deuz_workers.store").joinpath("sql", dialect).iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".sql") or file.name == "schema.sql":
            continue
        _, *sections = _SECTION.split(file.read_text("utf-8"))
        for kind, name, text in zip(sections[::3], sections[1::3], sections[2::3], strict=True):
            if name in found[kind]:
                raise ValueError(f"{dialect}/{file.name}: there are two sections '{kind}: {name}'")
            found[kind][name] = text
    return MappingProxyType({name: _with_parts(text, found["part"]) for name, text in found["name"].items()})


def _with_parts(text: str, parts: Mapping[str, str]) -> str:
    def part(match: re.Match[str]) -> str:
        if match[1] not in parts:
            raise ValueError(f"no part is named '{match[1]}'")
        return parts[match[1]].rstrip() + "\n"

    return _INCLUDE.sub(part, text).strip()
