"""`deuz runs retry --failed`: failed runs are taken up again where they stood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from deuz_workers.cli.amounts import counted
from deuz_workers.cli.exits import Exit
from deuz_workers.cli.output import Output, report_error
from deuz_workers.cli.session import on_app
from deuz_workers.errors import CodecError, ConfigurationError, DeuzError, StoreError, as_record

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.core.change import Head

PAGE = 500


@dataclass(frozen=True, slots=True)
class Choice:
    """Which runs are meant where none is named."""

    scope: str
    agent: str | None
    tags: Mapping[str, str]


def retry_failed_runs(run_ids: list[str], choice: Choice, place: Deuz, output: Output, *, yes: bool) -> None:
    """The runs named, or all that match and failed for a passing cause; one that is refused stops no other.

    Raises what refused the only one that was named; exits with 1 where some of several were refused.
    """
    named = bool(run_ids)
    if not named:
        run_ids = on_app(place, lambda deuz: _transient_runs(deuz, choice))
        _ask(len(run_ids), output, yes=yes)
    taken_up, without_effect, refused = on_app(place, lambda deuz: _take_up_all(deuz, choice.scope, run_ids))
    if named and len(run_ids) == 1 and refused:
        raise next(iter(refused.values()))
    output.document(
        {
            "retried": taken_up,
            "not_failed": without_effect,
            "failed": {run_id: as_record(error) for run_id, error in refused.items()},
        }
    )
    for run_id in taken_up:
        output.show(f"took [bold]{escape(run_id)}[/] up again")
    for run_id in without_effect:
        output.show(f"[bold]{escape(run_id)}[/] has not failed; nothing was changed")
    if refused:
        if not output.json:
            for error in refused.values():
                report_error(error, as_json=False)
        raise typer.Exit(Exit.FAILED)


async def _take_up_all(deuz: Deuz, scope: str, run_ids: list[str]) -> tuple[list[str], list[str], dict[str, DeuzError]]:
    taken_up: list[str] = []
    without_effect: list[str] = []
    refused: dict[str, DeuzError] = {}
    for run_id in run_ids:
        try:
            done = await deuz.aio.handle(run_id, scope).retry_failed()
            (taken_up if done else without_effect).append(run_id)
        except DeuzError as error:
            refused[run_id] = error
    return taken_up, without_effect, refused


async def _transient_runs(deuz: Deuz, choice: Choice) -> list[str]:
    """Ids of all that match and failed for a cause which may have passed."""
    from deuz_workers.ports.store import RunQuery

    heads: list[Head] = []
    cursor: str | None = None
    while True:
        query = RunQuery(
            scope=choice.scope,
            status=("failed",),
            kind=("agent",),
            agent=choice.agent,
            tags=choice.tags,
            limit=PAGE,
            cursor=cursor,
        )
        page = await deuz.store.list_runs(query)
        heads += [head for head in page.heads if _is_transient(head)]
        cursor = page.cursor
        if cursor is None:
            return [head.run_id for head in heads]


def _is_transient(head: Head) -> bool:
    from deuz_workers.core.envelope import decode_envelope

    try:
        envelope = decode_envelope(head)
    except (StoreError, CodecError):
        return False
    return head.task_id is None and envelope.parent is None and envelope.retry is not None


def _ask(count: int, output: Output, *, yes: bool) -> None:
    """Shows how many are meant; without `--yes` somebody has to agree."""
    output.show(f"{counted(count, 'failed run')} whose cause may have passed")
    if not count or yes:
        return
    if output.json:
        raise ConfigurationError(f"{counted(count, 'run')} would be taken up again; with --json say --yes")
    typer.confirm("take them up again?", abort=True)
