"""`deuz runs retry` and `deuz runs reconcile`: what people say about parked runs."""

from __future__ import annotations

import json as jsons
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from deuz_workers.cli.amounts import counted
from deuz_workers.cli.exits import Exit
from deuz_workers.cli.failed import Choice, retry_failed_runs
from deuz_workers.cli.output import Output, report_error
from deuz_workers.cli.session import AppOption, JsonOption, ScopeOption, on_app, pairs, stored
from deuz_workers.errors import ConfigurationError, DeuzError, as_record

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.core.change import Head

Runs = Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="Ids of parked runs.", show_default=False)]
Calls = Annotated[
    list[str] | None,
    typer.Option("--call", metavar="ID", help="An interrupted call that may run again; may be repeated. All if not given."),
]
Approved = Annotated[
    list[str] | None,
    typer.Option("--approve", metavar="ID", help="Of a gated call that runs again: it is approved again. May be repeated."),
]
By = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Who approves; with --approve. Repeated where several people have to.")
]
Tokens = Annotated[
    list[str] | None,
    typer.Option(
        "--token", metavar="TOKEN", help="Where the application signs its requests: one for each --approve, in order."
    ),
]
PAGE = 500


def retry(
    run_ids: Runs = None,
    call: Calls = None,
    parked: Annotated[
        str | None, typer.Option(metavar="REASON", help="Instead of ids: all runs that are parked for this reason.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="With --parked: only this agent's.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="With --parked: only with this tag.")] = None,
    failed_too: Annotated[
        bool,
        typer.Option("--failed", help="Failed runs instead, whose cause may have passed: those named, or all that match."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --parked or --failed: do not ask.")] = False,
    approved: Approved = None,
    by: By = None,
    token: Tokens = None,
    place: AppOption = None,
    scope: ScopeOption = "default",
    json: JsonOption = False,
) -> None:
    """Free parked runs: their interrupted calls run once more. With --failed: take failed runs up again where they stood."""
    output = Output(json)
    if failed_too:
        if parked is not None or call:
            raise ConfigurationError("--failed goes with neither --parked nor --call")
        retry_failed_runs(run_ids or [], Choice(scope, agent, pairs(tag or [], "--tag")), stored(place), output, yes=yes)
        return
    if (parked is None) == (not run_ids):
        raise ConfigurationError("name the runs, or say with --parked REASON which ones are meant")
    if parked is None and (agent or tag or yes):
        raise ConfigurationError("--agent, --tag and --yes go with --parked REASON")
    if (call or approved) and (parked is not None or len(run_ids or ()) != 1):
        raise ConfigurationError("--call and --approve name calls of one run; name that run alone")
    verdicts = _verdicts(approved, by, token)
    if parked is not None:
        tags = pairs(tag or [], "--tag")
        run_ids = on_app(stored(place), lambda deuz: _parked_runs(deuz, scope, parked, agent, tags))
        _ask(len(run_ids), parked, output, yes=yes)
    chosen = run_ids or []
    freed, failed = on_app(stored(place), lambda deuz: _retry_all(deuz, scope, chosen, call, verdicts))
    if len(chosen) == 1 and failed:
        raise next(iter(failed.values()))
    output.document(
        {
            "freed": [{"run_id": run_id, "scope": scope, "calls": list(calls)} for run_id, calls in freed.items()],
            "failed": {run_id: as_record(error) for run_id, error in failed.items()},
        }
    )
    for run_id, calls in freed.items():
        again = f"; {counted(len(calls), 'call')} will run again: {', '.join(calls)}" if calls else ""
        output.show(f"freed [bold]{escape(run_id)}[/]{escape(again)}")
    if failed:
        if not json:
            for error in failed.values():
                report_error(error, as_json=False)
        raise typer.Exit(Exit.FAILED)


def reconcile(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of the parked run.")],
    call: Annotated[str, typer.Option("--call", metavar="ID", help="The interrupted call, as deuz runs show names it.")],
    returned: Annotated[
        str | None, typer.Option("--output", metavar="JSON", help="It had its effect and returned this.")
    ] = None,
    error: Annotated[
        str | None, typer.Option("--error", metavar="TEXT", help="It failed like this; the model is told.")
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option("--also", metavar="ID=JSON", help="What another interrupted call returned; may be repeated."),
    ] = None,
    retried: Annotated[
        list[str] | None,
        typer.Option("--retry", metavar="ID", help="Another interrupted call that may run again; may be repeated."),
    ] = None,
    place: AppOption = None,
    scope: ScopeOption = "default",
    approved: Approved = None,
    by: By = None,
    token: Tokens = None,
    json: JsonOption = False,
) -> None:
    """Say what became of an interrupted call. Together all interrupted calls of the run must be settled."""
    if (returned is None) == (error is None):
        raise ConfigurationError("say what became of the call: --output JSON or --error TEXT, one of the two")
    outputs = {name: _value("--also", text) for name, text in pairs(also or [], "--also").items()}
    if returned is not None:
        outputs[call] = _value("--output", returned)
    errors = {} if error is None else {call: error}
    verdicts = _verdicts(approved, by, token)

    async def say(deuz: Deuz) -> None:
        await deuz.aio.handle(run_id, scope).reconcile(outputs, errors=errors, retry=retried or (), approvals=verdicts)

    on_app(stored(place), say)
    output = Output(json)
    output.document({"run_id": run_id, "scope": scope, "reconciled": [*outputs, *errors], "calls": retried or []})
    output.show(f"freed [bold]{escape(run_id)}[/]; {counted(len(outputs) + len(errors), 'call')} settled")


async def _parked_runs(deuz: Deuz, scope: str, reason: str, agent: str | None, tags: Mapping[str, str]) -> list[str]:
    """Ids of all that match, of tasks of swarms too."""
    from deuz_workers.ports.store import RunQuery

    heads: list[Head] = []
    cursor: str | None = None
    while True:
        query = RunQuery(
            scope=scope, kind=("agent", "reducer", "swarm"), agent=agent, tags=tags, parked=True, limit=PAGE, cursor=cursor
        )
        page = await deuz.store.list_runs(query)
        heads += page.heads
        cursor = page.cursor
        if cursor is None:
            return [head.run_id for head in heads if head.parked == reason]


async def _retry_all(
    deuz: Deuz, scope: str, run_ids: list[str], calls: list[str] | None, approvals: Mapping[str, Mapping[str, object]]
) -> tuple[dict[str, tuple[str, ...]], dict[str, DeuzError]]:
    """Calls that run again by run, and what kept others from being freed; one that cannot be freed stops no other."""
    freed: dict[str, tuple[str, ...]] = {}
    failed: dict[str, DeuzError] = {}
    for run_id in run_ids:
        try:
            freed[run_id] = await deuz.aio.handle(run_id, scope).retry(calls, approvals=approvals)
        except DeuzError as error:
            failed[run_id] = error
    return freed, failed


def _verdicts(approved: list[str] | None, by: list[str] | None, tokens: list[str] | None) -> dict[str, Mapping[str, object]]:
    """By the names that were given."""
    names = approved or []
    if len(tokens or ()) > len(names):
        raise ConfigurationError("--token goes with --approve, one for each")
    given = [*(tokens or []), *[None] * len(names)]
    who = by[0] if by and len(by) == 1 else by or None
    said = [{"approved": True, "by": who, "token": token} for _, token in zip(names, given, strict=False)]
    return {
        name: {part: value for part, value in record.items() if value is not None}
        for name, record in zip(names, said, strict=True)
    }


def _ask(count: int, reason: str, output: Output, *, yes: bool) -> None:
    """Shows how many are meant; without `--yes` somebody has to agree."""
    output.show(f"{counted(count, 'run')} parked as {escape(reason)}; interrupted calls run again")
    if not count or yes:
        return
    if output.json:
        raise ConfigurationError(f"{counted(count, 'run')} would be freed; with --json say --yes")
    typer.confirm("free them?", abort=True)


def _value(option: str, text: str) -> Any:
    try:
        return jsons.loads(text)
    except ValueError:
        raise ConfigurationError(f"{option} takes JSON; quote a text twice, such as '\"paid\"'") from None
