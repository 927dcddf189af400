"""`deuz runs`: what runs there are, how they stand, and what people say to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from deuz_workers.app.commands import ways_out
from deuz_workers.cli import answer, lifecycle, settle
from deuz_workers.cli.amounts import ago, money, tokens
from deuz_workers.cli.exits import exit_of_status
from deuz_workers.cli.output import Output
from deuz_workers.cli.run_views import coloured, describe, event_line, lines_of, summary
from deuz_workers.cli.session import AppOption, JsonOption, ScopeOption, on_app, pairs, stored
from deuz_workers.errors import ConfigurationError

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.app.results import UnknownEffect
    from deuz_workers.core.change import Head

app = typer.Typer(
    help="Runs: list, show, watch, cancel, approve, deny, answer, retry, reconcile, prune, fork, export, import.",
    no_args_is_help=True,
)
app.command("approve")(answer.approve)
app.command("deny")(answer.deny)
app.command("answer")(answer.answer)
app.command("retry")(settle.retry)
app.command("reconcile")(settle.reconcile)
app.command("prune")(lifecycle.prune)
app.command("fork")(lifecycle.fork)
app.command("export")(lifecycle.export)
app.command("import")(lifecycle.import_)

RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")]
Reason = Annotated[str | None, typer.Option(help="Why; recorded with the answer.")]

STATUSES = ("queued", "running", "suspended", "completed", "stopped", "failed")


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

    found, now_ms = on_app(stored(place), page)
    output = Output(json)
    output.document({"runs": [summary(head) for head in found.heads], "cursor": found.cursor})
    if not found.heads:
        output.show("no runs match")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("run", "scope", "agent", "status", "turns", "tokens", "cost", "created"):
        justify = "right" if column in ("turns", "tokens", "cost") else "left"
        if column == "run":  # whole, to be copied and searched for
            table.add_column(column, no_wrap=True, min_width=max(len(head.run_id) for head in found.heads))
        else:
            table.add_column(column, overflow="fold", justify=justify)
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
    record = on_app(stored(place), lambda deuz: describe(deuz, deuz.aio.handle(run_id, scope)))
    output = Output(json)
    output.document(record)
    for name, value in lines_of(record, full=full):
        output.show(f"[bold]{name:<12}[/] {value}")


@app.command()
def watch(
    run_id: RunId,
    place: AppOption = None,
    scope: ScopeOption = "default",
    after: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    json: JsonOption = False,
) -> None:
    """Follow the events of a run until it ends or is parked. With --json one event a line. Ends with the code of the run."""
    from deuz_workers.app.access import Pauses
    from deuz_workers.core.change import FINAL

    output = Output(json)

    async def follow(deuz: Deuz) -> tuple[Head, Sequence[UnknownEffect]]:
        handle = deuz.aio.handle(run_id, scope)
        start_ms: int | None = None
        seen, pauses = after, Pauses(deuz.clock)
        while True:
            head = await deuz.store.head(scope, run_id)
            async for event in handle.events(seen, follow=False):  # says so if there is no such run
                seen, start_ms = event.seq, start_ms or event.at_ms
                output.document({"seq": event.seq, "type": event.type, "at_ms": event.at_ms, **event.data})
                output.show(event_line(event.seq, event.type, event.data, event.at_ms - start_ms))
                pauses.start_again()
            if head is not None and head.parked is not None:
                return head, await handle.unknown_effects()
            if head is not None and head.status in FINAL:
                return head, ()
            await pauses.wait()

    head, effects = on_app(stored(place), follow)
    output.show(f"run {escape(run_id)} is {coloured(head.listed_status)}" + (f", parked: {head.parked}" if head.parked else ""))
    if head.parked:
        for way in ways_out(run_id, scope, head.parked, [asdict(effect) for effect in effects]):
            output.show(escape(f"  {way}"))
    raise typer.Exit(exit_of_status(head.listed_status))


@app.command()
def cancel(
    run_id: RunId, place: AppOption = None, scope: ScopeOption = "default", reason: Reason = None, json: JsonOption = False
) -> None:
    """Ask for the end of a run. A tool that runs is told and waited for."""
    accepted = on_app(stored(place), lambda deuz: deuz.aio.handle(run_id, scope).cancel(reason))
    output = Output(json)
    output.document({"run_id": run_id, "scope": scope, "accepted": accepted})
    output.show("it will end as stopped / aborted" if accepted else "it had ended before; nothing was changed")
