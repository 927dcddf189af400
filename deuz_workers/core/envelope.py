"""The envelope: the durable record of a run, apart from its history and receipts.

It is stored in the head row: identity, status and places in columns, the rest as `body`. The body names its kind; the loop
checkpoint inside has a version of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, cast
from uuid import UUID

from deuz_workers.core.change import FINAL, Head, Phase, RunKind, RunStatus
from deuz_workers.core.chat import RunChat
from deuz_workers.core.codec import decode, encode
from deuz_workers.core.estimate import FIRST_CALIBRATION
from deuz_workers.core.failover import Models
from deuz_workers.core.handoff import NO_HANDOFFS, Handoff, active_agent
from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import Message, message_from_record, message_to_record
from deuz_workers.core.nested import Nested
from deuz_workers.core.parent import Parent
from deuz_workers.core.policy import NO_POLICY, ExecutionPolicy
from deuz_workers.core.receipts import Receipt
from deuz_workers.core.run_memory import RunMemory
from deuz_workers.core.shared_budget import SharedBudget
from deuz_workers.core.transcript import HistoryRewrite
from deuz_workers.core.usage import Usage
from deuz_workers.errors import CheckpointVersionError, CodecError, ConfigurationError

KIND = "deuz-agent-run"
READABLE_VERSIONS = frozenset((1, 2))
CHECKPOINT_VERSION = 1

NO_COUNTS: Mapping[str, int] = MappingProxyType({})
NO_WARNED: frozenset[tuple[str, str]] = frozenset()
NO_RECEIPTS: Mapping[tuple[int, str], Receipt] = MappingProxyType({})
NO_USAGES: Mapping[str, Usage] = MappingProxyType({})
NO_VERDICTS: Mapping[str, Mapping[str, object]] = MappingProxyType({})


Purpose = Literal["turn", "summary", "memory"]
Warning = tuple[str, str] | tuple[str, str, str]
"""Setting and message, and the type where it is another than `PLAIN`."""
PLAIN = "warning"
CATALOG = "mcp"
"""Key of a binding: what the run's tool servers offer (`core.catalog`)."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A model call whose reservation is committed and whose outcome is not."""

    request_id: str
    attempt: int
    tokens: int
    cost_micros: int | None
    input_tokens: int = 0
    """Estimate of the request alone, which what the provider counts is compared with; 0: it is not."""
    purpose: Purpose = "turn"
    model: str | None = None
    """Name of the model, where it is not that of the run's own agent."""
    charged_model: str = ""
    """Name of the model whoever's it is, for reports of budgets; no part of the record."""
    uncounted: bool = False
    """Admitted without a price although a scope may limit money; no part of the record."""
    warn_percent: int | None = None
    """Of limits of scopes without a threshold of their own; no part of the record."""
    scopes: tuple[str, ...] | None = None
    """Budget scopes that it is charged to instead of the run's; None: those."""
    shared: tuple[SharedBudget, ...] = ()
    """What those are held to; no part of the record."""

    def to_record(self) -> dict[str, object]:
        record: dict[str, object] = {"request_id": self.request_id, "attempt": self.attempt, "tokens": self.tokens}
        record["cost_micros"] = self.cost_micros
        if self.input_tokens:
            record["input_tokens"] = self.input_tokens
        if self.purpose != "turn":
            record["purpose"] = self.purpose
        if self.model is not None:
            record["model"] = self.model
        if self.scopes is not None:
            record["scopes"] = list(self.scopes)
        return record

    @staticmethod
    def from_record(record: Mapping[str, object]) -> OpenCall:
        cost = record["cost_micros"]
        return OpenCall(
            str(record["request_id"]),
            _int(record["attempt"]),
            _int(record["tokens"]),
            None if cost is None else _int(cost),
            _int(record.get("input_tokens", 0)),
            cast(Purpose, record.get("purpose", "turn")),
            cast("str | None", record.get("model")),
            scopes=None if record.get("scopes") is None else tuple(cast("list[str]", record["scopes"])),
        )


Overflow = Literal["none", "refused", "retried"]


