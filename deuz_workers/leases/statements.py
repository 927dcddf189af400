"""The named statements of the Postgres leases: their parameters, what their answers mean. No connection is used here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, LiteralString, cast

from deuz_workers.core.marks import Marks
from deuz_workers.ports.leases import Gone, Held, Lease, Peek, Released, Renewed, Young

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One statement with its parameters."""

    sql: LiteralString
    params: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class LeaseStatements:
    """Builds calls and reads answers; the same for every connection."""

    marks: Marks

    def acquire(self, key: str, owner: str, ttl_ms: int, revision: int, force: bool, nonce: str) -> Call:
        mark = self.marks.write(key, revision)
        ttl = f"{ttl_ms} milliseconds"
        return _call("acquire", key=key, owner=owner, ttl=ttl, mark=mark, force=force, nonce=nonce)

    def acquired(self, row: Row, key: str, owner: str, ttl_ms: int, revision: int) -> Lease | Held | Young:
        holder, token, epoch, predecessor, mark, ms_left, ms_until_old = row
        if holder is None:
            return Young(ms_until_old, epoch)
        if holder != owner:
            return Held(ms_left, holder)
        return Lease(key, owner, token, epoch, ttl_ms, predecessor, max(revision, self.marks.read(key, mark)))

    def renew(self, leases: Sequence[Lease]) -> Call:
        return _call(
            "renew",
            keys=[lease.key for lease in leases],
            owners=[lease.owner for lease in leases],
            tokens=[lease.token for lease in leases],
            ttls=[lease.ttl_ms for lease in leases],
            marks=[self.marks.write(lease.key, lease.revision_seen) for lease in leases],
            epochs=[lease.epoch for lease in leases],
        )

    def renewed(self, rows: Sequence[Row], leases: Sequence[Lease]) -> list[Renewed | Gone]:
        return [
            Renewed(replace(lease, epoch=epoch), signal) if renewed else Gone()
            for (renewed, epoch, signal), lease in zip(rows, leases, strict=True)
        ]

    def release(self, lease: Lease) -> Call:
        return _call("release", key=lease.key, owner=lease.owner, token=lease.token, epoch=lease.epoch)

    def released(self, row: Row) -> Released | Gone:
        return Gone() if row[0] is None else Released(again=row[0])

    def signal(self, key: str, kind: Literal["cancel", "drain"]) -> Call:
        return _call("signal", key=key, kind=kind)

    def peek(self, key: str) -> Call:
        return _call("peek", key=key)

    def peeked(self, row: Row) -> Peek:
        ms_left, age_ms, owner = row
        return Peek(ms_left, age_ms, owner or "")

    def sweep(self, limit: int) -> Call:
        return _call("sweep", limit=limit)


def _call(name: str, **params: object) -> Call:
    return Call(_statements()[name], params)


@cache
def _statements() -> Mapping[str, LiteralString]:
    """Those of `lease.sql` by name, ``-- include: x`` replaced by what stands under ``-- name: x``."""
    text = Path(__file__).with_name("lease.sql").read_text(encoding="utf-8")
    _, *sections = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    found = dict(zip(sections[::2], sections[1::2], strict=True))
    whole = {
        name: re.sub(r"^-- include: (\w+)\n", lambda part: found[part[1]].rstrip() + "\n", sql, flags=re.MULTILINE).strip()
        for name, sql in found.items()
    }
    return MappingProxyType(cast(dict[str, LiteralString], whole))
