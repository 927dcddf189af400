"""Events: what happened to a run. Time, randomness and new ids arrive inside them; `evolve` folds them in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from deuz_workers.core.change import ItemRow, NewChild, ScopeUse
from deuz_workers.core.compaction import Compaction
from deuz_workers.core.envelope import OpenCall
from deuz_workers.core.failover import ModelId
from deuz_workers.core.limits import Limits
from deuz_workers.core.memory_events import MemoryEvent
from deuz_workers.core.messages import FinishReason, Message
from deuz_workers.core.outcomes import CallOutcome
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.reconciliation import Word
from deuz_workers.core.shared_budget import SharedBudget
from deuz_workers.core.transient import TransientKind
from deuz_workers.core.usage import Usage

Verdict = Literal["verified", "rejected", "inconclusive"]

NO_TEXTS: Mapping[str, str] = MappingProxyType({})
NO_VERDICTS: Mapping[str, Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NotesFolded:
    """Inbox notes up to place `seen_seq` were taken in, in order."""

    seen_seq: int
    cancelled: bool = False
    messages: tuple[Message, ...] = ()
    words: tuple[Word, ...] = ()
    """About interrupted calls. Where one is left open, none of them counts."""
    unreadable: tuple[tuple[int, str], ...] = ()
    """Place and kind of notes that nobody can read."""
    cancel_reason: str | None = None
    """What the first cancel among them gave."""
    policy: ExecutionPolicy | None = None
    """What all of them that narrow the run allow."""
    verdicts: Mapping[str, Mapping[str, object]] = field(default_factory=lambda: NO_VERDICTS)
    """By approval id, on gated calls of a turn that has been taken up; the first on each counts."""
    shared: tuple[SharedBudget, ...] = ()
    """Budgets that the run is also charged to from here on, or held to more strictly."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The first step fixed what a resume must match, and the limits of the run: those of the agent that begins it."""

    binding: Mapping[str, object]
    limits: Limits | None = None
    """None: the run keeps those it was enqueued with."""
    finalizes: bool = False
    """The agent has an output type."""
    has_loop: bool = True
    """There is something to do before the final answer is asked for: the agent has tools."""
    verifies: bool = False
    """The agent has a verifier."""


@dataclass(frozen=True, slots=True)
class CatalogRecorded:
    """The run goes on with these tools of its servers: a resume has to meet the same. Digests by name."""

    catalog: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PolicyNarrowed:
    """The run may do what this allows too, and nothing else."""

    policy: ExecutionPolicy
    shared: tuple[SharedBudget, ...] = ()
    """As in `NotesFolded`."""


