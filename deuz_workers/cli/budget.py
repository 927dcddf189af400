"""`deuz budget`: what was spent of budgets, their limits, and holds that nobody can settle."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from deuz_workers.app import ledger
from deuz_workers.cli.amounts import ago, counted, duration, money, tokens
from deuz_workers.cli.lifecycle import age_of
from deuz_workers.cli.output import Output
from deuz_workers.cli.session import AppOption, JsonOption, ScopeOption, on_app, stored
from deuz_workers.core.shared_budget import Window
from deuz_workers.core.usage import Budget

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.ports.budgets import AuditRow, ModelUse, ScopeBalance, UnknownHold

app = typer.Typer(help="Budgets: show, set, usage, holds, release, compact, audit.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(metavar="KEY", help="Of the budget: user:42, org:acme, or run:ID of a run's own.")]
MaybeKey = Annotated[str | None, typer.Argument(metavar="KEY", help="Of this budget only; all if not given.")]
Actor = Annotated[str, typer.Option("--by", envvar="DEUZ_ACTOR", help="Who does it; kept.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept.")]


@app.command()
def show(key: Key, place: AppOption = None, json: JsonOption = False) -> None:
    """Its limit, and what counts against it: spent, held by calls at work, and unknown."""
    balance = on_app(stored(place), lambda deuz: ledger.budget(deuz.store, key))
    output = Output(json)
    output.document(record_of(balance))
    output.show(_balance_table(balance))


@app.command("set")
def set_(
    key: Key,
    by: Actor,
    limit_tokens: Annotated[int | None, typer.Option("--tokens", min=0, help="Input and output together.")] = None,
    usd: Annotated[float | None, typer.Option(min=0, help="US dollars.")] = None,
    window: Annotated[str | None, typer.Option(metavar="AGE", help="Only the newest so long counts: 1h, 30d.")] = None,
    warn: Annotated[int | None, typer.Option(min=1, max=100, help="Percent of a limit at which runs are warned.")] = None,
    slices: Annotated[int | None, typer.Option(min=0, help="Rows that are asked in its place.")] = None,
    reason: Reason = "",
    place: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Limit a budget from the next call on. The limits are set as a whole, the rest stays where it is not given."""
    limit = Budget.of(tokens=limit_tokens, usd=usd)
    within = None if window is None else Window(age_ms(window, "--window"))

    async def said(deuz: Deuz) -> ScopeBalance:
        return await ledger.set_budget(
            deuz.store, key, limit, window=within, warn_at_percent=warn, slices=slices, actor=by, reason=reason
        )

    balance = on_app(stored(place), said)
    output = Output(json)
    output.document(record_of(balance))
    output.show(_balance_table(balance))


@app.command()
def usage(
    key: Key,
    since: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only the newest so long: 1h, 30d; the bucket counts whole.")
    ] = None,
    place: AppOption = None,
    json: JsonOption = False,
) -> None:
    """What calls used, by model: settled, held and unknown, and the kinds of tokens."""

    async def read(deuz: Deuz) -> tuple[ModelUse, ...]:
        since_ms = None if since is None else await deuz.store.now_ms() - age_ms(since, "--since")
        return await ledger.usage(deuz.store, key, since_ms)

    used = on_app(stored(place), read)
    output = Output(json)
    output.document({"key": key, "models": [use_record(use) for use in used]})
    if not used:
        output.show(f"nothing was used of {escape(key)}")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("model", "calls", "input", "cached", "output", "reasoning", "spent", "held", "unknown"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for use in used:
        kinds = (use.usage.input_tokens, use.usage.cached_tokens, use.usage.output_tokens, use.usage.reasoning_tokens)
        table.add_row(
            escape(use.model or "not recorded"),
            f"{use.calls:,}",
            *map(tokens, kinds),
            money(use.usage.cost_micros),
            *(tokens(amount.tokens or 0) for amount in (use.held, use.unknown)),
        )
    output.show(table)


@app.command()
def holds(
    key: MaybeKey = None,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Reserved at least so long ago.")] = "0s",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Rows at most.")] = 100,
    place: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Calls whose outcome nobody knows, oldest first: their estimates count until somebody releases them."""
    older_ms = age_ms(older_than, "--older-than")
    found = on_app(stored(place), lambda deuz: ledger.holds(deuz.store, key, older_ms=older_ms, limit=limit))
    output = Output(json)
    output.document({"holds": [hold_record(hold) for hold in found]})
    if not found:
        output.show("nothing is held by a call that nobody knows of")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("request", "run", "scope", "model", "tokens", "money", "age", "budgets"):
        table.add_column(name, justify="right" if name in ("tokens", "money") else "left", overflow="fold")
    for hold in found:
        table.add_row(
            escape(hold.request_id),
            escape(hold.run_id or "gone"),
            escape(hold.scope or ""),
            escape(hold.model),
            tokens(hold.tokens),
            money(hold.cost_micros),
            duration(hold.age_ms),
            escape(", ".join(hold.scope_keys)),
        )
    output.show(table)
    output.show("[dim]known not to be billed: deuz budget release REQUEST --by NAME --reason WHY[/]")


@app.command()
def release(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST", help="As deuz budget holds lists it.")],
    by: Actor,
    reason: Reason = "",
    place: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Free what an unknown call holds, in all its budgets; once. Nothing of its run changes."""
    keys = on_app(stored(place), lambda deuz: ledger.release_hold(deuz.store, request_id, actor=by, reason=reason))
    output = Output(json)
    output.document({"request_id": request_id, "budgets": list(keys)})
    output.show(f"released [bold]{escape(request_id)}[/] in {escape(', '.join(keys))}")


