"""All commands together, and how a command ends: a code of `Exit`, at most one line of error, no traceback of ours."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from deuz_workers.cli import brake, budget, db, demo, doctor, keys, runs, serve, swarm, token, webhooks, worker
from deuz_workers.cli import run as start
from deuz_workers.cli.exits import MEANINGS, Exit, exit_of
from deuz_workers.cli.output import report_error
from deuz_workers.errors import ConfigurationError, DeuzError

EPILOG = "Exit codes\n\n" + "\n\n".join(f"[bold]{int(code)}[/] {meaning}" for code, meaning in MEANINGS.items())

app = typer.Typer(
    name="deuz",
    help="Durable LLM agent runs and swarms on Celery, Redis and Postgres.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("worker")(worker.worker)
app.command("run")(start.run)
app.add_typer(runs.app, name="runs")
app.add_typer(swarm.app, name="swarm")
app.add_typer(brake.app, name="brake", no_args_is_help=True)
app.add_typer(budget.app, name="budget")
app.add_typer(keys.app, name="keys")
app.add_typer(keys.rates, name="rates")
app.add_typer(db.app, name="db")
app.add_typer(token.app, name="token")
app.add_typer(webhooks.app, name="webhooks")
app.command("serve")(serve.serve)
app.command("doctor")(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"deuz_workers {version('deuz_workers')}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Carry out a command line, without the program's name; returns the exit code."""
    as_json = "--json" in arguments
    _keep_logs_out()
    command: Any = typer.main.get_command(app)
    try:
        code = command.main(list(arguments), prog_name="deuz", standalone_mode=False)
    except DeuzError as error:
        report_error(error, as_json=as_json)
        return exit_of(error)
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except Exception as error:
        if not hasattr(error, "exit_code"):  # not one of click's, so a defect: the traceback is wanted
            raise
        return _usage(error, as_json=as_json)
    except SystemExit as ended:  # SIGTERM, as commands that tidy up have it
        return ended.code if isinstance(ended.code, int) else Exit.FAILED
    return code if isinstance(code, int) else Exit.OK


def _keep_logs_out() -> None:
    """Without a logging set-up, warnings of libraries do not mix with what a command says; one that sets it up gets them."""
    for name in ("deuz_workers", "psycopg", "kombu", "celery"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


def _usage(error: Any, *, as_json: bool) -> int:
    """Click found a mistake in the command line, or only shows help."""
    if as_json:
        report_error(ConfigurationError(error.format_message(), code="usage"), as_json=True)
    else:
        error.show(file=sys.stderr)
    return Exit.USAGE
