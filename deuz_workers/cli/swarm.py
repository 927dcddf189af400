"""`deuz swarm`: start a graph of tasks and see how its tasks stand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from deuz_workers.cli.amounts import cost, counted, duration, tokens
from deuz_workers.cli.exits import Exit
from deuz_workers.cli.output import Output
from deuz_workers.cli.session import AppOption, JsonOption, ScopeOption, application, on_app, pairs, stored
from deuz_workers.cli.user_code import user_code
from deuz_workers.errors import ConfigurationError

if TYPE_CHECKING:
    from deuz_workers.app.async_swarm_handle import AsyncSwarmHandle
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.app.swarm import Swarm
    from deuz_workers.app.swarm_result import SwarmResult
    from deuz_workers.ports.swarm_rows import SwarmSnapshot

app = typer.Typer(help="Swarms: run, show.", no_args_is_help=True)

COLOURS = {
    "pending": "dim",
    "ready": "blue",
    "running": "cyan",
    "suspended": "yellow",
    "needs_reconciliation": "yellow",
    "completed": "green",
    "failed": "red",
    "blocked": "magenta",
    "cancelled": "magenta",
}
LOOK_S = 0.2
"""Between two looks at a swarm that is waited for; a look reads every task."""


@app.command()
def run(
    place: Annotated[str, typer.Argument(metavar="MODULE:SWARM", help="A Swarm, or a function that makes one.")],
    app_place: AppOption = None,
    scope: ScopeOption = "default",
    run_id: Annotated[str | None, typer.Option(help="Id of the run, unique over all tenants; made if not given.")] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: asked again, the swarm that is there.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Label of the run; may be repeated.")] = None,
    in_process: Annotated[bool, typer.Option("--in-process", help="Execute it here, without workers.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for its end, or only start it.")] = True,
    timeout: Annotated[float | None, typer.Option(min=0.0, help="Seconds to wait; the swarm goes on (exit code 3).")] = None,
    json: JsonOption = False,
) -> None:
    """Start a swarm and show its tasks until nothing can run any more."""
    output = Output(json)
    swarm = load_swarm(place)
    asked: dict[str, Any] = {"run_id": run_id, "idempotency_key": key, "scope": scope, "tags": pairs(tag or [], "--tag")}

    async def work(deuz: Deuz) -> tuple[SwarmResult, dict[str, str]] | None:
        if in_process:
            asked.pop("idempotency_key")
            result = await asyncio.wait_for(deuz.aio.run_swarm_embedded(swarm, **asked), timeout)
            return result, await reasons(deuz, scope, result.run_id, result.tasks)
        handle = await deuz.aio.run_swarm(swarm, **asked)
        tasks = counted(len(swarm.tasks), "task")
        output.show(f"swarm [bold]{escape(handle.run_id)}[/], {tasks}; Ctrl-C ends the waiting, not the swarm")
        if not wait:
            output.document({"run_id": handle.run_id, "scope": handle.scope})
            return None
        result = await _watched(handle, output, timeout)
        return result, await reasons(deuz, scope, result.run_id, result.tasks)

    ended = on_app(application(app_place), work)
    if ended is None:
        return
    result, why = ended
    output.document({**_record(result), "reasons": why})
    output.show(f"{result.status}: {_counts(result.counts)}; {counted(result.tokens, 'token')}, {cost(result.cost_micros)}")
    for task_id, value in result.outputs.items():
        output.show(f"[bold]{escape(task_id)}[/] {escape(value if isinstance(value, str) else repr(value))}")
    _show_reasons(why, output)
    raise typer.Exit(_exit_of(result.status))


@app.command()
def show(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of the swarm's run.")],
    place: AppOption = None,
    scope: ScopeOption = "default",
    json: JsonOption = False,
) -> None:
    """Counters and tasks of one moment. Ends with 0, 1 or 3 as the swarm stands."""

    async def look(deuz: Deuz) -> tuple[SwarmSnapshot, str, int, dict[str, str]]:
        from deuz_workers.app.access import not_found
        from deuz_workers.app.swarm_result import swarm_status

        head = await deuz.store.head(scope, run_id)
        snapshot = None if head is None else await deuz.store.swarm_snapshot(head.rid)
        if head is None or snapshot is None:
            raise not_found(scope, run_id)
        why = await reasons(deuz, scope, run_id, {task.task_id: task.status for task in snapshot.tasks})
        return snapshot, swarm_status(head, snapshot), await deuz.store.now_ms(), why

    snapshot, status, now_ms, why = on_app(stored(place), look)
    output = Output(json)
    output.document({"run_id": run_id, "scope": scope, "status": status, **asdict(snapshot), "reasons": why})
    output.show(
        f"swarm [bold]{escape(run_id)}[/] is {status}: {snapshot.open} open, {snapshot.ready} ready, "
        f"{snapshot.running} of {snapshot.slots} slots in use"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("task", "agent", "status", "after", "turns", "tokens", "time"):
        table.add_column(column, overflow="fold", justify="right" if column in ("turns", "tokens", "time") else "left")
    for task in snapshot.tasks:
        took = None if task.started_at_ms is None else (task.ended_at_ms or now_ms) - task.started_at_ms
        table.add_row(
            escape(task.task_id),
            escape(task.agent),
            f"[{COLOURS.get(task.status, 'white')}]{task.status}[/]",
            escape(_shortened(task.depends_on)),
            str(task.model_step),
            tokens(task.tokens),
            "" if took is None else duration(took),
        )
    output.show(table)
    _show_reasons(why, output)
    raise typer.Exit(Exit.OK if status in ("running", "completed") else _exit_of(status))


def load_swarm(place: str) -> Swarm:
    """The swarm that `place` names. Raises `ConfigurationError` that says which part is wrong."""
    from deuz_workers.app.discovery import import_from_here, with_article
    from deuz_workers.app.swarm import Swarm

    module_name, colon, attribute = place.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise ConfigurationError(f"{place!r} names no swarm; write package.module:attribute, such as my_swarms:nightly")
    with user_code(place):
        module = import_from_here(module_name, place)
    if not hasattr(module, attribute):
        known = sorted(name for name, value in vars(module).items() if isinstance(value, Swarm))
        there = f"the swarms there are {', '.join(f'{module_name}:{name}' for name in known)}" if known else "no swarm is there"
        raise ConfigurationError(f"{place!r}: there is no {attribute!r} in {module_name!r}; {there}")
    found: object = getattr(module, attribute)
    if callable(found) and not isinstance(found, Swarm):
        with user_code(place):
            found = found()
    if not isinstance(found, Swarm):
        raise ConfigurationError(f"{place!r} is {with_article(type(found).__name__)}, not a Swarm")
    return found


async def reasons(deuz: Deuz, scope: str, run_id: str, tasks: Mapping[str, str]) -> dict[str, str]:
    """Why tasks failed, were stopped or wait for a word, by task id; blocked ones follow from these."""
    from deuz_workers.core.envelope import decode_envelope
    from deuz_workers.core.names import task_run_id
    from deuz_workers.errors import CheckpointVersionError, CodecError

    found: dict[str, str] = {}
    for task_id, status in tasks.items():
        if status not in ("failed", "needs_reconciliation"):
            continue
        head = await deuz.store.head(scope, task_run_id(run_id, task_id))
        if head is None:
            continue
        try:
            envelope = decode_envelope(head)
        except (CodecError, CheckpointVersionError) as error:
            found[task_id] = error.message
            continue
        error = envelope.error
        told = f"{error.get('name')}: {error.get('message')}" if error else head.parked or envelope.reason
        found[task_id] = told or "no reason is recorded"
    return found


def _show_reasons(why: Mapping[str, str], output: Output) -> None:
    for task_id, told in why.items():
        output.show(f"[red]{escape(task_id)}[/] {escape(' '.join(told.split()))}")


async def _watched(handle: AsyncSwarmHandle, output: Output, timeout: float | None) -> SwarmResult:
    """The result; until it is there, changes of task statuses are written as they are seen."""
    waiting = asyncio.create_task(handle.result(timeout))
    seen: dict[str, str] = {}
    try:
        while not waiting.done():
            for task in (await handle.snapshot()).tasks:
                if seen.get(task.task_id, "pending") != task.status:
                    output.show(f"  {escape(task.task_id):<24} [{COLOURS.get(task.status, 'white')}]{task.status}[/]")
                seen[task.task_id] = task.status
            await asyncio.wait((waiting,), timeout=LOOK_S)
        return await waiting
    finally:
        waiting.cancel()


def _record(result: SwarmResult) -> dict[str, object]:
    """The result for JSON; `asdict` would rebuild its counter from pairs."""
    return {
        "run_id": result.run_id,
        "scope": result.scope,
        "name": result.name,
        "status": result.status,
        "counts": dict(result.counts),
        "tasks": dict(result.tasks),
        "outputs": dict(result.outputs),
        "tokens": result.tokens,
        "cost_micros": result.cost_micros,
    }


def _shortened(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _counts(counts: Any) -> str:
    return ", ".join(f"{number} {status}" for status, number in sorted(Counter(counts).items()))


def _exit_of(status: str) -> Exit:
    return {"completed": Exit.OK, "running": Exit.WAITING, "suspended": Exit.WAITING}.get(status, Exit.FAILED)
