"""Runs for tests of the pure core: made by hand, no store, no clock."""

from __future__ import annotations

from uuid import UUID

from deuz_workers.core.change import Change, Head
from deuz_workers.core.envelope import AgentRunEnvelope, OpenCall
from deuz_workers.core.events import CallCompleted, CallExecuted, CallStarted, Event, ModelCallStarted, ModelReplied
from deuz_workers.core.evolve import evolve_all
from deuz_workers.core.history import History
from deuz_workers.core.messages import Message, Part, TextPart, ToolUsePart, user
from deuz_workers.core.run import Read, Run, read_run, saved, to_change
from deuz_workers.core.usage import Usage

RID = UUID(int=7)
COMMIT = UUID(int=9)


def queued(**changes: object) -> Run:
    """A run with one prompt that nobody has looked at."""
    fields: dict[str, object] = {"rid": RID, "scope": "s", "run_id": "r", "run_kind": "agent", "agent": "a", "last_seq": 0}
    return Run(AgentRunEnvelope(**(fields | changes)), History([user("go")]))  # pyright: ignore[reportArgumentType]


def call(call_id: str, name: str = "add", **arguments: object) -> ToolUsePart:
    return ToolUsePart(call_id, name, arguments)


def opened(attempt: int = 1) -> ModelCallStarted:
    return ModelCallStarted(OpenCall(f"q{attempt}", attempt, 100, None))


def replied(*parts: Part | str) -> ModelReplied:
    made = tuple(TextPart(part) if isinstance(part, str) else part for part in parts)
    finish = "tool_calls" if any(isinstance(part, ToolUsePart) for part in made) else "stop"
    return ModelReplied(Message("assistant", made), finish, Usage(10, 5))


def ran(call_id: str, value: object = 3, tool: str = "add") -> tuple[Event, ...]:
    return (CallStarted(call_id, tool, False), CallExecuted(call_id, value), CallCompleted(call_id))


def after(run: Run, *events: Event) -> Run:
    return evolve_all(run, events)


def stored(run: Run) -> Run:
    """The run as somebody else would load it, after everything so far was committed in one commit."""
    return reload(run, to_change(run, COMMIT))


def reload(run: Run, change: Change) -> Run:
    """The run that the rows of `change`, added to what was saved before, describe."""
    envelope = run.envelope
    head = Head(
        rid=envelope.rid,
        scope=envelope.scope,
        run_id=envelope.run_id,
        kind=envelope.run_kind,
        agent=envelope.agent,
        queue="default",
        priority=0,
        shard=0,
        revision=change.expected + 1,
        commit_id=change.commit_id,
        version=change.version,
        status=change.status,
        phase=change.phase,
        epoch=change.epoch,
        last_seq=change.last_seq,
        journal_seq=change.journal_seq + len(change.journal),
        seen_seq=change.seen_seq,
        body=change.body,
        mid_step=change.mid_step,
        wake_seq=change.seen_seq,
        cancel_seq=0,
        open_items=0,
        parked=None,
        attempts=0,
        due_in_ms=change.due_in_ms,
        deadline_in_ms=None,
        start_before_in_ms=None,
        swarm_rid=envelope.swarm_rid,
        task_id=envelope.task_id,
    )
    if run.unsaved.compacts:
        raise AssertionError("the rows before are not here; what was compacted is read from all of them")
    before = History(list(run.history)[: len(run.history) - len(change.messages)])
    return read_run(head, change.messages, change.receipts, Read(before, run.compaction))


def settled(run: Run) -> Run:
    """The same run in the same process, its change applied."""
    return saved(run, run.envelope.revision + 1)
