"""Agents that delegate, with scripted models, and what these were told."""

from __future__ import annotations

from typing import Any

from deuz_workers import (
    Agent,
    MockModel,
    ToolContext,
    tool,
)
from deuz_workers.core.delegation import child_run_id
from deuz_workers.providers.script import Entry, call, calls
from tests.app.world import Effects


def scripted(name: str, *script: Entry, **given: Any) -> Agent:
    return Agent(name, model=MockModel(script), **given)


def requests(agent: Agent) -> list[list[tuple[str, str]]]:
    """What the agent's model was sent, as (role, text)."""
    model = agent.model
    assert isinstance(model, MockModel)
    return [[(message.role, message.text) for message in request.messages] for request in model.requests]


def told(agent: Agent) -> list[tuple[str, bool]]:
    """Results of calls in the newest request."""
    model = agent.model
    assert isinstance(model, MockModel)
    return [(part.text, part.is_error) for message in model.requests[-1].messages for part in message.tool_results]


def boss(*subs: Agent, turns: int = 1, **given: Any) -> Agent:
    """Asks each of `subs` in its first turn."""
    asks = calls(*(call(sub.name, prompt=f"ask {sub.name}") for sub in subs))
    return scripted("boss", *([asks] * turns), "done", tools=subs, **given)


def ask(name: str, call_id: str = "call_1_1", parent: str = "r") -> str:
    return child_run_id(parent, name, 1, call_id)


def gated(done: Effects, *script: Entry, name: str = "payer", **given: Any) -> Agent:
    @tool(needs_approval=True)
    async def pay(context: ToolContext, to: str) -> str:
        done(f"{context.run_id} {to}")
        return f"paid {to}"

    made = script or (calls(call("pay", to="ann")), "paid")
    return scripted(name, *made, tools=[pay], **given)