@app.command()
def compact(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run that has ended, with all below it.")],
    by: Actor,
    reason: Reason = "",
    scope: ScopeOption = "default",
    place: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Keep sums in the place of its settled calls; no total changes. Unknown ones stay, so that each can be released."""
    done = on_app(stored(place), lambda deuz: deuz.aio.compact_ledger(run_id, scope=scope, actor=by, reason=reason))
    output = Output(json)
    output.document({"run_id": run_id, **asdict(done)})
    output.show(
        f"compacted [bold]{escape(run_id)}[/], {counted(done.runs, 'run')}: {counted(done.settled, 'settled call')} summed up, "
        f"{counted(done.released, 'released one')} forgotten"
    )
    if done.unknown:
        output.show(f"{counted(done.unknown, 'call')} of unknown outcome stay: deuz budget holds")
    if done.waiting:
        output.show(
            f"{counted(done.waiting, 'call')} stay until somebody reserves in their budget with a window; compact again then"
        )


@app.command()
def audit(
    key: MaybeKey = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Rows at most.")] = 100,
    place: AppOption = None,
    json: JsonOption = False,
) -> None:
    """What was done to budgets, newest first: by whom and why."""

    async def read(deuz: Deuz) -> tuple[tuple[AuditRow, ...], int]:
        return await ledger.audit(deuz.store, key, limit=limit), await deuz.store.now_ms()

    rows, now_ms = on_app(stored(place), read)
    output = Output(json)
    output.document({"audit": [{**asdict(row), "rid": None if row.rid is None else row.rid.hex} for row in rows]})
    if not rows:
        output.show("nothing was done to a budget")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("when", "by", "did", "budget", "tokens", "money", "request", "reason"):
        table.add_column(name, justify="right" if name in ("tokens", "money") else "left", overflow="fold")
    for row in rows:
        table.add_row(
            ago(row.at_ms, now_ms),
            escape(row.actor),
            row.action,
            escape(row.scope_key),
            "" if row.tokens is None else tokens(row.tokens),
            "" if row.micros is None else money(row.micros),
            escape(row.request_id or ""),
            escape(row.reason),
        )
    output.show(table)


def age_ms(text: str, option: str) -> int:
    """Raises `ConfigurationError` for what is no age."""
    return int(age_of(text, option) / timedelta(milliseconds=1))


def record_of(balance: ScopeBalance) -> dict[str, object]:
    """For programs: amounts are `tokens` and `usd_micros`; None is no limit."""
    return {**asdict(balance), "counted": asdict(balance.counted)}


def use_record(use: ModelUse) -> dict[str, object]:
    return {**asdict(use), "usage": use.usage.to_record()}


def hold_record(hold: UnknownHold) -> dict[str, object]:
    return {**asdict(hold), "rid": hold.rid.hex, "scope_keys": list(hold.scope_keys)}


def _balance_table(balance: ScopeBalance) -> Table:
    """One line for each dimension."""
    table = Table(box=None, pad_edge=False, header_style="bold", title=_title(balance), title_justify="left")
    for name in ("", "limit", "counts", "spent", "held", "unknown"):
        table.add_column(name, justify="left" if not name else "right")
    amounts = (balance.counted, balance.spent, balance.held, balance.unknown)
    most = balance.limit
    table.add_row(
        "tokens", "none" if most.tokens is None else tokens(most.tokens), *(tokens(amount.tokens or 0) for amount in amounts)
    )
    table.add_row(
        "money",
        "none" if most.usd_micros is None else money(most.usd_micros),
        *(money(amount.usd_micros or 0) for amount in amounts),
    )
    return table


def _title(balance: ScopeBalance) -> str:
    said = [escape(balance.key)]
    if balance.window is not None:
        said.append(f"of the newest {duration(balance.window.ms)} in {counted(balance.window.buckets, 'bucket')}")
    if balance.warn_at_percent is not None:
        said.append(f"warns at {balance.warn_at_percent}%")
    if balance.slices:
        said.append(counted(balance.slices, "slice"))
    return ", ".join(said)
