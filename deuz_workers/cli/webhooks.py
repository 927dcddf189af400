"""`deuz webhooks`: endpoints that are told what happens to runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from deuz_workers.cli.lifecycle import age_of
from deuz_workers.cli.output import Output
from deuz_workers.cli.session import AppOption, JsonOption, on_app, stored
from deuz_workers.errors import ConfigurationError

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.app.webhooks import MadeWebhook
    from deuz_workers.ports.webhooks import WebhookRow

app = typer.Typer(help="Endpoints that are told what happens to runs: add, list, remove, replay.", no_args_is_help=True)
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="As deuz webhooks list shows it.")]


@app.command()
def add(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where requests go; https.")],
    event: Annotated[
        list[str] | None, typer.Option("--event", help="What it is told of; may be repeated. All if not given.")
    ] = None,
    scope: Annotated[str, typer.Option("--scope", help="Of which scope; '*' is all.")] = "default",
    place: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Tell URL of what happens to runs from now on. Shows the secret that it checks signatures with."""
    given = {} if not event else {"events": event}

    async def make(deuz: Deuz) -> MadeWebhook:
        return await deuz.webhooks.aio.add(url, scope=scope, **given)

    made = on_app(stored(place), make)
    output = Output(json)
    output.document({"webhook_id": made.webhook_id, "secret": made.secret, "url": url, "scope": scope})
    output.show(f"{made.webhook_id}\n{made.secret}")


@app.command("list")
def list_webhooks(
    scope: Annotated[str | None, typer.Option("--scope", help="Of one scope only.")] = None,
    place: AppOption = None,
    json: JsonOption = False,
) -> None:
    """All endpoints, how they stand, and what waits for them; oldest first."""

    async def read(deuz: Deuz) -> tuple[WebhookRow, ...]:
        return await deuz.webhooks.aio.list(scope)

    found = on_app(stored(place), read)
    output = Output(json)
    output.document({"webhooks": [asdict(webhook) for webhook in found]})
    if not found:
        output.show("no webhooks; add one with deuz webhooks add")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "scope", "url", "events", "waiting", "given up", "state"):
        table.add_column(column, no_wrap=column == "id", overflow="fold")
    for webhook in found:
        events = ", ".join(event.removeprefix("run.") for event in webhook.events)
        counts = (str(webhook.waiting), str(webhook.given_up))
        table.add_row(webhook.webhook_id, escape(webhook.scope), escape(webhook.url), events, *counts, _state(webhook))
    output.show(table)


@app.command()
def remove(webhook_id: IdArgument, place: AppOption = None, json: JsonOption = False) -> None:
    """Tell it nothing more; what waits for it is gone."""

    async def end(deuz: Deuz) -> bool:
        return await deuz.webhooks.aio.remove(webhook_id)

    _done(on_app(stored(place), end), webhook_id, "removed", json)


@app.command()
def enable(webhook_id: IdArgument, place: AppOption = None, json: JsonOption = False) -> None:
    """Tell an endpoint again that was disabled, of what it missed first."""

    async def begin(deuz: Deuz) -> bool:
        return await deuz.webhooks.aio.enable(webhook_id)

    _done(on_app(stored(place), begin), webhook_id, "enabled", json)


@app.command()
def replay(
    webhook_id: IdArgument,
    run: Annotated[str | None, typer.Option("--run", help="Of one run only.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="AGE", help="Of the last 12h, 30d ...")] = None,
    given_up: Annotated[bool, typer.Option("--given-up", help="Only what could not be told.")] = False,
    place: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Tell it again what it was told, under the same ids."""
    age = None if since is None else age_of(since, "--since")

    async def again(deuz: Deuz) -> int:
        return await deuz.webhooks.aio.replay(webhook_id, run_id=run, since=age, outcome="given-up" if given_up else None)

    count = on_app(stored(place), again)
    output = Output(json)
    output.document({"webhook_id": webhook_id, "deliveries": count})
    output.show(f"{count} to be told again")


def _done(found: bool, webhook_id: str, word: str, as_json: bool) -> None:
    if not found:
        raise ConfigurationError(f"there is no webhook {webhook_id!r}; deuz webhooks list shows them", code="no_webhook")
    output = Output(as_json)
    output.document({"webhook_id": webhook_id, word: True})
    output.show(word)


def _state(webhook: WebhookRow) -> str:
    if webhook.disabled is not None:
        return f"[red]disabled: {webhook.disabled}[/]"
    return f"[yellow]failing, {webhook.failures} in a row[/]" if webhook.failures else "[green]good[/]"
