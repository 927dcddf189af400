"""What people say with the forms of pages: each answer is stored at once, under the name of whoever is signed in."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from deuz_workers.errors import RunNotFoundError
from deuz_workers.gateway.console.look import Look
from deuz_workers.gateway.problems import RequestError

Fields = Mapping[str, str]


async def approve(look: Look, run_id: str, fields: Fields) -> None:
    """`arguments`, where the form has them, take the place of those that were asked for."""
    arguments = None if "arguments" not in fields else _json(fields["arguments"], "the arguments")
    if arguments is not None and not isinstance(arguments, dict):
        raise RequestError("the arguments of a call are an object: {...}", 422)
    handle, item, by = look.gateway.app.aio.handle(run_id, look.scope), _item(fields), look.principal.name
    token, edited = fields.get("token") or None, cast("dict[str, object] | None", arguments)
    await _listened_to(look, run_id, lambda: handle.approve(item, _said(fields), by=by, token=token, arguments=edited))


async def deny(look: Look, run_id: str, fields: Fields) -> None:
    handle, item = look.gateway.app.aio.handle(run_id, look.scope), _item(fields)
    await _listened_to(look, run_id, lambda: handle.deny(item, _said(fields), by=look.principal.name))


async def answer(look: Look, run_id: str, fields: Fields) -> None:
    """What a client's execution returned: JSON, or with `as` text the text as it is; with `as` error, how it failed."""
    handle, item, by = look.gateway.app.aio.handle(run_id, look.scope), _item(fields), look.principal.name
    text, kind = fields.get("output", ""), fields.get("as", "json")
    if kind == "error":
        if not text.strip():
            raise RequestError("say how it failed", 422)
        await _listened_to(look, run_id, lambda: handle.answer(item, error=text, by=by))
        return
    output = text if kind == "text" else _json(text, "the answer")
    await _listened_to(look, run_id, lambda: handle.answer(item, output, by=by))


async def cancel(look: Look, run_id: str, fields: Fields) -> None:
    """Of a run that has ended, nothing."""
    await look.gateway.app.aio.handle(run_id, look.scope).cancel(_said(fields))


ANSWERS: Mapping[str, Callable[[Look, str, Fields], Awaitable[None]]] = {
    "approve": approve,
    "deny": deny,
    "answer": answer,
    "cancel": cancel,
}


async def _listened_to(look: Look, run_id: str, say: Callable[[], Awaitable[Any]]) -> None:
    """What the run shows from the answer on is recorded for whoever reads it later."""
    gateway = look.gateway
    head = await gateway.access.head(look.scope, run_id)
    if head.kind != "agent":
        raise RunNotFoundError(f"there is no run {run_id!r} in scope {look.scope!r} that waits for answers", run_id=run_id)
    early = await gateway.streams.early(look.scope, run_id)
    try:
        answered = await say()
    except BaseException:
        await early.close()
        raise
    if answered.open_items or answered.still_needed:
        await early.close()
    else:
        await gateway.streams.follow(head, early, head.revision)


def _item(fields: Fields) -> str:
    item = fields.get("item", "")
    if not item:
        raise RequestError("the form names nothing that waits", 422)
    return item


def _said(fields: Fields) -> str | None:
    return fields.get("reason", "").strip() or None


def _json(text: str, what: str) -> object:
    """Raises `RequestError`, which says where it is none."""

    def refuse(name: str) -> None:
        raise RequestError(f"{what} holds {name}, which JSON does not have", 422)

    try:
        value = json.loads(text, parse_constant=refuse)
        json.dumps(value, allow_nan=False)
    except json.JSONDecodeError as error:
        raise RequestError(f"{what} is no JSON: {error.msg} in line {error.lineno}, column {error.colno}", 422) from None
    except (ValueError, RecursionError):
        raise RequestError(f"{what} holds a number that is too large, or is nested too deeply", 422) from None
    return value
