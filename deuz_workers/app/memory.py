"""What an agent remembers, as an application writes it."""

from __future__ import annotations

from typing import NoReturn, get_args

from deuz_workers.core.memory import MemoryScope
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.memory import OPERATIONS, Memory, MemorySeams, WritePolicy, keeps_memories

MOST_MEMORIES = 1_000


def check_memory(agent: str, memory: object) -> Memory | None:
    """The memory. Raises `ConfigurationError`, naming the agent and what cannot be meant."""
    if memory is None:
        return None
    if not isinstance(memory, Memory):
        raise ConfigurationError(f"agent {agent!r}: memory is a {type(memory).__name__}; pass Memory(scope=MemoryScope(...))")
    if not isinstance(memory.scope, MemoryScope) and not callable(memory.scope):
        _refuse(agent, "scope is a MemoryScope, or a function of RunFacts that returns one")
    if not isinstance(memory.seams, MemorySeams):  # pyright: ignore[reportUnnecessaryIsInstance] - what users pass
        _refuse(agent, "seams is a MemorySeams")
    if memory.seams.store is not None and not keeps_memories(memory.seams.store):
        _refuse(agent, f"the store has {', '.join(OPERATIONS)}")
    llm = memory.seams.llm
    if llm is not None and not callable(llm) and not callable(getattr(llm, "call", None)):
        _refuse(agent, "llm is a model, or an async function of system and user text")
    if memory.write_policy not in get_args(WritePolicy):
        _refuse(agent, f"write_policy is one of {', '.join(get_args(WritePolicy))}, not {memory.write_policy!r}")
    if memory.sweep not in (None, "on-extract"):
        _refuse(agent, f"sweep is None or 'on-extract', not {memory.sweep!r}")
    if type(memory.limit) is not int or not 1 <= memory.limit <= MOST_MEMORIES:
        _refuse(agent, f"limit is a whole number from 1 to {MOST_MEMORIES}, not {memory.limit!r}")
    return memory


def _refuse(agent: str, what: str) -> NoReturn:
    raise ConfigurationError(f"the memory of agent {agent!r}: {what}")