@dataclass(frozen=True)  # no slots: see `core.successor`
class LoopCheckpoint:
    """Where the tool loop stands. `step`: number of the newest turn whose model call was started, 0 before the first."""

    version: int = CHECKPOINT_VERSION
    step: int = 0
    attempts: int = 0
    """Model calls started in this turn, repeats after failures and interruptions included."""
    retries: int = 0
    """Automatic repeats after transient failures in this turn."""
    open_call: OpenCall | None = None
    approval_request_counts: Mapping[str, int] = field(default_factory=lambda: NO_COUNTS)
    """How often the gate asked for an approval under each call id."""
    output_attempts: int = 0
    """Turns that asked for the final answer; a rejected candidate of the verifier begins them anew."""
    input_checked: bool = False
    """The guardrails of the input have seen it in this leg."""
    tool_errors: Mapping[str, int] = field(default_factory=lambda: NO_COUNTS)
    """Turns in a row with an error of a tool, by its name."""
    cut_off: bool = False
    """The newest reply ended at the limit of its length."""
    reruns: int = 0
    """How often the run was taken up again by itself since the newest reply (`Limits.max_reruns`)."""
    new_turn: bool = False
    """The next model call begins a turn of its own although the one before had no reply: the run was taken up again after it
    had failed, and the call that failed stays counted (MDL-010)."""
    taken_up: bool = False
    """The calls of this turn were waited for and the answers are here: what is asked for only now counts as denied."""
    verify_attempts: int = 0
    """How often the verifier was about to be asked, over all candidates."""
    verifying: bool = False
    """The verifier may have been asked about the newest reply, and no verdict is saved."""
    summaries: int = 0
    """Calls for a summary that were started, which their request ids are made of."""
    overflow: Overflow = "none"
    """`refused`: the provider took the request of this turn for too long; `retried`: a shorter one was sent, and no other will
    be."""


@dataclass(frozen=True)  # no slots: see `core.successor`
class AgentRunEnvelope:
    rid: UUID
    scope: str
    run_id: str
    run_kind: RunKind
    agent: str
    revision: int = 0
    status: RunStatus = "queued"
    phase: Phase = "loop"
    epoch: int = 0
    last_seq: int = -1
    journal_seq: int = 0
    seen_seq: int = 0
    swarm_rid: UUID | None = None
    task_id: str | None = None
    checkpoint: LoopCheckpoint = field(default_factory=LoopCheckpoint)
    limits: Limits = field(default_factory=Limits)
    usage: Usage = field(default_factory=Usage)
    usage_by_model: Mapping[str, Usage] = field(default_factory=lambda: NO_USAGES)
    """Of replies whose usage was reported, by the name of the model that was asked."""
    unknown_tokens: int = 0
    """Estimates of calls whose outcome nobody knows."""
    unknown_cost_micros: int | None = 0
    """What these may have cost; None: a price among them is not known."""
    settled_cost_micros: int | None = 0
    """Of calls whose usage was reported. Other than the cost of `usage`, it stays known beside a call without usage."""
    calibration: int = FIRST_CALIBRATION
    """Thousandths by which estimates of this run's requests are multiplied, as the newest counted one tells (CMP-010)."""
    scopes: tuple[str, ...] = ()
    """Budget scopes that every model call reserves in, deepest first, shared ones last and by key."""
    shared: tuple[SharedBudget, ...] = ()
    """What the run holds those of `scopes` to that other runs share."""
    warned: frozenset[tuple[str, str]] = NO_WARNED
    """Scope and dimension of which this run was warned and that have not been below the threshold since (WIN-010)."""
    unsettled_tokens: int = 0
    """Part of `usage`: of replies whose price is not known although money was reserved, so that their estimates stay held."""
    binding: Mapping[str, object] | None = None
    verdicts: Mapping[str, Mapping[str, object]] = field(default_factory=lambda: NO_VERDICTS)
    """Recorded answers to approval requests by call id, kept until the turn is answered."""
    held: tuple[Message, ...] = ()
    """Messages that arrived while calls of a turn were open; they follow its results, since a call is answered first."""
    policy: ExecutionPolicy = NO_POLICY
    """What the run may do; it only ever gets narrower."""
    finalizes: bool = False
    """The agent that began the run has an output type."""
    verifies: bool = False
    """The agent that began the run has a verifier: nothing completes without its word."""
    warnings: tuple[Warning, ...] = ()
    models: Models | None = None
    """None until a call has failed over to another model."""
    memory: RunMemory | None = None
    """None for a run without one."""
    chat: RunChat | None = None
    """Where the transcript is written for whoever goes on with the conversation."""
    transcript: tuple[HistoryRewrite, ...] = ()
    """Rewrites of the history of a run with a chat or a memory, by which its transcript is found."""
    handoffs: tuple[Handoff, ...] = NO_HANDOFFS
    """Transfers that were accepted, in order; `Limits.max_handoffs` at most."""
    cancelled: bool = False
    retry: Mapping[str, object] | None = None
    """Why the last model call failed, `kind` and the error, if that may pass by waiting (`core.transient`)."""
    reason: str | None = None
    stop_details: Mapping[str, object] | None = None
    output: object = None
    has_output: bool = False
    error: Mapping[str, object] | None = None
    parent: Parent | None = None
    """Of a run that another one delegated."""
    trace: str | None = None
    """What the run is part of for whoever collects traces, as a W3C `traceparent`; nothing is decided by it."""
    nested: Nested | None = None
    """Of a run that was started in the execution context of another one."""
    tool_results: Mapping[tuple[int, str], Receipt] = field(default_factory=lambda: NO_RECEIPTS)
    """Receipts by turn and call id, as whoever inspects a run reads them (ENV-016). They are rows of their own and no part of
    the body; an engine has those of its turn in `Run.receipts`."""

    @property
    def kind(self) -> str:
        return KIND

    @property
    def agent_binding(self) -> Mapping[str, object] | None:
        """The binding without what belongs to this run alone, which its agent does not say."""
        if self.binding is None or self.chat is None or self.binding.get("chat") != self.chat.to_record():
            return self.binding
        return {name: value for name, value in self.binding.items() if name != "chat"}

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def active_agent(self) -> str:
        """Name of the agent that drives the next turn: the run's own, or whom it was handed to."""
        return active_agent(self.agent, self.handoffs)


