"""`deuz db`: the schema of the database."""

from __future__ import annotations

import asyncio

import typer

from deuz_workers.cli.output import Output
from deuz_workers.cli.session import AppOption, JsonOption, application

app = typer.Typer(help="The schema of the database.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
def migrate(place: AppOption = None, json: JsonOption = False) -> None:
    """Bring the schema up to this version. Safe to run at every deploy, and by several at once."""
    from deuz_workers.store import migrate as apply

    output = Output(json)
    applied = asyncio.run(apply(application(place).settings.database_url))
    output.document({"applied": list(applied)})
    if applied:
        output.show(f"[green]migrated[/]: applied {', '.join(f'{number:04}' for number in applied)}")
    else:
        output.show("[green]up to date[/]: nothing to apply")
