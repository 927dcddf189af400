"""Where memories are kept, and what an agent that has some works with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeGuard

from deuz_workers.core.memory import MemoryQuery, MemoryRecord, MemoryScope
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.shared_budget import SharedBudget
from deuz_workers.core.usage import Usage
from deuz_workers.ports.context import RunFacts
from deuz_workers.ports.model import Model


class MemoryStore(Protocol):
    """Memories by tenant, which is the `scope` of the runs. Every operation is atomic as a whole.

    What cannot be reached raises; a recall then goes on without, an extraction fails and can be reconciled.
    """

    async def find_memories(self, scope: str, within: MemoryScope, query: MemoryQuery) -> tuple[MemoryRecord, ...]:
        """The most fitting first, at most `query.limit`; none that has expired, none outside of `within`."""
        ...

    async def write_memories(self, scope: str, records: Sequence[MemoryRecord]) -> None:
        """All of them, or none: of each there is one record of its words in its scope afterwards, with its metadata.

        One whose id is there takes that place. One whose words are there under another id is not stored twice: that record
        takes its metadata and time, and its own, if there is one, is gone.
        """
        ...

    async def delete_memories(self, scope: str, record_ids: Sequence[str]) -> None:
        """They are gone; of ids that are not there nothing happens."""
        ...

    async def count_memories(self, scope: str, operation_id: str) -> int:
        """Records that this operation wrote last."""
        ...

    async def delete_expired_memories(self, scope: str, within: MemoryScope, now_ms: int | None = None) -> int:
        """How many of `within` had expired; they are gone."""
        ...


OPERATIONS = ("find_memories", "write_memories", "delete_memories", "count_memories", "delete_expired_memories")


def keeps_memories(store: object) -> TypeGuard[MemoryStore]:
    """It has all operations of a `MemoryStore`, by itself or through what it wraps."""
    return all(callable(getattr(store, name, None)) for name in OPERATIONS)


@dataclass(frozen=True, slots=True)
class MemoryReply:
    """What a memory LLM may return in place of a text, so that its usage is accounted for."""

    text: str
    usage: Usage | None = None


MemoryLlm = Callable[[str, str], Awaitable[str | MemoryReply]]
"""System and user text to text."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """One vector for each text, and what that used; None: not known."""

    vectors: tuple[tuple[float, ...], ...]
    usage: Usage | None = None


class Embedder(Protocol):
    @property
    def name(self) -> str:
        """Of the model. Vectors of two names are never compared; prices are looked up by it."""
        ...

    async def embed(self, texts: Sequence[str]) -> Embedding | Sequence[Sequence[float]]: ...


class MemoryExecution(Protocol):
    """What calls of a memory are held and charged to instead of the run; an `ExecutionContext` is one."""

    @property
    def policy(self) -> ExecutionPolicy: ...

    @property
    def shared_budgets(self) -> tuple[SharedBudget, ...]: ...


@dataclass(frozen=True, slots=True)
class MemorySeams:
    """What a memory works with; what is not given is the run's own."""

    store: MemoryStore | None = None
    """None: the store of the runs."""
    llm: Model | MemoryLlm | None = None
    """Who extracts; None: the agent's model. Of a function usage is known only where it returns `MemoryReply`s."""
    clock: Callable[[], int] | None = None
    """Unix time in milliseconds, of what is stored."""
    ids: Callable[[], str] | None = None
    """New ids of records."""
    embedder: Embedder | None = None
    """None: memories are found by their words."""
    execution: MemoryExecution | None = None
    """`create_execution_context(...)`, whose policy and budgets stand in for the run's. None: what the memory's calls cost is
    part of the run."""


ScopeOf = Callable[[RunFacts], MemoryScope]
"""Whose memories a run has, by what it was started with: its tags, its id. Asked once, in the first step."""

WritePolicy = Literal["after-run", "manual", "session-end"]
NO_SEAMS = MemorySeams()


@dataclass(frozen=True, slots=True)
class Memory:
    """What the runs of an agent remember: recalled once before the first model call, extracted once after completion."""

    scope: MemoryScope | ScopeOf
    """Whose. Part of the binding of its runs where it is the same for all of them; the record of each run has its own."""
    seams: MemorySeams = field(default_factory=lambda: NO_SEAMS)
    recall: bool = True
    extract: bool = True
    write_policy: WritePolicy = "after-run"
    """`manual` and `session-end`: the run itself extracts nothing."""
    sweep: Literal["on-extract"] | None = None
    """`on-extract`: memories that have expired are removed after an extraction."""
    limit: int = 10
    """Memories that a run is told at most."""

    @property
    def extracts(self) -> bool:
        return self.extract and self.write_policy == "after-run"
