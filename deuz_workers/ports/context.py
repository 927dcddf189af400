"""What an application hands to tools and hooks of a run: made anew by every process that works on it, never stored or sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

NO_TAGS: Mapping[str, str] = MappingProxyType({})
NO_CONTEXTS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a process knows of a run before anything of it is executed."""

    scope: str
    run_id: str
    agent: str
    tags: Mapping[str, str] = field(default_factory=lambda: NO_TAGS)
    """As enqueued."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """Values of one run in one process. They are handed on as they are: never copied, compared, shown or stored."""

    tools: Mapping[str, Any] = field(default_factory=lambda: NO_CONTEXTS, repr=False)
    """By tool name; a tool sees its own entry alone, as `ToolContext.context`."""
    runtime: Any = field(default=None, repr=False)
    """For every hook and tool, as `runtime_context`; tools with a `context_schema` do not get it."""


MakeContext = Callable[[RunFacts], RunContext | Awaitable[RunContext]]
"""Registered with an agent, since neither value can travel in a queue."""

NO_RUN_CONTEXT = RunContext()


def given_context(tools_context: Mapping[str, Any] | None, runtime_context: Any) -> RunContext | None:
    """What the caller of a run gave; None: nothing, so the agent's function is asked."""
    if tools_context is None and runtime_context is None:
        return None
    return RunContext(tools_context or NO_CONTEXTS, runtime_context)