def encode_body(envelope: AgentRunEnvelope) -> str:
    """The part of the envelope that has no column; fields of features the run does not use are absent."""
    checkpoint: dict[str, object] = {
        "version": envelope.checkpoint.version,
        "step": envelope.checkpoint.step,
        "attempts": envelope.checkpoint.attempts,
        "retries": envelope.checkpoint.retries,
    }
    if envelope.checkpoint.open_call is not None:
        checkpoint["open_call"] = envelope.checkpoint.open_call.to_record()
    if envelope.checkpoint.approval_request_counts:
        checkpoint["approval_request_counts"] = dict(envelope.checkpoint.approval_request_counts)
    if envelope.checkpoint.output_attempts:
        checkpoint["output_attempts"] = envelope.checkpoint.output_attempts
    if envelope.checkpoint.reruns:
        checkpoint["reruns"] = envelope.checkpoint.reruns
    if envelope.checkpoint.tool_errors:
        checkpoint["tool_errors"] = dict(envelope.checkpoint.tool_errors)
    if envelope.checkpoint.verify_attempts:
        checkpoint["verify_attempts"] = envelope.checkpoint.verify_attempts
    for name in ("input_checked", "cut_off", "new_turn", "taken_up", "verifying"):
        if getattr(envelope.checkpoint, name):
            checkpoint[name] = True
    if envelope.checkpoint.summaries:
        checkpoint["summaries"] = envelope.checkpoint.summaries
    if envelope.checkpoint.overflow != "none":
        checkpoint["overflow"] = envelope.checkpoint.overflow
    record: dict[str, object] = {
        "kind": KIND,
        "checkpoint": checkpoint,
        "limits": envelope.limits.to_record(),
        "usage": envelope.usage.to_record(),
    }
    if envelope.unknown_tokens:
        record["unknown_tokens"] = envelope.unknown_tokens
        record["unknown_cost_micros"] = envelope.unknown_cost_micros
    if envelope.settled_cost_micros != envelope.usage.cost_micros:
        record["settled_cost_micros"] = envelope.settled_cost_micros
    if envelope.calibration != FIRST_CALIBRATION:
        record["calibration"] = envelope.calibration
    if envelope.usage_by_model:
        record["usage_by_model"] = {model: usage.to_record() for model, usage in envelope.usage_by_model.items()}
    if envelope.scopes:
        record["scopes"] = list(envelope.scopes)
    if envelope.shared:
        record["shared"] = [shared.to_record() for shared in envelope.shared]
    if envelope.warned:
        record["warned"] = sorted(map(list, envelope.warned))
    if envelope.unsettled_tokens:
        record["unsettled_tokens"] = envelope.unsettled_tokens
    if envelope.binding is not None:
        record["binding"] = dict(envelope.binding)
    if envelope.verdicts:
        record["verdicts"] = {call_id: dict(verdict) for call_id, verdict in envelope.verdicts.items()}
    if policy := envelope.policy.to_record():
        record["policy"] = policy
    if envelope.held:
        record["held"] = [message_to_record(message) for message in envelope.held]
    if envelope.warnings:
        record["warnings"] = [list(warning) for warning in envelope.warnings]
    if envelope.models is not None:
        record["models"] = envelope.models.to_record()
    if envelope.memory is not None:
        record["memory"] = envelope.memory.to_record()
    if envelope.chat is not None:
        record["chat"] = envelope.chat.to_record()
    if envelope.transcript:
        record["transcript"] = [rewrite.to_record() for rewrite in envelope.transcript]
    if envelope.handoffs:
        record["handoffs"] = [handoff.to_record() for handoff in envelope.handoffs]
    for name in ("finalizes", "verifies", "cancelled"):
        if getattr(envelope, name):
            record[name] = True
    for name in ("retry", "reason", "stop_details", "error"):
        value = getattr(envelope, name)
        if value is not None:
            record[name] = dict(value) if isinstance(value, Mapping) else value
    if envelope.has_output:
        record["output"] = envelope.output
    if envelope.parent is not None:
        record["parent"] = envelope.parent.to_record()
    if envelope.trace is not None:
        record["trace"] = envelope.trace
    if envelope.nested is not None:
        record["nested"] = envelope.nested.to_record()
    return encode(record)


