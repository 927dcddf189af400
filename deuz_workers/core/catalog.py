"""What the tool servers of an agent (MCP) offer, as a run records it: fingerprints by name, and how two of them differ.

The catalog is the one part of a binding that is not compared by equality: a server changes when its owner deploys it, not when
this application does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from deuz_workers.core.codec import digest
from deuz_workers.core.envelope import CATALOG
from deuz_workers.core.run import Run
from deuz_workers.errors import ConfigurationError

CATALOG_CHANGED = "mcp-catalog-changed"
"""Reason of a run that was stopped because its servers offer other tools."""
SETTING = "mcp"
"""Of warnings about tool servers."""

ENDED = frozenset(("executed", "failed", "completed", "validation-failed", "projection-failed"))
"""Stages of a receipt whose call the server will not see again."""

Fingerprints = Mapping[str, str]
"""Digest of each tool by its name."""


@dataclass(frozen=True, slots=True)
class ToolDrift:
    """Names of tools in which two catalogs differ, each group sorted."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.changed)

    @property
    def groups(self) -> str:
        """Those that are not empty: `added: refund; changed: charge`."""
        named = (("added", self.added), ("removed", self.removed), ("changed", self.changed))
        return "; ".join(f"{group}: {', '.join(names)}" for group, names in named if names)

    def to_record(self) -> dict[str, object]:
        named = (("added", self.added), ("removed", self.removed), ("changed", self.changed))
        return {group: list(names) for group, names in named if names}


def fingerprint_tools(tools: Iterable[object]) -> dict[str, str]:
    """Name, description and input schema of each tool, as SHA-256 by name; other metadata is left out.

    `tools`: definitions as a server sends them (`name`, `description`, `inputSchema`), or tools of an agent. The order of keys
    does not matter. Raises `ConfigurationError` for a name that is there twice, and for what is no tool.
    """
    found: dict[str, str] = {}
    for tool in tools:
        name, description, schema = _seen_by_model(tool)
        if name in found:
            raise ConfigurationError(f"two tools are called {name!r}, so neither has a fingerprint of its own; rename one")
        found[name] = digest({"name": name, "description": description, "input_schema": object_schema(schema)})
    return found


def object_schema(schema: Mapping[str, object] | None) -> dict[str, object]:
    """An input schema as it is offered: of type object also where the server left that out."""
    return {"type": "object", **(schema or {})}


def detect_tool_drift(before: Fingerprints, after: Fingerprints) -> ToolDrift:
    """What `after` has, lacks and has otherwise."""
    return ToolDrift(
        tuple(sorted(after.keys() - before.keys())),
        tuple(sorted(before.keys() - after.keys())),
        tuple(sorted(name for name in before.keys() & after.keys() if before[name] != after[name])),
    )


def recorded_catalog(binding: Mapping[str, object] | None) -> Fingerprints | None:
    """None: the run has not begun, or began without tool servers."""
    recorded = None if binding is None else binding.get(CATALOG)
    return cast(Fingerprints, recorded) if isinstance(recorded, Mapping) else None


def without_catalog(binding: Mapping[str, object]) -> dict[str, object]:
    """What of a binding is compared by equality. A catalog that is none of ours stays, and so matches nothing."""
    return {name: value for name, value in binding.items() if name != CATALOG or not isinstance(value, Mapping)}


def open_server_calls(run: Run) -> tuple[str, ...]:
    """Names of tools of recorded servers that the newest turn calls and whose calls have not ended: interrupted, waiting for
    an answer, or not started (MCM-003)."""
    recorded = recorded_catalog(run.envelope.binding) or {}
    open_calls = (call for call in run.open_calls if call.name in recorded)
    return tuple(
        call.name for call in open_calls if (receipt := run.receipts.get(call.call_id)) is None or receipt.stage not in ENDED
    )


def across_resume(drift: ToolDrift, *, accepted: bool) -> str:
    """What is said of a run that meets other tools when it is taken up again."""
    return _sentence("across resume", drift, "the run's resume binding now records the new catalog" if accepted else None)


def mid_run(drift: ToolDrift, *, accepted: bool) -> str:
    """What is said of a run whose servers change while it goes on."""
    kept = "the run's resume binding keeps the old one, and the run was stopped"
    return _sentence("mid-run", drift, "the run's resume binding now records the new catalog" if accepted else kept)


def _sentence(when: str, drift: ToolDrift, what_follows: str | None) -> str:
    told = f"MCP tool catalog changed {when} ({drift.groups})"
    return f"{told}." if what_follows is None else f"{told}; {what_follows}."


def _seen_by_model(tool: object) -> tuple[str, str, Mapping[str, object] | None]:
    if isinstance(tool, Mapping):
        raw = cast(Mapping[str, Any], tool)
        given = raw.get("name"), raw.get("description"), raw.get("inputSchema", raw.get("input_schema"))
    else:
        spec: Any = getattr(tool, "spec", tool)
        schema = getattr(spec, "parameters", None) or getattr(spec, "input_schema", None)
        given = getattr(spec, "name", None), getattr(spec, "description", None), schema
    name, description, schema = given
    if not isinstance(name, str) or not (schema is None or isinstance(schema, Mapping)):
        raise ConfigurationError(f"a {type(tool).__name__} is no tool: it needs a name and an input schema")
    return name, description or "", cast("Mapping[str, object] | None", schema)
