"""Agents with tool servers in memory, and what was stored of their runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from deuz_workers import Agent, AgentResult, McpServer, MockModel, stream_agent
from deuz_workers.testing.mcp_client import MemoryMcpServer
from tests.app.world import World

URL = "http://127.0.0.1:1/"
NUMBER: Mapping[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}


def shop(*tools: str, name: str | None = "shop", **given: Any) -> MemoryMcpServer:
    """One whose tools answer with their names."""
    made = MemoryMcpServer(name, **given)
    for tool in tools:
        made.add(tool, _answers(tool), description=f"Does {tool}.", schema=NUMBER)
    return made


def _answers(tool: str) -> Any:
    def act(**given: Any) -> str:
        return f"{tool} done"

    return act


async def streamed(made: Agent, world: World, run_id: str = "r") -> tuple[list[Any], AgentResult[Any]]:
    """All events of a run and its result."""
    stream = stream_agent(made, "go", run_id=run_id, store=world.store)
    return [event async for event in stream.events], await stream.result


def warnings_in(events: list[Any]) -> list[Any]:
    """Data of the parts that warn."""
    return [event.part.warning for event in events if event.type == "part" and event.part.type == "warning"]


def connects(monkeypatch: pytest.MonkeyPatch, *servers: MemoryMcpServer) -> list[McpServer]:
    """Entries by URL that lead to these servers."""
    by_url = {f"{URL}{place}": server for place, server in enumerate(servers)}

    async def connect(entry: McpServer) -> Any:
        return by_url[entry.url or ""].client()

    monkeypatch.setattr("deuz_workers.tools.mcp.pool.connect_mcp", connect)
    return [McpServer(url=url) for url in by_url]


def agent(script: list[Any], *mcp: Any, **given: Any) -> Agent:
    return Agent("x", model=MockModel(script), mcp=mcp, **given)


def offered(model: Any, request: int = -1) -> list[str]:
    """Names of the tools in a request."""
    assert isinstance(model, MockModel)
    return sorted(spec.name for spec in model.requests[request].tools)


async def catalog(world: World, run_id: str = "r") -> Mapping[str, str] | None:
    """As stored."""
    return json.loads((await world.head(run_id)).body).get("binding", {}).get("mcp")
