"""What `deuz runs` and `deuz run` say of a run, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from deuz_workers.app.commands import answer_commands, ways_out
from deuz_workers.cli.amounts import ago, cost, counted, duration
from deuz_workers.core.brake import Begins, Brake
from deuz_workers.core.change import FINAL
from deuz_workers.core.failover import ModelId
from deuz_workers.core.lost_commits import WENT_BACKWARDS, seen_before

if TYPE_CHECKING:
    from deuz_workers.app.async_handle import AsyncHandle
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.core.change import Head
    from deuz_workers.core.envelope import AgentRunEnvelope
    from deuz_workers.ports.store import UncleanEnd

COLOURS: Mapping[str, str] = {
    "queued": "dim",
    "running": "cyan",
    "suspended": "yellow",
    "completed": "green",
    "stopped": "magenta",
    "failed": "red",
}
SHOWN_OUTPUT_CHARS = 2_000
"""Of an output on a terminal; `--full` and `--json` show all of it."""
SHOWN_ARGUMENTS_CHARS = 100
SHOWN_EVENTS = 200
"""Of the journal, the newest ones; `deuz runs watch` has all."""
SHOWN_CHILDREN = 200
"""Runs that it delegated, the oldest ones."""
LISTED_EVENTS = 12
"""Of those on a terminal without `--full`."""


def coloured(status: str) -> str:
    return f"[{COLOURS.get(status, 'white')}]{status}[/]"


def arguments_line(arguments: object) -> str:
    """Arguments of a call in one line, clipped."""
    text = " ".join(json.dumps(arguments, default=repr, ensure_ascii=False).split())
    return text if len(text) <= SHOWN_ARGUMENTS_CHARS else f"{text[: SHOWN_ARGUMENTS_CHARS - 3]}..."


def _again(effect: Mapping[str, Any]) -> str:
    return "" if effect["attempt"] == 1 else f", attempt {effect['attempt']}"


def _terms(call: Mapping[str, Any]) -> str:
    """Who is asked, and when what happens."""
    said: list[str] = []
    if call.get("people"):
        said.append(f"one of {', '.join(call['people'])}" if call["needed"] == 1 else f"by {', '.join(call['people'])}")
    if call.get("needed", 1) > 1:
        approved = f" ({', '.join(call['approved_by'])} did)" if call["approved_by"] else ""
        said.append(f"needs {call['needed']}{approved}")
    for name, text in (("assignee", "for {}"), ("escalate_to", "then {}")):
        if call.get(name):
            said.append(text.format(call[name]))
    for name, text in (("remind_in_ms", "reminder"), ("escalate_in_ms", "escalates"), ("expires_in_ms", "expires")):
        left_ms = call.get(name)
        if left_ms is not None:
            said.append(f"{text} in {duration(left_ms)}" if left_ms > 0 else f"{text} now")
    return f"  [{'; '.join(said)}]" if said else ""


def went_backwards(revision: int) -> str:
    """What became of a run whose store lost commits, from the revision that it is parked at."""
    return (
        f"revision {seen_before(revision)} of it was saved once, and the database has an older record now: it failed over to a "
        "standby that was behind, or was restored. What the run did after this record is not known here; see deuz runs watch "
        "for the last that is, and look where its tools write before it goes on"
    )


def summary(head: Head) -> dict[str, object]:
    """What listings say of a run, for JSON."""
    return {
        "run_id": head.run_id,
        "scope": head.scope,
        "kind": head.kind,
        "agent": head.agent,
        "queue": head.queue,
        "status": head.listed_status,
        "parked": head.parked,
        "revision": head.revision,
        "turns": head.model_step,
        "tokens": head.tokens,
        "cost_micros": head.cost_micros,
        "created_at_ms": head.created_at_ms,
    }


async def describe(deuz: Deuz, handle: AsyncHandle) -> dict[str, object]:
    """Everything that `show` says. Raises `RunNotFoundError`."""
    from deuz_workers.app.access import not_found
    from deuz_workers.core.envelope import decode_envelope

    head = await deuz.store.head(handle.scope, handle.run_id)
    if head is None:
        raise not_found(handle.scope, handle.run_id)
    envelope = decode_envelope(head)
    holder = await _holder(deuz, head)
    ends = await deuz.store.unclean_ends(head.scope, head.run_id) if head.attempts else ()
    effects = await handle.unknown_effects() if head.parked else ()
    skipped = max(0, head.journal_seq - SHOWN_EVENTS)
    happened = [
        {"seq": event.seq, "type": event.type, "at_ms": event.at_ms, **event.data}
        async for event in handle.events(skipped, follow=False)
    ]
    return {
        **summary(head),
        "phase": head.phase,
        "attempts": head.attempts,
        "due_in_ms": head.due_in_ms,
        "deadline_in_ms": head.deadline_in_ms,
        "holder": holder,
        "left_alone": None if holder else _left_alone(head),
        "concurrency": await _concurrency(deuz, head),
        "braked": [] if head.status in FINAL else [asdict(brake) for brake in await _brakes(deuz, head, envelope.active_agent)],
        "usage": envelope.usage.to_record(),
        "children": [asdict(child) for child in await deuz.store.children(head.rid, SHOWN_CHILDREN)],
        "usage_by_model": {model: used.to_record() for model, used in envelope.usage_by_model.items()},
        "reason": envelope.reason,
        "stop_details": None if envelope.stop_details is None else dict(envelope.stop_details),
        "error": None if envelope.error is None else dict(envelope.error),
        "has_output": envelope.has_output,
        "output": envelope.output,
        "pending": [asdict(call) for call in await handle.pending()],
        "pending_client_calls": [asdict(call) for call in await handle.pending_client_calls()],
        "unknown_effects": [asdict(effect) for effect in effects],
        "unclean_ends": [_unclean_end(end) for end in ends],
        "answered_by": _answered_by(happened, envelope),
        "models": None if envelope.models is None else envelope.models.to_record(),
        "active_agent": envelope.active_agent,
        "handoffs": [handoff.to_record() for handoff in envelope.handoffs],
        "happened": happened,
        "earlier_events": skipped,
        "now_ms": (now_ms := await deuz.store.now_ms()),
        "age_ms": now_ms - head.created_at_ms,
    }


def _answered_by(happened: list[dict[str, Any]], envelope: AgentRunEnvelope) -> object:
    """The model of the newest reply; None while there is none."""
    newest = next((event for event in reversed(happened) if event["type"] == "model.replied"), None)
    return None if newest is None else newest.get("model") or (envelope.binding or {}).get("model")


def _failed_over(models: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Which models the run gave up, and for what."""
    return [
        (
            "failed over",
            escape(
                f"turn {each['step']}: {ModelId.from_record(each['failed']).name} to "
                f"{ModelId.from_record(each['next']).name} ({each['kind']}: {each['error'].get('message')})"
            ),
        )
        for each in (models or {}).get("failovers", ())
    ]