@dataclass(frozen=True, slots=True)
class InputsGiven:
    """Messages that the run starts from beside its own: the results of the tasks before it."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class GuardrailFired:
    """A guardrail did not let something pass."""

    hook: str
    action: Literal["block", "rewrite"]
    name: str
    reason: str | None = None
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class InputChecked:
    """The guardrails of the input have seen it in this leg."""


@dataclass(frozen=True, slots=True)
class HistoryRewritten:
    """A hook replaced the history; it goes on in a new epoch."""

    messages: tuple[Message, ...]
    replaced: int | None = None
    """Of a guardrail: the only message that is another one now. It was said so; what `prepare_step` makes was not said."""
    is_remembered: bool = False
    """What was said before is asked for after the end of the run, whose memory is made from it."""


@dataclass(frozen=True, slots=True)
class Warned:
    """Something about the run is not as it was meant, and it goes on. `setting`: the feature that it is about."""

    setting: str
    message: str
    kind: str = "warning"
    """What readers get as its type."""


@dataclass(frozen=True, slots=True)
class OutputAsked:
    """The tool loop is over; `message` asks for the final answer."""

    message: Message


@dataclass(frozen=True, slots=True)
class OutputRejected:
    """The newest reply does not have the output type; `problem` tells the model why."""

    problem: str


@dataclass(frozen=True, slots=True)
class VerificationStarted:
    """The verifier may be asked about the newest reply once this is committed."""


@dataclass(frozen=True, slots=True)
class VerificationEnded:
    """What the verifier said. A `Finished` follows `verified` in the same commit; the other two lead on by themselves."""

    verdict: Verdict
    text: str | None = None
    """Feedback of `rejected`; reason of `inconclusive`, where there is one."""


@dataclass(frozen=True, slots=True)
class BudgetStood:
    """How scopes with a threshold of warning stood when a call was admitted."""

    charged: tuple[ScopeUse, ...]


@dataclass(frozen=True, slots=True)
class ModelCallStarted:
    """The reservation of this call is part of the same commit; the request leaves after it."""

    call: OpenCall


@dataclass(frozen=True, slots=True)
class ModelReplied:
    message: Message
    finish_reason: FinishReason
    usage: Usage | None
    """None: the provider did not say; the reservation stays as unknown."""
    model: str = ""
    """Name of the one that was asked."""


@dataclass(frozen=True, slots=True)
class ModelCallFailed:
    """`retry_in_ms`: it is called again then; None: it is not, and the run has failed."""

    error: Mapping[str, object]
    billed: Literal["no", "unknown"]
    kind: TransientKind | None
    """Of a cause that may pass by waiting."""
    retry_in_ms: int | None
    reruns: bool = False
    """The repeats of this turn are used up; the run is taken up again as one that failed is, by a turn of its own."""
    asked_wait_ms: int = 0
    """By the provider, whatever this run does."""


@dataclass(frozen=True, slots=True)
class ModelFailedOver:
    """The call of the turn goes on with `next`, and `failed` is not called again in this run.

    The call that failed has ended by this, if there was one: where the breaker of `failed` was open, none was made.
    """

    step: int
    attempt: int
    failed: ModelId
    next: ModelId
    kind: TransientKind
    error: Mapping[str, object]
    billed: Literal["no", "unknown"]
    asked_wait_ms: int = 0
    """What the provider asked to be left alone for; 0: it did not say."""


@dataclass(frozen=True, slots=True)
class ModelCallAbandoned:
    """Nobody knows how the open call ended: its executor died, lost the run or was told to stop."""


@dataclass(frozen=True, slots=True)
class HistoryPruned:
    """A layer of the history makes room; the tokens are estimates of a whole request before and after."""

    layer: Literal["tool-results", "reasoning"]
    compaction: Compaction
    before_tokens: int
    after_tokens: int


@dataclass(frozen=True, slots=True)
class SummaryStarted:
    """The reservation of the call for a summary is part of the same commit; the request leaves after it."""

    call: OpenCall


@dataclass(frozen=True, slots=True)
class HistorySummarized:
    """The call for a summary replied, and its text stands for older messages."""

    compaction: Compaction
    usage: Usage | None
    """None: the provider did not say; the reservation stays as unknown."""
    before_tokens: int
    after_tokens: int
    model: str = ""
    """Name of the one that was asked."""


@dataclass(frozen=True, slots=True)
class ContextOverflowed:
    """The provider refused the request of the turn as too long: the history is compacted and sent once more (CMP-005)."""

    error: Mapping[str, object]
    billed: Literal["no", "unknown"] = "no"


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The effect may begin once this is committed."""

    call_id: str
    tool: str
    idempotent: bool


@dataclass(frozen=True, slots=True)
class CallRejected:
    """The call never ran: no such tool, wrong arguments, denied. `error` is the model's answer."""

    call_id: str
    tool: str
    error: str
    outcome: CallOutcome = "error"
    reason: str | None = None
    """What the person who denied it said."""


@dataclass(frozen=True, slots=True)
class CallExecuted:
    """The tool returned `value`; what the model sees is made from it afterwards."""

    call_id: str
    value: object
    reconciled: bool = False
    """Somebody found out that it had, after nobody here knew."""