def decode_envelope(head: Head) -> AgentRunEnvelope:
    """The envelope of a loaded head.

    Raises `CheckpointVersionError` for a record or checkpoint version this build does not know, and `CodecError` for a body
    that is not one of ours. Nothing is written either way.
    """
    if head.version not in READABLE_VERSIONS:
        raise CheckpointVersionError(
            f"Native checkpoint version, identity, or scope mismatch. Run {head.run_id!r} has record version {head.version}; "
            f"this build reads {sorted(READABLE_VERSIONS)}; upgrade deuz_workers"
        )
    record = decode_body(head.body)
    try:
        checkpoint = cast(Mapping[str, object], record["checkpoint"])
        if checkpoint["version"] != CHECKPOINT_VERSION:
            raise CheckpointVersionError(
                f"run {head.run_id!r} has a loop checkpoint of version {checkpoint['version']!r}; this build reads "
                f"{CHECKPOINT_VERSION}; upgrade deuz_workers"
            )
        open_call = checkpoint.get("open_call")
        usage = Usage.from_record(cast(Mapping[str, object], record["usage"]))
        unknown_tokens = _int(record.get("unknown_tokens", 0))
        return AgentRunEnvelope(
            rid=head.rid,
            scope=head.scope,
            run_id=head.run_id,
            run_kind=head.kind,
            agent=head.agent,
            revision=head.revision,
            status=head.status,
            phase=head.phase,
            epoch=head.epoch,
            last_seq=head.last_seq,
            journal_seq=head.journal_seq,
            seen_seq=head.seen_seq,
            swarm_rid=head.swarm_rid,
            task_id=head.task_id,
            checkpoint=LoopCheckpoint(
                CHECKPOINT_VERSION,
                _int(checkpoint["step"]),
                _int(checkpoint["attempts"]),
                _int(checkpoint["retries"]),
                None if open_call is None else OpenCall.from_record(cast(Mapping[str, object], open_call)),
                cast(Mapping[str, int], checkpoint.get("approval_request_counts", NO_COUNTS)),
                _int(checkpoint.get("output_attempts", 0)),
                checkpoint.get("input_checked") is True,
                cast(Mapping[str, int], checkpoint.get("tool_errors", NO_COUNTS)),
                checkpoint.get("cut_off") is True,
                _int(checkpoint.get("reruns", 0)),
                checkpoint.get("new_turn") is True,
                checkpoint.get("taken_up") is True,
                _int(checkpoint.get("verify_attempts", 0)),
                checkpoint.get("verifying") is True,
                _int(checkpoint.get("summaries", 0)),
                cast(Overflow, checkpoint.get("overflow", "none")),
            ),
            limits=Limits.from_record(cast(Mapping[str, object], record["limits"])),
            usage=usage,
            unknown_tokens=unknown_tokens,
            unknown_cost_micros=_cost(record.get("unknown_cost_micros", None if unknown_tokens else 0)),
            settled_cost_micros=_cost(record.get("settled_cost_micros", usage.cost_micros)),
            calibration=_int(record.get("calibration", FIRST_CALIBRATION)),
            usage_by_model={
                model: Usage.from_record(used)
                for model, used in cast("Mapping[str, Mapping[str, object]]", record.get("usage_by_model", {})).items()
            },
            scopes=tuple(cast("list[str]", record.get("scopes", []))),
            shared=tuple(map(SharedBudget.from_record, cast("list[Mapping[str, object]]", record.get("shared", [])))),
            warned=frozenset((str(key), str(name)) for key, name in cast("list[list[str]]", record.get("warned", []))),
            unsettled_tokens=_int(record.get("unsettled_tokens", 0)),
            binding=cast("Mapping[str, object] | None", record.get("binding")),
            verdicts=cast("Mapping[str, Mapping[str, object]]", record.get("verdicts", NO_VERDICTS)),
            held=tuple(map(message_from_record, cast("list[object]", record.get("held", [])))),
            policy=_policy(record.get("policy")),
            finalizes=record.get("finalizes") is True,
            verifies=record.get("verifies") is True,
            warnings=tuple(map(_warning, cast("list[list[object]]", record.get("warnings", [])))),
            models=_models(record.get("models")),
            memory=_memory(record.get("memory")),
            chat=None if record.get("chat") is None else RunChat.from_record(cast("Mapping[str, object]", record["chat"])),
            transcript=tuple(map(HistoryRewrite.from_record, cast("list[Mapping[str, object]]", record.get("transcript", [])))),
            handoffs=tuple(map(Handoff.from_record, cast("list[Mapping[str, object]]", record.get("handoffs", [])))),
            cancelled=record.get("cancelled") is True,
            retry=cast("Mapping[str, object] | None", record.get("retry")),
            reason=cast("str | None", record.get("reason")),
            stop_details=cast("Mapping[str, object] | None", record.get("stop_details")),
            output=record.get("output"),
            has_output="output" in record,
            error=cast("Mapping[str, object] | None", record.get("error")),
            parent=None if record.get("parent") is None else Parent.from_record(cast("Mapping[str, object]", record["parent"])),
            trace=cast("str | None", record.get("trace")),
            nested=None if record.get("nested") is None else Nested.from_record(cast("Mapping[str, object]", record["nested"])),
        )
    except (KeyError, TypeError, ValueError, AssertionError, ConfigurationError) as error:
        raise CodecError(f"envelope of run {head.run_id!r} is not readable: {type(error).__name__} {error}") from error


def decode_body(body: str) -> Mapping[str, object]:
    """The record in a head's body. Raises `CodecError` if it is not an envelope of ours."""
    record = decode(body)
    if not isinstance(record, dict) or cast(Mapping[str, object], record).get("kind") != KIND:
        raise CodecError(f"the stored body is not a {KIND} record")
    return cast(Mapping[str, object], record)


def _warning(record: list[object]) -> Warning:
    setting, text, *kind = map(str, record)
    return (setting, text, kind[0]) if kind else (setting, text)


def _cost(value: object) -> int | None:
    return None if value is None else _int(value)


def _policy(record: object) -> ExecutionPolicy:
    return NO_POLICY if record is None else ExecutionPolicy.from_record(cast(Mapping[str, object], record))


def _models(record: object) -> Models | None:
    return None if record is None else Models.from_record(cast(Mapping[str, object], record))


def _memory(record: object) -> RunMemory | None:
    return None if record is None else RunMemory.from_record(cast(Mapping[str, object], record))


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
