"""What happened to a run, what nobody knows about it, and what to do: a report that a person can act on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from deuz_workers.app.access import not_found
from deuz_workers.app.below import read_below
from deuz_workers.app.commands import answer_commands, place_of, ways_out
from deuz_workers.app.pending import (
    Pending,
    PendingApproval,
    PendingClientCall,
    Signing,
    pending_approvals,
    pending_client_calls,
)
from deuz_workers.app.results import UnknownEffect, effects_of
from deuz_workers.app.run_event import RunEvent, event_of
from deuz_workers.core.change import FINAL, Head, RunStatus, Stage
from deuz_workers.core.lost_commits import WENT_BACKWARDS
from deuz_workers.core.receipts import Receipt, fold_receipts
from deuz_workers.core.run import Run, read_run
from deuz_workers.ports.store import Loaded, RunStore, UncleanEnd
from deuz_workers.store.opening import open_store

NEWEST_EVENTS = 500
"""Of the journal in a report; `handle.events` has all."""


@dataclass(frozen=True, slots=True)
class ReportedCall:
    """A tool call as its receipt has it."""

    step: int
    tool_call_id: str
    tool_name: str
    stage: Stage
    attempt: int
    idempotent: bool | None
    outcome: str | None
    reconciled: bool


@dataclass(frozen=True, slots=True)
class ToDo:
    """Something that somebody has to do, and the commands for it; without any, it goes on by itself."""

    what: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunReport:
    """Of one moment. Times are Unix time in milliseconds by the store's clock."""

    run_id: str
    scope: str
    agent: str
    status: RunStatus
    """As stored; a parked run is not final."""
    parked: str | None
    reason: str | None
    error: Mapping[str, object] | None
    revision: int
    created_at_ms: int
    now_ms: int
    events: tuple[RunEvent, ...]
    """The newest of its journal, oldest first."""
    earlier_events: int
    """How many there were before those."""
    calls: tuple[ReportedCall, ...]
    unknown_effects: tuple[UnknownEffect, ...]
    """Interrupted calls that may not be repeated without a word, those of old receipts included."""
    pending_approvals: tuple[PendingApproval, ...]
    pending_client_calls: tuple[PendingClientCall, ...]
    unclean_ends: tuple[UncleanEnd, ...]
    to_do: tuple[ToDo, ...]

    @property
    def text(self) -> str:
        """For people."""
        state = f"{self.status}, parked: {self.parked}" if self.parked else self.status
        lines = [
            f"run {self.run_id} of {self.agent} in scope {self.scope}: {state}" + (f" ({self.reason})" if self.reason else "")
        ]
        if self.error is not None:
            lines.append(f"error: {self.error.get('name')}: {self.error.get('message')}")
        if self.earlier_events:
            lines.append(f"happened ({self.earlier_events} events before these):")
        lines += [f"  {_moment(event.at_ms)}  {event.type}{_details(event.data)}" for event in self.events]
        for effect in self.unknown_effects:
            lines.append(
                f"unknown: {effect.tool_name} (call {effect.tool_call_id}, turn {effect.step}, attempt {effect.attempt})"
            )
        for task in self.to_do:
            lines += [f"to do: {task.what}", *(f"  {command}" for command in task.commands)]
        return "\n".join(lines)


async def inspect_run(run_id: str, *, store: str | RunStore, scope: str = "default") -> RunReport:
    """A report on a stored run; nothing is written. `store`: a database URL or a store of yours.

    Raises `RunNotFoundError`, `CheckpointVersionError`, `StoreUnavailableError`.
    """
    if not isinstance(store, str):
        return await report_on(store, scope, run_id)
    opened = open_store(store)
    try:
        return await report_on(opened, scope, run_id)
    finally:
        await opened.close()


