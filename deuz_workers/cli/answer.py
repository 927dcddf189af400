"""`deuz runs approve`, `deny` and `answer`: what people and clients say to what a run waits for."""

from __future__ import annotations

import json as jsons
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.markup import escape

from deuz_workers.cli.exits import Exit
from deuz_workers.cli.output import Output
from deuz_workers.cli.session import AppOption, JsonOption, ScopeOption, on_app, stored
from deuz_workers.errors import AnswerConflictError, ConfigurationError

if TYPE_CHECKING:
    from deuz_workers.app.async_handle import AsyncHandle
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.app.door import Answer
    from deuz_workers.app.pending import PendingApproval, PendingClientCall

RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")]
Item = Annotated[
    str | None, typer.Argument(help="Id of the request, as deuz runs show names it; may be left out where one is pending.")
]
Reason = Annotated[str | None, typer.Option(help="Why; recorded with the answer.")]
By = Annotated[str | None, typer.Option(metavar="NAME", help="Who says so; recorded. Needed where certain people are asked.")]


def approve(
    run_id: RunId,
    item: Item = None,
    place: AppOption = None,
    scope: ScopeOption = "default",
    reason: Reason = None,
    by: By = None,
    token: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="The request's, where the application signs its requests.")
    ] = None,
    arguments: Annotated[
        str | None, typer.Option(metavar="JSON", help="Run the call with these arguments instead; both are recorded.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Let a call run that waits for a person."""
    edited = None if arguments is None else _object("--arguments", arguments)

    async def say(deuz: Deuz, handle: AsyncHandle) -> Answer:
        chosen = item or await _only(deuz, handle, await handle.pending(), "approval")
        return await handle.approve(chosen, reason, by=by, token=token, arguments=edited)

    _give(run_id, place, scope, json, "approved", say)


def deny(
    run_id: RunId,
    item: Item = None,
    place: AppOption = None,
    scope: ScopeOption = "default",
    reason: Reason = None,
    by: By = None,
    json: JsonOption = False,
) -> None:
    """Refuse a call that waits for a person; the model is told, with the reason."""

    async def say(deuz: Deuz, handle: AsyncHandle) -> Answer:
        return await handle.deny(item or await _only(deuz, handle, await handle.pending(), "approval"), reason, by=by)

    _give(run_id, place, scope, json, "denied", say)


def answer(
    run_id: RunId,
    item: Item = None,
    place: AppOption = None,
    scope: ScopeOption = "default",
    output: Annotated[str | None, typer.Option("--output", metavar="JSON", help="What the client returned.")] = None,
    error: Annotated[str | None, typer.Option(metavar="TEXT", help="How it failed instead; the model is told.")] = None,
    by: By = None,
    json: JsonOption = False,
) -> None:
    """Hand in the result of a call that a client executes."""
    if (output is None) == (error is None):
        raise ConfigurationError("say what became of the call: --output JSON or --error TEXT, one of the two")
    value = None if output is None else _value("--output", output)

    async def say(deuz: Deuz, handle: AsyncHandle) -> Answer:
        chosen = item or await _only(deuz, handle, await handle.pending_client_calls(), "client")
        return await handle.answer(chosen, value, error=error, by=by)

    _give(run_id, place, scope, json, "answered", say)


def _give(
    run_id: str,
    place: str | None,
    scope: str,
    json: bool,
    said: str,
    say: Callable[[Deuz, AsyncHandle], Awaitable[Answer]],
) -> None:
    async def give(deuz: Deuz) -> tuple[Answer | AnswerConflictError, str | None]:
        handle = deuz.aio.handle(run_id, scope)
        try:
            given = await say(deuz, handle)
        except AnswerConflictError as conflict:
            given = conflict
        head = await deuz.store.head(scope, run_id)
        return given, None if head is None else head.parked

    given, parked = on_app(stored(place), give)
    output = Output(json)
    if isinstance(given, AnswerConflictError):
        winner = given.winner
        output.document(
            {"run_id": run_id, "item": given.fields.get("item_id"), "parked": parked, "stored": False, "winner": winner}
        )
        output.show(escape(given.message))
        agrees = {"approved": True, "denied": False}.get(said, "?") == winner.get("approved")
        raise typer.Exit(Exit.OK if agrees else Exit.FAILED)
    output.document({"run_id": run_id, "item": given.item_id, "parked": parked, "stored": True, **asdict(given)})
    left = ""
    if given.still_needed:
        left = f"; {given.still_needed} more {'person has' if given.still_needed == 1 else 'people have'} to approve it"
    elif given.open_items:
        left = f"; {given.open_items} more {'waits' if given.open_items == 1 else 'wait'}"
    output.show(f"{said} {escape(given.item_id)}{left}")
    if parked:
        output.show(f"[yellow]the run is parked ({escape(parked)})[/] and goes on after: deuz runs retry {escape(run_id)}")


async def _only(deuz: Deuz, handle: AsyncHandle, pending: Sequence[PendingApproval | PendingClientCall], kind: str) -> Any:
    """The one that is pending."""
    if len(pending) == 1:
        return pending[0]
    await handle.status()  # says so if there is no such run
    what = "approval" if kind == "approval" else "result of a client"
    if not pending:
        head = await deuz.store.head(handle.scope, handle.run_id)
        if head is not None and head.parked is not None:
            raise ConfigurationError(
                f"run {handle.run_id!r} waits for no {what}: it is parked ({head.parked}); "
                f"see deuz runs show {handle.run_id}, then deuz runs retry or reconcile"
            )
        raise ConfigurationError(f"run {handle.run_id!r} waits for no {what}")
    known = ", ".join(f"{call.item_id} ({call.tool_name})" for call in pending)
    raise ConfigurationError(f"run {handle.run_id!r} waits for {len(pending)} answers; name one of {known}")


def _value(option: str, text: str) -> Any:
    try:
        return jsons.loads(text)
    except ValueError:
        raise ConfigurationError(f"{option} takes JSON; quote a text twice, such as '\"paid\"'") from None


def _object(option: str, text: str) -> Mapping[str, object]:
    value = _value(option, text)
    if not isinstance(value, dict):
        raise ConfigurationError(f"{option} takes a JSON object, such as '{{\"amount\": 5}}'")
    return cast(Mapping[str, object], value)
