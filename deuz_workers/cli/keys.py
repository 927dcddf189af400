"""`deuz keys`: how many runs of a concurrency key may run, and how much of it may begin per minute. `deuz rates`: of tools and
models."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.markup import escape
from rich.table import Table

from deuz_workers.cli.output import Output
from deuz_workers.cli.session import AppOption, JsonOption, ScopeOption, on_app, stored
from deuz_workers.errors import ConfigurationError

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.core.rate import Rate, RateKind
    from deuz_workers.ports.controls import KeyRow

app = typer.Typer(help="Concurrency keys: set, list.", no_args_is_help=True)
rates = typer.Typer(help="Rates of tools and models, for the whole pool: set, list.", no_args_is_help=True)

AllScopes = Annotated[str | None, typer.Option("--scope", help="Only this tenant's; all if not given.")]
Calls = Annotated[int | None, typer.Option("--calls-per-minute", min=1, help="That may begin, over all workers.")]
Tokens = Annotated[int | None, typer.Option("--tokens-per-minute", min=1, help="Of model calls that may begin, by estimate.")]


@app.command("set")
def set_key(
    key: Annotated[str, typer.Argument(metavar="KEY", help="As runs and agents name it.")],
    slots: Annotated[int | None, typer.Option(min=0, help="Runs that may run at a time; 0 stops them.")] = None,
    calls: Calls = None,
    tokens: Tokens = None,
    no_rate: Annotated[bool, typer.Option("--no-rate", help="Take its rate away.")] = False,
    place: AppOption = None,
    scope: ScopeOption = "default",
    json: JsonOption = False,
) -> None:
    """Limit the runs of a tenant that name this key. What is not given stays as it is; a rate is set as a whole."""
    rated = calls is not None or tokens is not None
    if rated and no_rate:
        raise ConfigurationError("--no-rate takes the rate away, and the others set one; leave one out")
    if slots is None and not rated and not no_rate:
        raise ConfigurationError("say what to set: --slots, --calls-per-minute, --tokens-per-minute or --no-rate")

    async def said(deuz: Deuz) -> None:
        if slots is not None:
            await deuz.aio.limit_key(key, slots, scope=scope)
        if rated or no_rate:
            await deuz.aio.operator.limit_rate("key", key, calls_per_minute=calls, tokens_per_minute=tokens, scope=scope)

    on_app(stored(place), said)
    output = Output(json)
    output.document({"scope": scope, "key": key, "slots": slots, "calls_per_minute": calls, "tokens_per_minute": tokens})
    output.show(f"limited key [bold]{escape(key)}[/] of scope {escape(scope)}")


@app.command("list")
def list_keys(place: AppOption = None, scope: AllScopes = None, json: JsonOption = False) -> None:
    """Keys that were named or set: slots, runs that hold one, runs that wait, and rates."""

    async def read(deuz: Deuz) -> tuple[tuple[KeyRow, ...], tuple[Rate, ...]]:
        return await deuz.aio.operator.keys(scope), await deuz.aio.operator.rates(scope)

    keys, limits = on_app(stored(place), read)
    rated = {(rate.of.scope, rate.of.name): rate for rate in limits if rate.of.kind == "key"}
    rows: dict[tuple[str, str], dict[str, Any]] = {(row.scope, row.key): asdict(row) for row in keys}
    for named, rate in rated.items():
        row = rows.setdefault(named, {"scope": named[0], "key": named[1], "slots": None, "used": 0, "waiting": 0})
        row |= {"calls_per_minute": rate.calls_per_minute, "tokens_per_minute": rate.tokens_per_minute}
    output = Output(json)
    output.document({"keys": list(rows.values())})
    if not rows:
        output.show("no run names a concurrency key")
        return
    columns = ("scope", "key", "slots", "used", "waiting", "calls_per_minute", "tokens_per_minute")
    table = Table(*(name.replace("_per_minute", "/min") for name in columns), box=None, pad_edge=False, header_style="bold")
    for _, row in sorted(rows.items()):
        table.add_row(*(escape("" if row.get(name) is None else str(row[name])) for name in columns))
    output.show(table)


@rates.command("set")
def set_rate(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="tool or model.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the tool, or of the model as provider:model.")],
    calls: Calls = None,
    tokens: Tokens = None,
    at_a_time: Annotated[int | None, typer.Option("--at-a-time", min=1, help="Calls of a tool that run together.")] = None,
    no_rate: Annotated[bool, typer.Option("--no-rate", help="Take all of it away.")] = False,
    place: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Limit how much of a tool or a model may begin, over all workers and tenants. What is not given is no limit."""
    if kind not in ("tool", "model"):
        raise ConfigurationError(f"a rate is of a tool or a model, not of {kind!r}; for keys there is deuz keys set")
    if (calls is None and tokens is None and at_a_time is None) is not no_rate:
        raise ConfigurationError("say either --calls-per-minute, --tokens-per-minute and --at-a-time, or --no-rate")

    async def said(deuz: Deuz) -> None:
        await deuz.aio.operator.limit_rate(
            cast("RateKind", kind), name, calls_per_minute=calls, tokens_per_minute=tokens, at_a_time=at_a_time
        )

    on_app(stored(place), said)
    output = Output(json)
    limits = {"calls_per_minute": calls, "tokens_per_minute": tokens, "at_a_time": at_a_time}
    output.document({"kind": kind, "name": name, **limits})
    output.show(f"limited {kind} [bold]{escape(name)}[/]" if not no_rate else f"{kind} [bold]{escape(name)}[/] has no rate")


@rates.command("list")
def list_rates(place: AppOption = None, json: JsonOption = False) -> None:
    """Tools and models that have one."""
    found = [rate for rate in on_app(stored(place), lambda deuz: deuz.aio.operator.rates()) if rate.of.kind != "key"]
    output = Output(json)
    output.document(
        {
            "rates": [
                {
                    "kind": rate.of.kind,
                    "name": rate.of.name,
                    "calls_per_minute": rate.calls_per_minute,
                    "tokens_per_minute": rate.tokens_per_minute,
                    "at_a_time": rate.at_a_time,
                }
                for rate in found
            ]
        }
    )
    if not found:
        output.show("no tool and no model has a rate")
        return
    table = Table("kind", "name", "calls/min", "tokens/min", "at a time", box=None, pad_edge=False, header_style="bold")
    for rate in found:
        limits = (rate.calls_per_minute, rate.tokens_per_minute, rate.at_a_time)
        table.add_row(rate.of.kind, escape(rate.of.name), *("" if most is None else f"{most:,}" for most in limits))
    output.show(table)