def _handed_over(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Who drives the run, where it was handed over, and how it came to that."""
    if not record["handoffs"]:
        return []
    went = "; ".join(f"turn {each['step']}: {each['from']} to {each['to']}" for each in record["handoffs"])
    return [("driven by", escape(f"{record['active_agent']}  ({went})"))]


async def _concurrency(deuz: Deuz, head: Head) -> dict[str, object] | None:
    """The run's concurrency key, whether it has a slot of it, and how many have and wait."""
    if head.slot_key is None:
        return None
    counters = await deuz.store.slot_counters(head.scope, head.slot_key)
    return {"key": head.slot_key, "slot": head.slot, **({} if counters is None else asdict(counters))}


async def _brakes(deuz: Deuz, head: Head, driver: str) -> list[Brake]:
    """Those on the run's scope, agent or queue; which model or tool it comes to next, nobody knows here."""
    begins = Begins(head.scope, head.agent, head.queue, driver=driver)
    return [brake for brake in await deuz.aio.operator.brakes() if begins.held_by([brake])]


def _left_alone(head: Head) -> str | None:
    """Who goes on with a run that no worker takes unless it is told to; None where workers do, or nobody needs to."""
    from deuz_workers.app.embedded import IN_PROCESS_QUEUE
    from deuz_workers.core.change import FINAL

    if head.queue != IN_PROCESS_QUEUE or head.status in FINAL:
        return None
    return (
        f"the process that started it, and that is not at work on it now; resume_agent goes on with it, or "
        f"deuz worker -Q {IN_PROCESS_QUEUE}"
    )


async def _holder(deuz: Deuz, head: Head) -> dict[str, object] | None:
    """Who has the run's lease. The row is the truth; this is a courtesy, and makes no file of leases."""
    from deuz_workers.core.names import run_lease_key
    from deuz_workers.errors import ConfigurationError, LeaseStoreUnavailableError
    from deuz_workers.store.opening import sqlite_file

    try:
        file = None if deuz.has_own_store else sqlite_file(deuz.settings.leases)
        if file is not None and not file.exists():
            return None
        peek = await deuz.leases.peek(run_lease_key(head.scope, head.run_id))
    except (ConfigurationError, LeaseStoreUnavailableError):
        return None
    return None if peek.ms_left is None else {"process": peek.owner.rpartition("#")[0], "ms_left": peek.ms_left}


def _unclean_end(end: UncleanEnd) -> dict[str, object]:
    """With what is known of it: `found`, what was found, `by` which process, and whether it ran `alone` there."""
    try:
        evidence: object = json.loads(end.evidence)
    except ValueError:
        evidence = None
    return {**(evidence if isinstance(evidence, dict) else {}), "number": end.number, "at_ms": end.at_ms}


def event_line(seq: int, kind: str, data: Mapping[str, object], after_ms: int) -> str:
    """One event of the journal for people."""
    details = "  ".join(f"[dim]{escape(name)}[/]={escape(str(value))}" for name, value in data.items())
    return f"[dim]{seq:>4}  +{duration(after_ms):>7}[/]  {escape(kind):<16} {details}"


def lines_of(record: Mapping[str, Any], *, full: bool) -> list[tuple[str, str]]:
    place = f"scope {record['scope']}, queue {record['queue']}, revision {record['revision']}"
    lines = [
        ("run", escape(f"{record['run_id']}  ({place})")),
        ("agent", escape(str(record["agent"]))),
        *_handed_over(record),
        ("status", coloured(str(record["status"])) + (f"  ({escape(str(record['reason']))})" if record["reason"] else "")),
        *([("because", escape(str(why)))] if (why := (record["stop_details"] or {}).get("cancel_reason")) else []),
        ("created", f"{duration(record['age_ms'])} ago"),
        ("used", f"{counted(record['turns'], 'turn')}, {counted(record['tokens'], 'token')}, {cost(record['cost_micros'])}"),
    ]
    if model := record["answered_by"]:
        lines.append(("answered by", escape(str(model))))
    lines += _failed_over(record["models"])
    lines += [
        (
            "of that" if not place else "",
            escape(f"{model}: {counted(used['input_tokens'] + used['output_tokens'], 'token')}, {cost(used['cost_micros'])}"),
        )
        for place, (model, used) in enumerate(sorted(record["usage_by_model"].items()))
    ]
    lines += [
        (
            "children" if not place else "",
            (
                f"{escape(child['run_id'])}  {coloured(child['status'])}  {counted(child['model_step'], 'turn')}, "
                f"{counted(child['tokens'], 'token')}, {cost(child['cost_micros'])}"
            ),
        )
        for place, child in enumerate(record["children"])
    ]
    if key := record["concurrency"]:
        has = {"held": "has a slot", "waiting": "waits for a slot"}.get(key["slot"], "holds no slot")
        counts = f", {key['used']} of {key['slots']} in use, {key['waiting']} waiting" if "slots" in key else ""
        lines.append(("concurrency", escape(f"{has} of {key['key']}{counts}")))
    lines += [
        (
            "braked",
            escape(
                f"{brake['kind']} {brake['name']}, {ago(brake['at_ms'], record['now_ms'])}"
                + (f" by {brake['actor']}" if brake["actor"] else "")
                + (f": {brake['reason']}" if brake["reason"] else "")
            ),
        )
        for brake in record["braked"]
    ]
    lines += [
        (
            "unclean end",
            escape(f"{end['number']}, {ago(end['at_ms'], record['now_ms'])}: {end.get('found')}, found by {end.get('by')}"),
        )
        for end in record["unclean_ends"]
    ]
    if parked := record["parked"]:
        lines.append(("parked", f"[yellow]{escape(str(parked))}[/]: it goes on when somebody says so"))
        if parked == WENT_BACKWARDS:
            lines.append(("lost", went_backwards(record["revision"])))
        lines += [
            (
                "unknown",
                escape(
                    f"{effect['tool_name']}  (call {effect['tool_call_id']}, turn {effect['step']}{_again(effect)})  "
                    f"{arguments_line(effect['arguments'])}"
                ),
            )
            for effect in record["unknown_effects"]
        ]
        lines += [
            ("way out", escape(way))
            for way in ways_out(str(record["run_id"]), str(record["scope"]), str(parked), record["unknown_effects"])
        ]
    if holder := record["holder"]:
        lines.append(("held by", f"{escape(str(holder['process'] or 'a worker'))}, {duration(holder['ms_left'])} left"))
    if record["left_alone"]:
        lines.append(("driven by", escape(str(record["left_alone"]))))
    if record["due_in_ms"] is not None:
        due_ms = record["due_in_ms"]
        lines.append(("due", "now" if due_ms <= 0 else f"in {duration(due_ms)}"))
    for call in (*record["pending"], *record["pending_client_calls"]):
        item_id = call.get("approval_id") or call["item_id"]
        asked = f"{call['tool_name']}  (item {item_id})  {arguments_line(call['arguments'])}"
        lines.append(("waits for", escape(asked + _terms(call))))
        lines += [("answer with", escape(way)) for way in answer_commands(str(record["run_id"]), str(record["scope"]), call)]
    lines += _happened(record, full=full)
    if error := record["error"]:
        lines.append(("error", f"[red]{escape(str(error.get('name')))}[/]: {escape(str(error.get('message')))}"))
    if record["has_output"]:
        text = record["output"] if isinstance(record["output"], str) else repr(record["output"])
        cut = text if full or len(text) <= SHOWN_OUTPUT_CHARS else f"{text[:SHOWN_OUTPUT_CHARS]}... (--full shows all)"
        lines.append(("output", escape(cut)))
    return lines


def _happened(record: Mapping[str, Any], *, full: bool) -> list[tuple[str, str]]:
    """The newest events in order, each with the time that had passed since the run was created."""
    events: list[dict[str, Any]] = list(record["happened"])
    shown = events if full else events[-LISTED_EVENTS:]
    lines: list[tuple[str, str]] = []
    if left := record["earlier_events"] + len(events) - len(shown):
        lines.append(
            ("happened", f"[dim]{counted(left, 'event')} before these: deuz runs watch {escape(str(record['run_id']))}[/]")
        )
    for event in shown:
        data = {name: value for name, value in event.items() if name not in ("seq", "type", "at_ms")}
        line = event_line(event["seq"], event["type"], data, event["at_ms"] - record["created_at_ms"])
        lines.append(("happened" if not lines else "", line))
    return lines
