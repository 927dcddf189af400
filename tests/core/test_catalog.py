"""Fingerprints of tools, and how two catalogs differ."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from deuz_workers import ConfigurationError, ToolDrift, detect_tool_drift, fingerprint_tools
from deuz_workers.core.catalog import across_resume, mid_run
from deuz_workers.tools.mcp.server import McpServer
from deuz_workers.tools.mcp.tool import McpTool

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def definition(name: str = "charge", **given: Any) -> dict[str, Any]:
    return {"name": name, "description": "Charges.", "inputSchema": SCHEMA, **given}


@pytest.mark.spec("MCD-001")
def test_name_description_and_input_schema_are_what_counts() -> None:
    """SHA-256 in hexadecimal, whatever the order of keys; each of the three changes it, an output schema does not."""
    [(name, digest)] = fingerprint_tools([definition()]).items()
    assert (name, len(digest), set(digest) <= set("0123456789abcdef")) == ("charge", hashlib.sha256().digest_size * 2, True)
    turned = json.loads(json.dumps(definition(), sort_keys=True))
    turned["inputSchema"] = dict(reversed(turned["inputSchema"].items()))
    assert fingerprint_tools([dict(reversed(turned.items()))]) == {"charge": digest}
    assert fingerprint_tools([definition(outputSchema={"type": "object"}, title="T", annotations={})]) == {"charge": digest}
    for other in (definition(description="Charges twice."), definition(inputSchema={**SCHEMA, "required": []})):
        assert fingerprint_tools([other])["charge"] != digest
    assert fingerprint_tools([definition("charge2")])["charge2"] != digest


@pytest.mark.spec("MCD-001")
def test_a_name_that_is_there_twice_is_an_error() -> None:
    """Neither could be told from the other."""
    with pytest.raises(ConfigurationError, match="two tools are called 'charge'"):
        fingerprint_tools([definition(), definition(description="Another.")])


@pytest.mark.spec("MCD-002")
def test_drift_names_what_was_added_removed_and_changed() -> None:
    """One of each; equal catalogs have none."""
    before = fingerprint_tools([definition("kept"), definition("gone"), definition("charge")])
    after = fingerprint_tools([definition("kept"), definition("refund"), definition("charge", description="Charges more.")])
    assert detect_tool_drift(before, after) == ToolDrift(("refund",), ("gone",), ("charge",))
    assert detect_tool_drift(before, before).is_empty


@pytest.mark.spec("MCD-003")
@pytest.mark.parametrize("raw", [definition(), {"name": "bare"}, definition(description=None)])
def test_definitions_and_tools_have_the_same_fingerprint(raw: dict[str, Any]) -> None:
    """As the server sends them and as an agent has them."""

    async def call(name: str, arguments: Any, may_repeat: bool) -> Any:
        raise AssertionError

    server = McpServer(url="http://127.0.0.1:1/mcp")
    assert fingerprint_tools([McpTool(raw["name"], raw, server, call)]) == fingerprint_tools([raw])


def test_sentences_name_the_groups_that_are_not_empty() -> None:
    """Added, removed, changed, in that order, names separated by commas."""
    drift = ToolDrift(("a", "refund"), ("gone",), ("charge",))
    groups = "added: a, refund; removed: gone; changed: charge"
    assert across_resume(drift, accepted=False) == f"MCP tool catalog changed across resume ({groups})."
    kept = "the run's resume binding now records the new catalog."
    assert across_resume(ToolDrift(("refund",)), accepted=True) == (
        f"MCP tool catalog changed across resume (added: refund); {kept}"
    )
    assert mid_run(ToolDrift(("refund",)), accepted=True) == f"MCP tool catalog changed mid-run (added: refund); {kept}"
    assert mid_run(ToolDrift(("refund",)), accepted=False).startswith("MCP tool catalog changed mid-run (added: refund); ")
