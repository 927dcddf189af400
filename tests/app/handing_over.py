"""Agents that hand their runs over, with scripted models: one entry per turn of the conversation, whoever drives it."""

from __future__ import annotations

from typing import Any

from deuz_workers import Agent, MockModel, ToolContext, tool
from deuz_workers.core.messages import ToolResultPart
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.script import Entry, ScriptedReply, call, calls
from tests.app.world import Effects

NEVER = "never said"


def member(name: str, *script: Entry, **given: Any) -> Agent:
    """With a model and instructions that only it has."""
    return Agent(name, model=MockModel(script, model=name), instructions=f"You are {name}.", **given)


def to(name: str, reason: str | None = None) -> ScriptedReply:
    """The turn that hands over."""
    asked = call(f"transfer_to_{name}", reason=reason) if reason else call(f"transfer_to_{name}")
    return calls(asked.with_id(f"to-{name}"))


def asked(agent: Agent) -> tuple[ModelRequest, ...]:
    """What the agent's model was sent."""
    assert isinstance(agent.model, MockModel)
    return agent.model.requests


def offered(agent: Agent, place: int = -1) -> list[str]:
    """Names of the tools of a request to the agent's model."""
    return [spec.name for spec in asked(agent)[place].tools]


def results(agent: Agent) -> list[ToolResultPart]:
    """All results of calls in the newest request to the agent's model."""
    return [part for message in asked(agent)[-1].messages for part in message.tool_results]


def paying(done: Effects, name: str = "pay", **options: Any) -> Any:
    """A tool that leaves a trace with the name of the agent that it was called by."""

    @tool(name=name, **options)
    async def pay(context: ToolContext) -> str:
        done(f"{name} {context.agent}")
        return f"paid by {context.agent}"

    return pay
