"""`deuz runs`: what runs there are, how they stand, and what people say to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from deuz_workers.cli.amounts import ago, duration, money, tokens
from deuz_workers.cli.exits import exit_of_status
from deuz_workers.cli.output import Output
from deuz_workers.cli.session import AppOption, JsonOption, ScopeOption, application, on_app, pairs
from deuz_workers.errors import ConfigurationError

if TYPE_CHECKING:
    from deuz_workers.app.async_handle import AsyncHandle
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.core.change import Head, RunStatus

app = typer.Typer(help="Runs: list, show, watch, cancel, approve, deny.", no_args_is_help=True)

RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")]
Reason = Annotated[str | None, typer.Option(help="Why; recorded with the answer.")]

STATUSES = ("queued", "running", "suspended", "completed", "stopped", "failed")
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


def coloured(status: str) -> str:
    return f"[{COLOURS.get(status, 'white')}]{status}[/]"


@app.command("list")
def list_runs(
    place: AppOption = None,
    scope: Annotated[str | None, typer.Option(help="Only this tenant's; all if not given.")] = None,
    status: Annotated[list[str] | None, typer.Option(help=f"Any of {', '.join(STATUSES)}; may be repeated.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent's.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only this queue's.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only with this tag; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Rows on this page.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Where the page before ended.")] = None,
    json: JsonOption = False,
) -> None:
    """Newest change of status first."""
    from deuz_workers.ports.store import RunPage, RunQuery

    for given in status or ():
        if given not in STATUSES:
            raise ConfigurationError(f"--status is one of {', '.join(STATUSES)}, not {given!r}")
    query = RunQuery(
        scope=scope,
        status=tuple(status or ()),  # pyright: ignore[reportArgumentType] - checked above
        agent=agent,
        queue=queue,
        tags=pairs(tag or [], "--tag"),
        limit=limit,
        cursor=cursor,
    )

    async def page(deuz: Deuz) -> tuple[RunPage, int]:
        return await deuz.store.list_runs(query), await deuz.store.now_ms()

    found, now_ms = on_app(application(place), page)
    output = Output(json)
    output.document({"runs": [summary(head) for head in found.heads], "cursor": found.cursor})
    if not found.heads:
        output.show("no runs match")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("run", "scope", "agent", "status", "turns", "tokens", "cost", "created"):
        table.add_column(column, overflow="fold", justify="right" if column in ("turns", "tokens", "cost") else "left")
    for head in found.heads:
        table.add_row(
            escape(head.run_id),
            escape(head.scope),
            escape(head.agent),
            coloured(head.listed_status),
            str(head.model_step),
            tokens(head.tokens),
            money(head.cost_micros),
            ago(head.created_at_ms, now_ms),
        )
    output.show(table)
    if found.cursor is not None:
        output.show(f"[dim]more: --cursor {escape(found.cursor)}[/]")


@app.command()
def show(
    run_id: RunId,
    place: AppOption = None,
    scope: ScopeOption = "default",
    full: Annotated[bool, typer.Option("--full", help="The whole output, however long.")] = False,
    json: JsonOption = False,
) -> None:
    """How a run stands: status, usage, who holds it, what it waits for, how it ended."""
    record = on_app(application(place), lambda deuz: describe(deuz, deuz.aio.handle(run_id, scope)))
    output = Output(json)
    output.document(record)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _lines(record, full=full):
        table.add_row(name, value)
    output.show(table)


@app.command()
def watch(
    run_id: RunId,
    place: AppOption = None,
    scope: ScopeOption = "default",
    after: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    json: JsonOption = False,
) -> None:
    """Follow the events of a run until it ends. With --json one event a line. Ends with the code of the run's end."""
    output = Output(json)

    async def follow(deuz: Deuz) -> RunStatus:
        handle = deuz.aio.handle(run_id, scope)
        start_ms: int | None = None
        async for event in handle.events(after):
            start_ms = start_ms or event.at_ms
            output.document({"seq": event.seq, "type": event.type, "at_ms": event.at_ms, **event.data})
            output.show(event_line(event.seq, event.type, event.data, event.at_ms - start_ms))
        return await handle.status()

    status = on_app(application(place), follow)
    output.show(f"run {escape(run_id)} is {coloured(status)}")
    raise typer.Exit(exit_of_status(status))


@app.command()
def cancel(
    run_id: RunId, place: AppOption = None, scope: ScopeOption = "default", reason: Reason = None, json: JsonOption = False
) -> None:
    """Ask for the end of a run. A tool that runs is told and waited for."""
    accepted = on_app(application(place), lambda deuz: deuz.aio.handle(run_id, scope).cancel(reason))
    output = Output(json)
    output.document({"run_id": run_id, "scope": scope, "accepted": accepted})
    output.show("it will end as stopped / aborted" if accepted else "it had ended before; nothing was changed")


@app.command()
def approve(
    run_id: RunId,
    item: Annotated[str | None, typer.Argument(help="Id of the pending call; may be left out where one is pending.")] = None,
    place: AppOption = None,
    scope: ScopeOption = "default",
    reason: Reason = None,
    json: JsonOption = False,
) -> None:
    """Let a call run that waits for a person."""
    _answer(run_id, item, place, scope, reason, json, approved=True)


