"""The command line of `deuz demo`."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deuz_workers.cli.exits import Exit
from deuz_workers.cli.output import Output
from deuz_workers.cli.session import JsonOption

if TYPE_CHECKING:
    from deuz_workers.cli.demo.stack import Stack
    from deuz_workers.examples.code_review import Assignment

PACE_MS = 200
"""Of a scripted answer: slow enough to be watched, and killed half way."""


def demo(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files and folders to review; this package if none.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the report is written, once approved.")] = Path(
        "deuz-report.md"
    ),
    limit: Annotated[int, typer.Option(min=1, max=200, help="Files to review at most, the largest first.")] = 12,
    model: Annotated[
        str | None,
        typer.Option(metavar="PROVIDER:NAME", help="A real model instead of the scripted one; key from the environment."),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Server of the model; its key, if any, is in REVIEW_API_KEY.")
    ] = None,
    budget_tokens: Annotated[int | None, typer.Option(min=1, help="Cap for the whole swarm.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Worker processes.")] = 3,
    sqlite: Annotated[bool, typer.Option("--sqlite", help="An SQLite file and plain worker processes, no servers.")] = False,
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="Kill a worker half way.")] = True,
    flower: Annotated[bool, typer.Option("--flower/--no-flower", help="Start Flower beside the workers.")] = True,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve the report without asking.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Afterwards leave everything up until Ctrl-C.")] = False,
    json: JsonOption = False,
) -> None:
    """Review files with a swarm on a real pool, kill a worker half way, and watch the others go on.

    Starts Postgres, Valkey, worker processes and Flower for itself (servers that DEUZ_DATABASE_URL and DEUZ_REDIS_URL name
    are used instead), and leaves nothing behind but the report.
    """
    from deuz_workers.cli.demo.stack import Stack, Wish
    from deuz_workers.examples.code_review.selection import select

    output = Output(json)
    assignment = _assignment(select(paths or [_package()], limit=limit), out, model, base_url)
    size = sum(file.stat().st_size for file in assignment.files)
    output.show(f"[bold]deuz demo[/]: a swarm reviews {len(assignment.files)} files, {size:,} bytes; starting its pool ...")
    with _ending_on_signals(), Stack(Wish(workers, sqlite, flower), assignment.environment()) as stack:
        raise typer.Exit(_run(stack, output, assignment, budget_tokens=budget_tokens, kill=kill, yes=yes, keep=keep))


def _run(
    stack: Stack, output: Output, assignment: Assignment, *, budget_tokens: int | None, kill: bool, yes: bool, keep: bool
) -> Exit:
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.cli.demo.screen import Screen
    from deuz_workers.cli.demo.story import Story
    from deuz_workers.cli.demo.summary import summarise

    _introduce(output, stack, assignment)
    app = Deuz(settings=stack.settings)
    try:
        story = Story(app, stack, Screen(output), assignment, kill=kill and len(stack.workers) > 1, yes=yes)
        outcome = story.tell(budget_tokens)
        summarise(output, outcome, stack, report=assignment.out, model=assignment.model or "the scripted model")
        if keep:
            with contextlib.suppress(KeyboardInterrupt):
                _keep(output, stack, outcome.handle.run_id)
    finally:
        app.close()
    return Exit.OK if outcome.result.status == "completed" else Exit.FAILED


def _assignment(files: tuple[Path, ...], out: Path, model: str | None, base_url: str | None) -> Assignment:
    from deuz_workers.errors import ConfigurationError
    from deuz_workers.examples.code_review import Assignment
    from deuz_workers.providers import model_from_name

    if model is None and base_url is not None:
        raise ConfigurationError("--base-url names the server of a model; say which with --model PROVIDER:NAME")
    if model is not None and base_url is None:
        model_from_name(model)  # refuses what no worker could use
    if not out.absolute().parent.is_dir():
        raise ConfigurationError(f"there is no folder {str(out.absolute().parent)!r} to write the report to; correct --out")
    return Assignment(files, out.absolute(), model, base_url, PACE_MS if model is None else 0)


def _introduce(output: Output, stack: Stack, assignment: Assignment) -> None:
    why = f" ({stack.reason})" if stack.reason else ""
    servers = f"SQLite and plain worker processes{why}" if stack.is_sqlite else "Postgres, Valkey and Celery"
    output.show(f"  pool    {servers}")
    output.show("  workers " + ", ".join(f"{worker.name.partition('@')[0]} is pid {worker.pid}" for worker in stack.workers))
    if stack.flower is not None:
        output.show(f"  Flower  {stack.flower.url}")
    scripted = "the scripted model: no key, no network; tools and numbers are real"
    output.show(f"  model   {assignment.model or scripted}")


def _keep(output: Output, stack: Stack, run_id: str) -> None:
    """Waits for Ctrl-C, which comes out as it is."""
    addresses = {"DEUZ_DATABASE_URL": stack.settings.database_url, "DEUZ_REDIS_URL": stack.settings.redis_url}
    own = {name: url for name, url in addresses.items() if url is not None and os.environ.get(name) != url}
    output.document({"kept": own | ({"flower": stack.flower.url} if stack.flower else {})})
    output.show("\nEverything stays up; Ctrl-C ends it. In another terminal:")
    for name, url in own.items():
        output.show(f"  export {name}={shlex.quote(url)}")
    output.show(f"  deuz swarm show {run_id} --scope demo")
    if stack.flower is not None:
        output.show(f"  Flower is at {stack.flower.url}")
    while True:
        signal.pause()


def _package() -> Path:
    import deuz_workers

    return Path(deuz_workers.__file__).parent


@contextlib.contextmanager
def _ending_on_signals() -> Generator[None]:
    """SIGTERM and a closed terminal end the demo as Ctrl-C does: what it started is stopped."""

    def end(number: int, _: object) -> None:
        sys.exit(Exit.TERMINATED)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
