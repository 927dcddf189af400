"""Runs that are started in the execution context of another one, and what they are held to."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from deuz_workers.core.envelope import AgentRunEnvelope
from deuz_workers.core.memory import MemoryScope
from deuz_workers.core.nested import Nested
from deuz_workers.errors import ConfigurationError, ExecutionPolicyError
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.execution import Execution, Link

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz


def link_of(execution: Execution) -> Link:
    """Raises `ConfigurationError` for a context that no run is executed in."""
    if execution.link is None:
        raise ConfigurationError("this execution context belongs to no run; pass that of a tool's or verifier's context")
    return execution.link


def home_of(execution: Execution) -> Deuz:
    """The application that executes the run above."""
    return cast("Deuz", link_of(execution).application)


def scope_below(execution: Execution | None, scope: str) -> str:
    """Of a run in that context. Raises `ConfigurationError` where another one than that of the run above is named."""
    if execution is None:
        return scope
    if scope not in ("default", execution.scope):
        raise ConfigurationError(
            f"a run in the context of {execution.run_id!r} has its scope {execution.scope!r}, not {scope!r}"
        )
    return execution.scope


def nested_in(execution: Execution) -> Nested:
    return Nested(execution.run_id, execution.root, execution.depth + 1, execution.scope_id, execution.widest_memory)


def check_nested(envelope: AgentRunEnvelope, execution: Execution | None) -> None:
    """A run that began in a context goes on in the same part of the same ledger (LED-007).

    Raises `ExecutionPolicyError`; nothing was written.
    """
    nested, given = envelope.nested, None if execution is None else nested_in(execution)
    if nested is None and given is None:
        return
    if nested is None:
        text = f"run {envelope.run_id!r} was started in no execution context; resume it without `execution`"
    elif given is None:
        text = (
            f"run {envelope.run_id!r} is charged to {nested.scope_id!r}, a part of the ledger of run {nested.root!r}, and "
            "cannot start one of its own; resume it with `execution`, the context that it was started in"
        )
    elif (nested.root, nested.scope_id) != (given.root, given.scope_id):
        text = f"run {envelope.run_id!r} is charged to {nested.scope_id!r}, and this context is {given.scope_id!r}"
    else:
        return
    raise ExecutionPolicyError(text, code="execution_context", run_id=envelope.run_id)


@contextmanager
def remembering(execution: Execution, agent: AgentDefinition | None) -> Generator[None]:
    """While this is open, further runs that are given this very context have the memories of this one, or of fewer (MEM-029).

    Of an agent whose function says whose memories its runs have, that is not known before they begin.
    """
    scope = None if agent is None or agent.memory is None else agent.memory.scope
    widest = execution.widest_memory
    if not isinstance(scope, MemoryScope) or (widest is not None and not scope.narrows(widest)):  # the run fails at its start
        yield
        return
    execution.active.append(scope)
    try:
        yield
    finally:
        del execution.active[next(at for at, one in enumerate(execution.active) if one is scope)]