@app.command()
def deny(
    run_id: RunId,
    item: Annotated[str | None, typer.Argument(help="Id of the pending call; may be left out where one is pending.")] = None,
    place: AppOption = None,
    scope: ScopeOption = "default",
    reason: Reason = None,
    json: JsonOption = False,
) -> None:
    """Refuse a call that waits for a person; the model is told, with the reason."""
    _answer(run_id, item, place, scope, reason, json, approved=False)


def _answer(
    run_id: str, item: str | None, place: str | None, scope: str, reason: str | None, json: bool, *, approved: bool
) -> None:
    async def answer(deuz: Deuz) -> tuple[str, Any]:
        handle = deuz.aio.handle(run_id, scope)
        chosen = item or await _only_item(handle)
        return chosen, await (handle.approve if approved else handle.deny)(chosen, reason)

    chosen, stored = on_app(application(place), answer)
    output = Output(json)
    output.document({"run_id": run_id, "item": chosen, **asdict(stored)})
    if stored.stored:
        left = f"; {stored.open_items} more wait" if stored.open_items else ""
        output.show(f"{'approved' if approved else 'denied'} {escape(chosen)}{left}")
    else:
        output.show(f"{escape(chosen)} was answered before, and that answer stays")


async def _only_item(handle: AsyncHandle) -> str:
    pending = await handle.pending()
    if len(pending) == 1:
        return pending[0].approval_id
    await handle.status()  # says so if there is no such run
    if not pending:
        raise ConfigurationError(f"run {handle.run_id!r} waits for no approval")
    known = ", ".join(f"{call.approval_id} ({call.tool_name})" for call in pending)
    raise ConfigurationError(f"run {handle.run_id!r} waits for {len(pending)} answers; name one of {known}")


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
    from deuz_workers.core.names import run_lease_key
    from deuz_workers.errors import ConfigurationError, LeaseStoreUnavailableError

    head = await deuz.store.head(handle.scope, handle.run_id)
    if head is None:
        raise not_found(handle.scope, handle.run_id)
    envelope = decode_envelope(head)
    try:
        peek = await deuz.leases.peek(run_lease_key(head.scope, head.run_id))
        holder = None if peek.ms_left is None else {"process": peek.owner.rpartition("#")[0], "ms_left": peek.ms_left}
    except (ConfigurationError, LeaseStoreUnavailableError):  # the row is the truth; who holds it is a courtesy
        holder = None
    return {
        **summary(head),
        "phase": head.phase,
        "attempts": head.attempts,
        "due_in_ms": head.due_in_ms,
        "deadline_in_ms": head.deadline_in_ms,
        "holder": holder,
        "usage": envelope.usage.to_record(),
        "reason": envelope.reason,
        "error": None if envelope.error is None else dict(envelope.error),
        "has_output": envelope.has_output,
        "output": envelope.output,
        "pending": [asdict(call) for call in await handle.pending()],
        "age_ms": await deuz.store.now_ms() - head.created_at_ms,
    }


def event_line(seq: int, kind: str, data: Mapping[str, object], after_ms: int) -> str:
    """One event of the journal for people."""
    details = "  ".join(f"[dim]{escape(name)}[/]={escape(str(value))}" for name, value in data.items())
    return f"[dim]{seq:>4}  +{duration(after_ms):>7}[/]  {escape(kind):<16} {details}"


def _lines(record: Mapping[str, Any], *, full: bool) -> list[tuple[str, str]]:
    place = f"scope {record['scope']}, queue {record['queue']}, revision {record['revision']}"
    lines = [
        ("run", escape(f"{record['run_id']}  ({place})")),
        ("agent", escape(str(record["agent"]))),
        ("status", coloured(str(record["status"])) + (f"  ({escape(str(record['reason']))})" if record["reason"] else "")),
        ("created", f"{duration(record['age_ms'])} ago"),
        ("used", f"{record['turns']} turns, {tokens(record['tokens'])} tokens, {money(record['cost_micros'])}"),
    ]
    if record["parked"]:
        lines.append(("parked", f"[yellow]{escape(str(record['parked']))}[/]"))
    if record["attempts"]:
        lines.append(("unclean ends", f"{record['attempts']} since the last progress"))
    if holder := record["holder"]:
        lines.append(("held by", f"{escape(str(holder['process'] or 'a worker'))}, {duration(holder['ms_left'])} left"))
    if record["due_in_ms"] is not None:
        due_ms = record["due_in_ms"]
        lines.append(("due", "now" if due_ms <= 0 else f"in {duration(due_ms)}"))
    lines += [("waits for", escape(f"{call['tool_name']}  (item {call['approval_id']})")) for call in record["pending"]]
    if error := record["error"]:
        lines.append(("error", f"[red]{escape(str(error.get('name')))}[/]: {escape(str(error.get('message')))}"))
    if record["has_output"]:
        text = record["output"] if isinstance(record["output"], str) else repr(record["output"])
        cut = text if full or len(text) <= SHOWN_OUTPUT_CHARS else f"{text[:SHOWN_OUTPUT_CHARS]}... (--full shows all)"
        lines.append(("output", escape(cut)))
    return lines