@dataclass(frozen=True, slots=True)
class CallFailed:
    """The tool raised, ran out of time, or returned what cannot be stored."""

    call_id: str
    error: str
    outcome: CallOutcome = "error"
    reason: str | None = None
    reconciled: bool = False


@dataclass(frozen=True, slots=True)
class CallDelegated:
    """A run of its own does the call; it is created by the same commit, which also suspends this run on `item`."""

    call_id: str
    tool: str
    child: NewChild
    item: ItemRow


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """The run of a delegated call has ended. What it and those below it used is part of this run's usage from here on."""

    outcome: CallExecuted | CallFailed
    usage: Usage
    settled_cost_micros: int | None = 0
    unknown_tokens: int = 0
    unknown_cost_micros: int | None = 0
    unsettled_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CallCompleted:
    """`text` None: the plain rendering of the raw value."""

    call_id: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class CallUnprojectable:
    """The raw value is recorded; its schema or projection refused it."""

    call_id: str
    stage: Literal["validation-failed", "projection-failed"]
    error: str


@dataclass(frozen=True, slots=True)
class HandedOff:
    """The transfer of this call is made: from the next turn on the agent `to` drives the run."""

    call_id: str
    to: str


@dataclass(frozen=True, slots=True)
class TurnAnswered:
    """Every call of the turn has its answer; `texts` are renderings of raw values by call id."""

    texts: Mapping[str, str]
    guarded: Mapping[str, str] = field(default_factory=lambda: NO_TEXTS)
    """What the model gets instead of a result, by call id: a guardrail rewrote it."""
    withheld: frozenset[str] = frozenset()
    """Calls of which a guardrail keeps the result from the model; `guarded` has what is said instead."""


@dataclass(frozen=True, slots=True)
class Suspended:
    items: tuple[ItemRow, ...]
    call_ids: tuple[str, ...]
    """Of the calls that wait for an approval."""
    due_in_ms: int | None = None
    """At the latest until then, whatever the items say, because the time of the run is over."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Every item was answered: `approved`, and perhaps `reason` and edited `arguments`, by call id.

    What clients returned follows as events of their calls, in the same commit.
    """

    verdicts: Mapping[str, Mapping[str, object]]
    answers: int = 0
    """How many items there were."""


@dataclass(frozen=True, slots=True)
class Reopened:
    """A failed run is taken up again where it stood; only after a cause that may have passed (MDL-007)."""


@dataclass(frozen=True, slots=True)
class Finished:
    status: Literal["completed", "stopped", "failed"]
    reason: str | None = None
    details: Mapping[str, object] | None = None
    output: object = None
    has_output: bool = False
    error: Mapping[str, object] | None = None
    retry: Mapping[str, object] | None = None
    """Of a failure that may pass by waiting; no other end has any (MDL-006)."""


@dataclass(frozen=True, slots=True)
class Waited:
    """The step found nothing to do but the inputs it folded in; the run waits for the next one."""

    due_in_ms: int | None = None
    """At the latest until then, because something expires."""


Event = (
    NotesFolded
    | Bound
    | CatalogRecorded
    | PolicyNarrowed
    | InputsGiven
    | GuardrailFired
    | InputChecked
    | HistoryRewritten
    | Warned
    | OutputAsked
    | OutputRejected
    | VerificationStarted
    | VerificationEnded
    | BudgetStood
    | ModelCallStarted
    | ModelReplied
    | ModelCallFailed
    | ModelFailedOver
    | ModelCallAbandoned
    | HistoryPruned
    | SummaryStarted
    | HistorySummarized
    | ContextOverflowed
    | CallStarted
    | CallRejected
    | CallExecuted
    | CallFailed
    | CallDelegated
    | ChildEnded
    | CallCompleted
    | CallUnprojectable
    | HandedOff
    | TurnAnswered
    | Suspended
    | Resumed
    | Reopened
    | Finished
    | Waited
    | MemoryEvent
)
