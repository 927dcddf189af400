"""Contexts of tool calls: what the engine says about the call, and what the application gave for its tool."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from deuz_workers.core.change import Head
from deuz_workers.core.delegation import path_of
from deuz_workers.core.effects import PlannedCall
from deuz_workers.core.names import swarm_run_id
from deuz_workers.core.run import Run
from deuz_workers.engine.executing import execution_of
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.guards import Guards
from deuz_workers.engine.hooks import Hooks
from deuz_workers.engine.stop import Stop
from deuz_workers.engine.user_code import Broken, LimitPassed
from deuz_workers.errors import RunContextError, ToolContextError
from deuz_workers.ports.context import NO_RUN_CONTEXT, RunContext, RunFacts
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.signal import Signal
from deuz_workers.ports.tool import Execution, Tool, ToolContext


async def run_context(gear: Gear, head: Head, agent: AgentDefinition, hooks: Hooks) -> RunContext:
    """What the starter of the run, or of the one at its root, gave in this process, else what the agent's function makes.

    Raises `RunContextError` where it fails, which says no value of it.
    """
    given = gear.contexts.get((head.scope, head.run_id)) or gear.contexts.get((head.scope, swarm_run_id(head.run_id)))
    if given is not None:
        return given
    if agent.make_context is None:
        return NO_RUN_CONTEXT
    tagged = head.run_id if head.parent_rid is None else swarm_run_id(head.run_id)  # a delegated run has those of its root
    facts = RunFacts(head.scope, head.run_id, head.agent, await gear.store.tags(head.scope, tagged))
    try:
        made = await hooks.ask("run_context", agent.make_context, facts)
    except Broken as broken:
        raise RunContextError(
            f"the run context of agent {agent.name!r} could not be made: {type(broken.error).__name__}", agent=agent.name
        ) from None
    except LimitPassed:
        raise RunContextError(f"the run context of agent {agent.name!r} was not there in time", agent=agent.name) from None
    if not isinstance(made, RunContext):
        raise RunContextError(
            f"the run context of agent {agent.name!r} is a {type(made).__name__}; return RunContext(tools=..., runtime=...)",
            agent=agent.name,
        )
    return made


@dataclass(slots=True)
class Contexts:
    """Of the calls of one batch."""

    head: Head
    agent: AgentDefinition
    given: RunContext
    hooks: Hooks
    stop: Stop
    step: int
    guards: Guards
    application: object = None
    _read: dict[str, Any] = field(default_factory=dict[str, Any])
    """By tool name: what its schema and validator made of the value."""

    async def problem(self, tool: Tool) -> str | None:
        """Read the tool's own value. None when its calls can have a context, else what is wrong, without the value."""
        if not tool.is_scoped or tool.name in self._read:
            return None
        try:
            self._read[tool.name] = await self.hooks.ask(tool.name, tool.read_context, self.given.tools.get(tool.name))
        except Broken as broken:
            error = broken.error
            return error.message if isinstance(error, ToolContextError) else f"its validator raised {type(error).__name__}"
        except LimitPassed:
            return "its validator took too long"
        return None

    def of(self, planned: PlannedCall, tool: Tool, signal: Signal, run: Run, attempt: int) -> ToolContext:
        """For one call, or for the question whether it may run. Raises `KeyError` unless its tool's value was read."""
        envelope = run.envelope
        left = self.head.ends_in_ms
        deadline_in_ms = None if left is None else left - self.stop.elapsed_ms
        scoped = tool.is_scoped
        return ToolContext(
            scope=envelope.scope,
            run_id=envelope.run_id,
            agent=self.agent.driver or envelope.agent,
            model_step=self.step,
            tool_call_id=planned.call.call_id,
            tool_name=tool.name,
            attempt=attempt,
            deadline_in_ms=deadline_in_ms,
            signal=signal,
            deps=None if scoped else self.agent.tool_deps,
            context=self._read[tool.name] if scoped else self.given.tools.get(tool.name),
            runtime_context=None if scoped else self.given.runtime,
            messages=run.history,
            agent_path=path_of(envelope),
            execution=self._execution(run, signal),
        )

    def _execution(self, run: Run, signal: Signal) -> Execution:
        """With what the driver of a run that was handed over forbids meanwhile."""
        made = execution_of(self.application, self.head, run, signal, self.stop)
        return replace(made, policy=made.policy.narrowed(self.agent.policy)) if self.agent.driver else made
