"""What a run has to report, read from what is stored of it. Pure: rows in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar, cast

from deuz_workers.app.pending import PendingApproval, PendingClientCall, Signing, pending_approvals, pending_client_calls
from deuz_workers.core.accounting import Accounting, accounting_of
from deuz_workers.core.change import Head
from deuz_workers.core.envelope import PLAIN
from deuz_workers.core.handoff import NO_HANDOFFS, Handoff
from deuz_workers.core.messages import Message
from deuz_workers.core.receipts import Receipt
from deuz_workers.core.reconciliation import approval_id_of, arguments_of, effect_id, is_unknown
from deuz_workers.core.run import Run, read_run
from deuz_workers.core.usage import Usage
from deuz_workers.errors import DeuzError, RunFailedError, as_record
from deuz_workers.ports.output import OutputType
from deuz_workers.ports.store import Loaded

T = TypeVar("T")

NO_ACCOUNTING = Accounting()

ResultStatus = Literal["completed", "suspended", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class UnknownEffect:
    """A tool call that was interrupted after it began; nobody knows whether it had its effect."""

    tool_call_id: str
    tool_name: str
    arguments: Mapping[str, object]
    step: int
    effect_id: str = ""
    """Names this execution of the call, and no other; what a word about it may be given under."""
    attempt: int = 1
    """How often the call had begun."""
    idempotent: bool | None = False
    """As its receipt says; None: an old one, which does not say it."""
    approval_id: str | None = None
    """Of a gated call that was approved: to run once more, it has to be approved again."""
    token: str | None = None
    """To be given back with that approval, where the application signs its requests."""
    run_id: str = ""
    """Of the run whose call it is: the one whose handle takes the word."""
    agent_path: tuple[str, ...] = ()
    """As of `PendingApproval`."""


@dataclass(frozen=True, slots=True)
class Below:
    """What somebody outside has to do for runs that were delegated, at any depth."""

    approvals: tuple[PendingApproval, ...] = ()
    client_calls: tuple[PendingClientCall, ...] = ()
    effects: tuple[UnknownEffect, ...] = ()


NOTHING_BELOW = Below()


@dataclass(frozen=True, slots=True)
class ResultWarning:
    """Something that was given and had no influence, or is not as it was meant."""

    setting: str
    """Which kind: `approvalResponses`, `clientToolResults`, `activeTools`, `fallbackModels`, `chat`, `mcp`."""
    message: str
    type: str = PLAIN
    """`unsupported-tool` where a tool of a server is not offered."""


@dataclass(frozen=True, slots=True)
class AgentResult(Generic[T]):
    """How a run stands, once it has something to report: its end, or what it waits for."""

    status: ResultStatus
    run_id: str
    scope: str
    agent: str
    messages: tuple[Message, ...]
    """The history as a model is sent it, instructions apart."""
    usage: Usage
    steps: int
    """Turns whose model call was started."""
    value: T | None = None
    """The output of a completed run; read it as `output`."""
    reason: str | None = None
    """Why it was stopped: `aborted`, `max-steps`, `refusal`, `length`, `output-attempts-exhausted`, `tool-errors`,
    `verification-attempts-exhausted`, `verification-inconclusive`, `stop-condition`, `guardrail:input`, `guardrail:output`,
    `start-before-passed`; or `tool-reconciliation-required`, or `quarantine`, both of a run that is parked until somebody
    frees it."""
    stop_details: Mapping[str, object] | None = None
    error: Mapping[str, object] | None = None
    """Of a failed run: `name`, `message`, perhaps `code` and further scalars. JSON keeps it."""
    pending_approvals: tuple[PendingApproval, ...] = ()
    pending_client_calls: tuple[PendingClientCall, ...] = ()
    unknown_effects: tuple[UnknownEffect, ...] = ()
    warnings: tuple[ResultWarning, ...] = ()
    accounting: Accounting = NO_ACCOUNTING
    """Totals of the budget that the run spends from, whoever else does; without one, of its own calls."""
    transcript: tuple[Message, ...] = field(default=(), repr=False)
    """The messages as they were said; `messages` leaves out what compaction made room of."""
    handoffs: tuple[Handoff, ...] = NO_HANDOFFS
    """Transfers that were accepted, in order; the last one says who drives the run."""

    @property
    def output(self) -> T:
        """The accepted output. Raises `RunFailedError` unless the run is completed."""
        if self.status != "completed":
            raise RunFailedError(
                f"run {self.run_id!r} is {self.status} and has no output: {self._why()}",
                run_id=self.run_id,
                status=self.status,
            )
        return cast(T, self.value)

    @property
    def text(self) -> str:
        """The last text that the model wrote, whatever the status; empty if there is none."""
        return next((message.text for message in reversed(self.messages) if message.role == "assistant" and message.text), "")

    def _why(self) -> str:
        if self.error is not None:
            return f"{self.error.get('name')}: {self.error.get('message')}"
        if self.status == "suspended":
            count = len(self.pending_approvals)
            if not count and self.unknown_effects:
                return f"{len(self.unknown_effects)} effects of delegated calls are unknown; say what became of them"
            if not count:
                return f"{len(self.pending_client_calls)} results of clients are pending; hand them in"
            return "1 approval is pending; approve or deny it" if count == 1 else f"{count} approvals are pending; answer them"
        return self.reason or "no reason is recorded"


RECONCILIATION = "tool-reconciliation-required"
"""Reason of a stop that waits for a word about effects."""


def result_of(
    loaded: Loaded,
    output: OutputType | None = None,
    signing: Signing | None = None,
    accounting: Accounting | None = None,
    below: Below = NOTHING_BELOW,
) -> AgentResult[object]:
    """The result of a run whose head `has_report`. `output`: its output type, where this process knows its agent; without it
    the output is plain data. `accounting`: of its budget, where it has one. `below`: of the runs that it waits for.

    Raises `CheckpointVersionError` or `CodecError` for rows of another build.
    """
    head = loaded.head
    run = read_run(head, loaded.messages, loaded.receipts)
    envelope = run.envelope
    status, reason = _status(head, run)
    suspended = status == "suspended"
    value = envelope.output if status == "completed" else None
    if output is not None and envelope.finalizes and status == "completed":
        value = output.restore(value)
    return AgentResult(
        status=status,
        run_id=head.run_id,
        scope=head.scope,
        agent=head.agent,
        messages=tuple(run.history),
        transcript=tuple(run.transcript),
        usage=envelope.usage,
        steps=envelope.checkpoint.step,
        value=value,
        reason=reason,
        warnings=tuple(ResultWarning(*warning) for warning in envelope.warnings),
        stop_details=envelope.stop_details,
        error=envelope.error,
        pending_approvals=(*pending_approvals(loaded.items, signing, head.scope), *below.approvals) if suspended else (),
        pending_client_calls=(*pending_client_calls(loaded.items, head.scope), *below.client_calls) if suspended else (),
        unknown_effects=effects_of(run, signing) if head.parked is not None else below.effects,
        accounting=accounting or accounting_of(envelope),
        handoffs=envelope.handoffs,
    )


def refused(run_id: str, scope: str, agent: str, error: DeuzError) -> AgentResult[object]:
    """The result of a call that the store or the lease refused. It is not stored; the run is as it was (RES-009, RES-011)."""
    return AgentResult("failed", run_id, scope, agent, (), Usage(), 0, error=as_record(error))


def _status(head: Head, run: Run) -> tuple[ResultStatus, str | None]:
    match head.status:
        case "completed" | "stopped" | "failed" as final:
            return final, run.envelope.reason
        case _ if head.parked is not None:
            return "stopped", head.parked
        case _:
            return "suspended", None


def effects_of(run: Run, signing: Signing | None = None) -> tuple[UnknownEffect, ...]:
    """Calls of which nobody knows whether they had their effect, those of old receipts included (REC-008)."""
    return tuple(_effect(receipt, run, signing) for receipt in run.interrupted if is_unknown(receipt))


def _effect(receipt: Receipt, run: Run, signing: Signing | None) -> UnknownEffect:
    envelope, arguments = run.envelope, arguments_of(run, receipt.call_id)
    asked = approval_id_of(run, receipt.call_id) if receipt.call_id in envelope.verdicts else None
    token = None
    if asked is not None and signing is not None:
        token = signing.signer.sign(envelope.scope, envelope.run_id, asked, now_ms=signing.now_ms)
    return UnknownEffect(
        receipt.call_id,
        receipt.tool,
        arguments,
        receipt.step,
        effect_id(envelope.run_id, receipt, arguments),
        receipt.attempt,
        receipt.idempotent,
        asked,
        token,
        envelope.run_id,
    )
