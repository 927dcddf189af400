"""Verdicts as callers give them, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from deuz_workers.errors import ConfigurationError

Verdict = bool | Mapping[str, object]
"""True or False, or a mapping with `approved`, and perhaps `reason`, `by` and the request's `token`. Where a call runs again
that several people have to agree to, `by` is the list of their names."""
Verdicts = Mapping[str, Verdict] | Iterable[Mapping[str, object]]
"""By approval id, or records that have an `approval_id`."""

NO_VERDICTS: Mapping[str, Verdict] = {}


def verdicts_of(given: Verdicts) -> dict[str, Mapping[str, object]]:
    """Records by name. Raises `ConfigurationError` for two of one name, and for what is no verdict."""
    if isinstance(given, Mapping):
        named = [(name, _record(verdict)) for name, verdict in cast(Mapping[str, Verdict], given).items()]
    else:
        named = [(str(record.get("approval_id")), record) for record in given]
    found: dict[str, Mapping[str, object]] = {}
    for name, record in named:
        if not isinstance(record.get("approved"), bool):
            raise ConfigurationError(f"the verdict on {name!r} is True, False, or a mapping with `approved`")
        if not isinstance(record.get("reason", ""), str | None):
            raise ConfigurationError(f"the reason of the verdict on {name!r} is text")
        if not _is_who(record.get("by")):
            raise ConfigurationError(f"`by` of the verdict on {name!r} is a name, or a list of names")
        if name in found:
            raise ConfigurationError(f"there are two verdicts on {name!r}; give one")
        found[name] = {part: value for part, value in record.items() if part in ("approved", "reason", "by", "token")}
    return found


def _is_who(by: object) -> bool:
    names = cast("list[object]", by) if isinstance(by, list | tuple) else [by]
    return by is None or all(isinstance(name, str) and name.isprintable() and name == name.strip() != "" for name in names)


def _record(verdict: Verdict) -> Mapping[str, object]:
    return {"approved": verdict} if isinstance(verdict, bool) else verdict
