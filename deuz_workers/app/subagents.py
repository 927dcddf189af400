"""Agents that others delegate to: as tools, and as parts of an application."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deuz_workers.app.agent import Agent
from deuz_workers.app.names import check_name
from deuz_workers.core.usage import Budget, check_budget
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.context import RunContext
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.tools.agent import AgentTool, Stream, delegating_tool
from deuz_workers.tools.options import MAX_RESULT_BYTES, NeedsApproval
from deuz_workers.tools.projection import Convert


def agent_tool(
    agent: Agent | str,
    *,
    name: str | None = None,
    description: str | None = None,
    max_depth: int = 2,
    stream: Stream = "all",
    budget: Budget | None = None,
    needs_approval: NeedsApproval = False,
    to_model_output: Convert | None = None,
    max_result_bytes: int = MAX_RESULT_BYTES,
) -> AgentTool:
    """An agent as a tool with the input `{prompt}`: each call is a run of its own, whose output is the result.

    The run is created in the commit of the one that calls, in the same queue, and executed by any worker; the caller is
    suspended meanwhile and holds no worker. It begins with the agent's own instructions and the prompt, and may do no more than
    its caller: policy, deadline and budgets above it hold, and the caller's guardrails of calls and results.

    Args:
        agent: or the name of one that the application has; by name an agent may delegate to itself.
        name: of the tool; None: the agent's. description: tells the model what it is good for.
        max_depth: how deep below the root its runs may be; a model that asks for a deeper one is told so.
        stream: `none`: readers of the root's stream are told the result alone.
        budget: of each run, beside those above it; None: the agent's own.

    Raises: ConfigurationError for what cannot be meant.
    """
    called = agent.name if isinstance(agent, Agent) else check_name("an agent", agent)
    own = agent.budget if isinstance(agent, Agent) else None
    return delegating_tool(
        called,
        name=name or called.replace(".", "_"),
        description=description or f"Delegates to the agent {called}, which sees the prompt and nothing else, and answers.",
        target=agent if isinstance(agent, Agent) else None,
        max_depth=max_depth,
        stream=stream,
        budget=own if budget is None else check_budget(f"the tool of agent {called!r}", budget),
        concurrency_key=agent.concurrency_key if isinstance(agent, Agent) else None,
        needs_approval=needs_approval,
        to_model_output=to_model_output,
        max_result_bytes=max_result_bytes,
    )


def with_subagents(agents: Iterable[Agent]) -> list[Agent]:
    """`agents`, then all that they delegate or hand over to and are not among them, each once.

    Raises `ConfigurationError` where one of these has the name of another one.
    """
    found = list(agents)
    by_name = {agent.name: agent for agent in found}
    for agent in found:  # grows while it is walked
        for target in targets_of(agent):
            known = by_name.setdefault(target.name, target)
            if known is not target:
                raise ConfigurationError(
                    f"agent {agent.name!r} delegates or hands over to {target.name!r}, and the application has another one of "
                    "that name; rename one of them"
                )
            if not any(known is other for other in found):
                found.append(target)
    return found


def targets_of(agent: Agent) -> list[Agent]:
    """Agents that its tools delegate to, or that it hands over to, as far as they are objects."""
    targets: list[Any] = [getattr(tool, "target", None) for tool in (*agent.tools.values(), *agent.handoffs)]
    return [target for target in targets if isinstance(target, Agent)]


def check_context(agent: AgentDefinition | None, context: RunContext | None) -> None:
    """Raises `ConfigurationError` for a value that is given to a tool which another agent does."""
    if agent is None or context is None:
        return
    for name in context.tools:
        if name in agent.tools and agent.tools[name].delegation is not None:
            raise ConfigurationError(
                f"tools_context has a value for {name!r}, which is another agent; name that agent's own tools instead"
            )
