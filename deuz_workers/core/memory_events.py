"""Events of a run's memory: the recall before its first model call, the extraction after its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deuz_workers.core.envelope import OpenCall
from deuz_workers.core.memory import MemoryScope
from deuz_workers.core.messages import Message
from deuz_workers.core.run_memory import Extraction
from deuz_workers.core.usage import Usage


@dataclass(frozen=True, slots=True)
class MemoryAttached:
    """Whose memories the run has, before its first model call."""

    scope: MemoryScope
    extracts: bool
    """What it says is extracted once it is completed."""
    given: int
    """Messages that its transcript had."""


@dataclass(frozen=True, slots=True)
class RecallStarted:
    """The reservation of the embedder's call is part of the same commit; the request leaves after it."""

    call: OpenCall


@dataclass(frozen=True, slots=True)
class MemoryRecalled:
    """The one recall of the run; `message` stands behind its input, None where there is nothing to tell."""

    record: Mapping[str, object]
    message: Message | None = None
    usage: Usage | None = None
    """Of the embedder, whose call has ended by this, if there was one; None: it did not say."""
    model: str = ""


@dataclass(frozen=True, slots=True)
class ExtractionAdmitted:
    """The memory LLM may be asked once this is committed. Whatever an earlier attempt planned counts no more."""

    call: OpenCall


@dataclass(frozen=True, slots=True)
class ExtractionPlanned:
    """The memory LLM has answered; the memory store may be written to once this is committed."""

    planned: int
    usage: Usage | None
    """None: it did not say; the reservation stays as unknown."""
    model: str = ""


@dataclass(frozen=True, slots=True)
class ExtractionProgressed:
    """So many of the planned changes were made, and can be proven by this alone."""

    mutations: int


@dataclass(frozen=True, slots=True)
class ExtractionEnded:
    """`outcome` is not `pending`. A call that is open was never sent if `released`, else nobody knows what it used."""

    outcome: Extraction
    released: bool = False


@dataclass(frozen=True, slots=True)
class ExtractionReopened:
    """Somebody wants a failed extraction to be looked at again."""


MemoryEvent = (
    MemoryAttached
    | RecallStarted
    | MemoryRecalled
    | ExtractionAdmitted
    | ExtractionPlanned
    | ExtractionProgressed
    | ExtractionEnded
    | ExtractionReopened
)
