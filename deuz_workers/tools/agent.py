"""Agents as tools: a call is done by another agent, as a run of its own that any worker executes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from deuz_workers.core.usage import Budget
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.tool import Delegation
from deuz_workers.tools.arguments import Arguments
from deuz_workers.tools.elsewhere import ElsewhereTool
from deuz_workers.tools.options import MAX_RESULT_BYTES, NeedsApproval, Options
from deuz_workers.tools.projection import Convert, Projection

Stream = Literal["all", "none"]

PROMPT: Mapping[str, object] = {
    "type": "object",
    "properties": {"prompt": {"type": "string", "description": "What to do, with all that is needed for it."}},
    "required": ["prompt"],
    "additionalProperties": False,
}


class AgentTool(ElsewhereTool):
    """Implements `Tool`. `target`: the agent itself where it is known, so that its application finds it."""

    def __init__(
        self, options: Options, arguments: Arguments, projection: Projection, delegation: Delegation, target: Any = None
    ) -> None:
        super().__init__(options, arguments, projection)
        self._delegation = delegation
        self.done_by = f"done by a run of agent {delegation.agent!r}"
        self.target = target

    def __repr__(self) -> str:
        return f"<tool {self.name} of agent {self._delegation.agent}>"

    @property
    def delegation(self) -> Delegation:
        return self._delegation

    @property
    def is_client(self) -> bool:
        return False


def delegating_tool(
    agent: str,
    *,
    name: str,
    description: str,
    target: Any = None,
    max_depth: int = 2,
    stream: Stream = "all",
    budget: Budget | None = None,
    concurrency_key: str | None = None,
    needs_approval: NeedsApproval = False,
    to_model_output: Convert | None = None,
    max_result_bytes: int = MAX_RESULT_BYTES,
) -> AgentTool:
    """A tool with the input `{prompt}` whose result is what a run of `agent` ends with. See `app.subagents.agent_tool`.

    Raises `ConfigurationError` for what cannot be meant.
    """
    if type(max_depth) is not int or max_depth < 1:
        raise ConfigurationError(f"tool '{name}': max_depth is a whole number from 1, not {max_depth!r}")
    if stream not in ("all", "none"):
        raise ConfigurationError(f"tool '{name}': stream is 'all' or 'none', not {stream!r}")
    return AgentTool(
        Options(name, description, None, needs_approval, None, max_result_bytes),
        Arguments.from_schema(name, PROMPT),
        Projection(name, None, None, to_model_output),
        Delegation(agent, max_depth, stream, budget, concurrency_key),
        target,
    )
