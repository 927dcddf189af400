"""Agents that runs are handed over to: as options of an agent, and resolved in its application."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from deuz_workers.app.agent import Agent
from deuz_workers.app.compaction import check_compaction
from deuz_workers.app.names import check_name
from deuz_workers.core.envelope import AgentRunEnvelope
from deuz_workers.core.handoff import driver_of
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.definition import AgentDefinition, driven, with_transfers
from deuz_workers.tools.options import NeedsApproval
from deuz_workers.tools.transfer import TransferTool, transfer_tool


def handoff(
    agent: Agent | str, *, name: str | None = None, description: str | None = None, needs_approval: NeedsApproval = False
) -> TransferTool:
    """An agent that a run may be handed over to, for `Agent(handoffs=[...])`, where the agent alone means the same.

    The model is offered a tool `transfer_to_<agent>` with an optional `reason`. Once a call of it is accepted, the run goes on
    with the instructions, tools and model of that agent, from the next turn on; the conversation, and all that belongs to the
    run, stays. See docs/handoffs.md.

    Args:
        agent: or the name of one that the application has; by name two agents may hand over to each other.
        name: of the tool. description: tells the model what the agent is good for.
        needs_approval: as of any tool.

    Raises: ConfigurationError for what cannot be meant.
    """
    to = agent.name if isinstance(agent, Agent) else check_name("an agent", agent)
    target = agent if isinstance(agent, Agent) else None
    return transfer_tool(to, name=name, description=description, needs_approval=needs_approval, target=target)


def with_team(agent: Agent, agents: Mapping[str, Agent]) -> AgentDefinition:
    """The definition of `agent` with everybody that a run of it may be handed to: its handoffs, theirs, and so on.

    Raises `ConfigurationError` for a target that `agents` has not, for one with tool servers, for two transfers of one name,
    and where the agent's compaction cannot work with a target's model.
    """
    if not agent.handoffs:
        return agent.definition
    transfers: dict[str, Any] = {}
    team: dict[str, Agent] = {}
    asked = [agent]
    for one in asked:  # grows while it is walked
        for tool in one.handoffs:
            to = tool.transfers_to
            transfers.setdefault(to, tool)
            if to != agent.name and to not in team:
                team[to] = _without_servers(agent, _known(one, to, agents))
                asked.append(team[to])
    transfers.setdefault(agent.name, transfer_tool(agent.name))
    _check_names(agent, transfers)
    if agent.definition.compaction is not None:
        check_compaction(agent.name, agent.definition.compaction, [one.model for one in team.values()])
    members = {name: one.definition for name, one in team.items()}
    made = replace(agent.definition, team=members, transfers=transfers)
    return replace(made, tools=with_transfers(made, made.tools, agent.name))


def as_executed(agent: AgentDefinition, envelope: AgentRunEnvelope) -> AgentDefinition:
    """`agent` as the turn of its run is executed whose calls are open; another build's team is not looked into."""
    driver = driver_of(agent.name, envelope.handoffs, envelope.checkpoint.step)
    return driven(agent, driver) if driver in agent.team else agent


def handoffs_of(agent: str, given: Iterable[Agent | str | TransferTool]) -> tuple[TransferTool, ...]:
    """Raises `ConfigurationError` for what is no agent, for one that is there twice and for the agent itself."""
    if isinstance(given, str):
        raise ConfigurationError(f"agent {agent!r}: handoffs is a list of agents, not a text")
    found: dict[str, TransferTool] = {}
    for item in given:
        if not isinstance(item, Agent | str | TransferTool):  # pyright: ignore[reportUnnecessaryIsInstance] - what users pass
            raise ConfigurationError(f"agent {agent!r}: a {type(item).__name__} is no handoff; pass agents or handoff(...)")
        tool = item if isinstance(item, TransferTool) else handoff(item)
        if tool.transfers_to == agent:
            raise ConfigurationError(f"agent {agent!r} cannot hand over to itself; leave it out of handoffs")
        if tool.transfers_to in found:
            raise ConfigurationError(f"agent {agent!r}: {tool.transfers_to!r} is there twice among handoffs; leave one out")
        found[tool.transfers_to] = tool
    return tuple(found.values())


def _known(one: Agent, to: str, agents: Mapping[str, Agent]) -> Agent:
    if to not in agents:
        raise ConfigurationError(
            f"agent {one.name!r} hands over to {to!r}, which the application does not have; give it to Deuz([...]) too"
        )
    return agents[to]


def _without_servers(agent: Agent, target: Agent) -> Agent:
    """A run records what the servers of its own agent offer, and of nobody else: such tools would be missing without a word."""
    if target.definition.mcp is not None:
        raise ConfigurationError(
            f"agent {agent.name!r}: runs cannot be handed over to {target.name!r}, which has tool servers (mcp); let it be "
            "called as a tool instead, see agent_tool"
        )
    return target


def _check_names(agent: Agent, transfers: Mapping[str, TransferTool]) -> None:
    by_name: dict[str, str] = {}
    for to, tool in transfers.items():
        other = by_name.setdefault(tool.name, to)
        if other != to:
            raise ConfigurationError(
                f"agent {agent.name!r}: transfers to {other!r} and to {to!r} are both called {tool.name!r}; give one another "
                "name with handoff(..., name=...)"
            )
