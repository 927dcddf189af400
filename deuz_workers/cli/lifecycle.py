"""`deuz runs prune`, `fork`, `export` and `import`: runs that go, and runs that come from others."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.markup import escape

from deuz_workers.cli.amounts import counted
from deuz_workers.cli.output import Output
from deuz_workers.cli.session import AppOption, JsonOption, ScopeOption, on_app, stored
from deuz_workers.core.change import RunStatus
from deuz_workers.errors import ConfigurationError

RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")]
_AGE = re.compile(r"(\d{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def prune(
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Ended at least so long ago: 90s, 30m, 12h, 30d, 8w.")],
    status: Annotated[
        list[str] | None, typer.Option(help="Any of completed, stopped, failed; may be repeated. All three if not given.")
    ] = None,
    scope: Annotated[str | None, typer.Option(help="Only this tenant's; all if not given.")] = None,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Runs in one transaction.")] = 100,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    place: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Delete runs that ended long ago, with all that is stored of them. What is suspended, parked or alive stays."""
    age, output = age_of(older_than), Output(json)
    chosen = tuple(cast("list[RunStatus]", status or ["completed", "stopped", "failed"]))
    if not yes:
        if json:
            raise ConfigurationError("runs would be deleted; with --json say --yes")
        whose = "all scopes" if scope is None else f"scope {scope!r}"
        typer.confirm(f"delete the runs of {whose} that ended ({', '.join(chosen)}) more than {older_than} ago?", abort=True)
    gone = on_app(stored(place), lambda deuz: deuz.aio.prune(age, status=chosen, scope=scope, batch=batch))
    output.document({"pruned": gone})
    output.show(f"deleted {counted(gone, 'run')}")


def fork(
    run_id: RunId,
    turn: Annotated[int, typer.Option(min=0, help="Go on behind this turn; 0: from what the run was asked.")],
    new_run_id: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="Id of the new run; one is made if not given.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Said to the model before it goes on.")] = None,
    queue: Annotated[str | None, typer.Option(help="Queue of the new run; that of the first if not given.")] = None,
    place: AppOption = None,
    scope: ScopeOption = "default",
    json: JsonOption = False,
) -> None:
    """Start a new run that goes on from a turn of this one. Tools that ran up to there are not called again."""

    async def made(deuz: object) -> str:
        from deuz_workers.app.deuz import Deuz

        assert isinstance(deuz, Deuz)
        forked = await deuz.aio.fork(run_id, turn, scope=scope, new_run_id=new_run_id, prompt=prompt, queue=queue)
        return forked.run_id

    forked_id = on_app(stored(place), made)
    output = Output(json)
    output.document({"run_id": forked_id, "scope": scope, "from": run_id, "turn": turn})
    output.show(f"started [bold]{escape(forked_id)}[/] from turn {turn} of {escape(run_id)}")


def export(
    run_id: RunId,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Where it is written; stdout if not given.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    place: AppOption = None,
    scope: ScopeOption = "default",
    json: JsonOption = False,
) -> None:
    """Write all that is stored of a run into a file, with its checksum."""
    text = on_app(stored(place), lambda deuz: deuz.aio.export_run(run_id, scope))
    output = Output(json)
    if to is None:
        typer.echo(text, nl=False)
        return
    try:
        with to.open("w" if force else "x") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigurationError(
            f"the file {str(to)!r} is there already, and stays as it is; name another, or say --force"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"the file {str(to)!r} cannot be written ({error.strerror})") from None
    output.document({"run_id": run_id, "scope": scope, "file": str(to), "size_bytes": len(text)})
    output.show(f"wrote [bold]{escape(run_id)}[/] to {escape(str(to))}, {len(text)} bytes")


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What deuz runs export wrote.")],
    place: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Store the run of a file under its own id. One that has not ended is parked until deuz runs retry."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the file {str(file)!r} cannot be read ({type(error).__name__})") from None
    handle = on_app(stored(place), lambda deuz: deuz.aio.import_run(text))
    output = Output(json)
    output.document({"run_id": handle.run_id, "scope": handle.scope})
    output.show(f"stored [bold]{escape(handle.run_id)}[/] in scope {escape(handle.scope)}")


def age_of(text: str, option: str = "--older-than") -> timedelta:
    """Raises `ConfigurationError` for what is no age."""
    found = _AGE.fullmatch(text)
    if found is None:
        raise ConfigurationError(f"{option} takes a number and a unit, such as 90s, 30m, 12h, 30d or 8w, not {text!r}")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
