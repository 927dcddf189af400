"""`deuz token`: bearer tokens of the gateway."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from deuz_workers.cli.amounts import ago
from deuz_workers.cli.lifecycle import age_of
from deuz_workers.cli.output import Output
from deuz_workers.cli.session import AppOption, JsonOption, on_app, stored
from deuz_workers.errors import ConfigurationError

if TYPE_CHECKING:
    from deuz_workers.app.access_tokens import AccessTokens, MadeToken
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.ports.access_tokens import AccessToken

app = typer.Typer(help="Bearer tokens of the gateway: create, list, revoke.", no_args_is_help=True)


@app.command()
def create(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Who uses it; recorded with what they approve.")],
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope", help="What they may touch; may be repeated. '*': all tenants, '@operator': budgets and brakes."
        ),
    ],
    expires_in: Annotated[str | None, typer.Option(metavar="AGE", help="12h, 30d, 8w; for ever if not given.")] = None,
    place: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Make a token. It is shown once, here; the database keeps its digest."""
    good_for = None if expires_in is None else age_of(expires_in, "--expires-in")

    async def make(deuz: Deuz) -> MadeToken:
        return await _tokens(deuz).create(principal, scope, good_for)

    made = on_app(stored(place), make)
    output = Output(json)
    output.document({"token_id": made.token_id, "token": made.token, "principal": principal, "scopes": scope})
    output.show(escape(made.token))


@app.command("list")
def list_tokens(place: AppOption = None, json: JsonOption = False) -> None:
    """All tokens, without the tokens themselves; oldest first."""

    async def read(deuz: Deuz) -> tuple[tuple[AccessToken, ...], int]:
        return await _tokens(deuz).list(), await deuz.store.now_ms()

    found, now_ms = on_app(stored(place), read)
    output = Output(json)
    output.document({"tokens": [asdict(token) for token in found]})
    if not found:
        output.show("no tokens; make one with deuz token create")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "principal", "scopes", "created", "state"):
        table.add_column(column, no_wrap=column == "id", overflow="fold")
    for token in found:
        made = ago(token.created_at_ms, now_ms)
        table.add_row(token.token_id, escape(token.principal), escape(", ".join(token.scopes)), made, _state(token, now_ms))
    output.show(table)


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As deuz token list shows it.")],
    place: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Refuse the token from the next request on. Tickets that were made with it are good for a minute."""

    async def end(deuz: Deuz) -> bool:
        return await _tokens(deuz).revoke(token_id)

    if not on_app(stored(place), end):
        raise ConfigurationError(f"there is no token {token_id!r}; deuz token list shows their ids", code="no_token")
    output = Output(json)
    output.document({"token_id": token_id, "revoked": True})
    output.show("revoked")


def _tokens(deuz: Deuz) -> AccessTokens:
    from deuz_workers.app.access_tokens import AccessTokens

    return AccessTokens(deuz.store, deuz.ids)


def _state(token: AccessToken, now_ms: int) -> str:
    if token.revoked_at_ms is not None:
        return "[red]revoked[/]"
    if token.expires_at_ms is not None and token.expires_at_ms <= now_ms:
        return "[yellow]expired[/]"
    return "[green]good[/]"