async def report_on(store: RunStore, scope: str, run_id: str, signing: Signing | None = None) -> RunReport:
    """`signing`: for the tokens of requests that are shown."""
    loaded = await store.load(scope, run_id)
    if loaded is None:
        raise not_found(scope, run_id)
    return await report_of(store, loaded, read_run(loaded.head, loaded.messages, loaded.receipts), signing)


async def report_of(store: RunStore, loaded: Loaded, run: Run, signing: Signing | None = None) -> RunReport:
    """On a run that was loaded, whole; `run` is what was read of it."""
    head = loaded.head
    scope, run_id = head.scope, head.run_id
    skipped = max(0, head.journal_seq - NEWEST_EVENTS)
    rows = await store.journal(scope, run_id, skipped, NEWEST_EVENTS)
    ends = await store.unclean_ends(scope, run_id) if head.attempts else ()
    waits = head.status == "suspended"
    approvals = pending_approvals(loaded.items, signing, scope) if waits else ()
    client_calls = pending_client_calls(loaded.items, scope) if waits else ()
    below = await read_below(store, head, signing)
    approvals, client_calls = (*approvals, *below.approvals), (*client_calls, *below.client_calls)
    effects = () if head.status in FINAL else (*effects_of(run, signing), *below.effects)
    return RunReport(
        run_id=run_id,
        scope=scope,
        agent=head.agent,
        status=head.status,
        parked=head.parked,
        reason=run.envelope.reason,
        error=run.envelope.error,
        revision=head.revision,
        created_at_ms=head.created_at_ms,
        now_ms=await store.now_ms(),
        events=tuple(map(event_of, rows)),
        earlier_events=skipped,
        calls=tuple(map(_call, fold_receipts(loaded.receipts).values())),
        unknown_effects=effects,
        pending_approvals=approvals,
        pending_client_calls=client_calls,
        unclean_ends=ends,
        to_do=tuple(_to_do(head, run, effects, (*approvals, *client_calls))),
    )


def _call(receipt: Receipt) -> ReportedCall:
    return ReportedCall(
        receipt.step,
        receipt.call_id,
        receipt.tool,
        receipt.stage,
        receipt.attempt,
        receipt.idempotent,
        receipt.outcome,
        receipt.reconciled,
    )


def _to_do(head: Head, run: Run, effects: tuple[UnknownEffect, ...], waiting: tuple[Pending, ...]) -> Iterator[ToDo]:
    shown = [asdict(effect) for effect in effects]
    if head.parked is not None:
        what = {
            "tool-reconciliation-required": "find out where these tools write what became of their calls, and say it",
            "quarantine": "find out what ends the processes that work on it, and free it then",
            WENT_BACKWARDS: "the store lost what the run did last; look where its tools write, and decide how it goes on",
        }.get(head.parked, "somebody has to say that it may go on")
        yield ToDo(what, tuple(ways_out(head.run_id, head.scope, head.parked, shown)))
    elif effects:
        yield ToDo(
            "a tool is at work, or its process died; the next look at the run, a lease after a death, says which",
            (f"deuz runs show {shlex.quote(head.run_id)}{place_of(head.scope)}",),
        )
    for item in waiting:
        asks = "approve or deny" if isinstance(item, PendingApproval) else "hand in the client's result of"
        what = f"{asks} {item.tool_name} (call {item.tool_call_id}, turn {item.step})"
        yield ToDo(what, tuple(answer_commands(head.run_id, head.scope, asdict(item))))
    memory = run.envelope.memory
    if memory is not None and memory.extraction is not None and memory.extraction.status == "failed":
        code = (memory.extraction.error or {}).get("code")
        yield ToDo(f"what it leaves in the memory was not extracted ({code}): reconcile_agent_run(..., agent=...) looks again")
    if run.envelope.checkpoint.open_call is not None and head.status not in FINAL:
        yield ToDo("nothing: a model call is open, or its process died and the next one repeats it")


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _details(data: Mapping[str, object]) -> str:
    return "".join(f"  {name}={value}" for name, value in data.items())
