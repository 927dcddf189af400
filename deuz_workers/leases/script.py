"""The Lua script of the Redis leases: its keys, its arguments, what its answers mean. No connection is used here."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from deuz_workers.core.marks import Marks
from deuz_workers.ports.leases import Gone, Held, Lease, Peek, Released, Renewed, Young

SCRIPT = Path(__file__).with_name("lease.lua").read_text(encoding="utf-8")
SHA1 = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
"""What EVALSHA calls it."""

KEYS = 4
Call = tuple[str | int, ...]
"""Keys and arguments of one call of the script, as EVAL and EVALSHA take them after the number of keys."""


@dataclass(frozen=True, slots=True)
class LeaseScript:
    """Builds calls and reads answers; the same for every connection. `prefix` begins every key."""

    prefix: str
    marks: Marks

    def acquire(self, key: str, owner: str, ttl_ms: int, revision: int, force: bool) -> Call:
        return self._call(key, "acquire", owner, ttl_ms, self.marks.write(key, revision), int(force))

    def acquired(self, answer: Sequence[object], key: str, owner: str, ttl_ms: int, revision: int) -> Lease | Held | Young:
        match answer:
            case [1, int(token), str(epoch), str(predecessor), str(mark)]:
                how = cast(Literal["none", "lapsed", "mine"], predecessor)
                return Lease(key, owner, token, epoch, ttl_ms, how, max(revision, self.marks.read(key, mark)))
            case [0, "held", int(ms_left), str(holder)]:
                return Held(ms_left, holder)
            case [0, "young", int(ms_until_old), str(epoch)]:
                return Young(ms_until_old, epoch)
            case _:
                raise _not_ours("acquire")

    def renew(self, lease: Lease) -> Call:
        mark = self.marks.write(lease.key, lease.revision_seen)
        return self._call(lease.key, "renew", lease.owner, lease.ttl_ms, mark, lease.token, lease.epoch)

    def renewed(self, answer: Sequence[object], lease: Lease) -> Renewed | Gone:
        match answer:
            case [1, int(token), str(epoch), str(signal)]:
                return Renewed(replace(lease, token=token, epoch=epoch), cast(Literal["", "cancel", "drain"], signal))
            case [0, "gone"]:
                return Gone()
            case _:
                raise _not_ours("renew")

    def release(self, lease: Lease) -> Call:
        return self._call(lease.key, "release", lease.owner, lease.token, lease.epoch)

    def released(self, answer: Sequence[object]) -> Released | Gone:
        match answer:
            case [1, int(again)]:
                return Released(bool(again))
            case [0, "gone"]:
                return Gone()
            case _:
                raise _not_ours("release")

    def signal(self, key: str, kind: Literal["cancel", "drain"]) -> Call:
        return self._call(key, "signal", kind)

    def peek(self, key: str) -> Call:
        return self._call(key, "peek")

    def peeked(self, answer: Sequence[object]) -> Peek:
        match answer:
            case [int(ms_left), int(age_ms), str(owner)]:
                return Peek(None if ms_left < 0 else ms_left, age_ms, owner)
            case _:
                raise _not_ours("peek")

    def _call(self, key: str, verb: str, *arguments: str | int) -> Call:
        names = (f"lease:{key}", f"lease-cancel:{key}", "lease-epoch", "lease-tokens")
        return (*(self.prefix + name for name in names), verb, secrets.token_hex(8), *arguments)


def _not_ours(verb: str) -> TypeError:
    return TypeError(f"the lease script gave an answer to {verb!r} that this version does not know")
