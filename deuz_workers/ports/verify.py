"""The verifier of an agent: whether an answer, whose form is right, is right. Looked up by the agent's name, never stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from deuz_workers.core.messages import Message
from deuz_workers.ports.execution import Execution
from deuz_workers.ports.tool import CancelSignal


@dataclass(frozen=True, slots=True)
class Verified:
    """The answer is accepted."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The answer is wrong; the model is asked for another one."""

    feedback: str
    """What the model reads."""


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """Nobody can say. The run stops without an output; the model is not asked again."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class VerifyContext:
    """What a verifier knows beside the output."""

    scope: str
    run_id: str
    agent: str
    text: str
    """Of the candidate, as the model wrote it."""
    attempt: int
    """From 1, over all candidates of the run. The same candidate comes again under another number."""
    deadline_in_ms: int | None
    """Until the run's deadline, when the verifier was asked."""
    signal: CancelSignal
    """Hand it on to whatever takes long: it is set when the run is cancelled, its lease lost, its time passed."""
    execution: Execution = field(default_factory=Execution)
    """Hand it on to what calls models, so that those calls count for this run."""
    messages: Sequence[Message] = field(default=(), repr=False)
    """The conversation, the candidate included."""
    deps: Any = field(default=None, repr=False)
    """What the application registered for this agent's tools; never stored."""
    runtime_context: Any = field(default=None, repr=False)
    """The run's, as it was given; never stored."""

    @property
    def idempotency_key(self) -> str:
        """One string for run and candidate, the same whenever the verifier is asked about both again."""
        return f"{self.run_id}/{hashlib.sha256(self.text.encode(errors='surrogatepass')).hexdigest()[:32]}"


Verify = Callable[[Any, VerifyContext], Any]
"""Returns `Verified`, `Rejected` or `Inconclusive`; may be a coroutine function. It gets the output as the run would end with
it. It must be idempotent: after a crash, or a verdict that could not be saved, it is asked about the same candidate again. What
it raises, and everything else that it returns, is inconclusive."""
