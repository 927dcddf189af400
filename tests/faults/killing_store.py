"""A store whose process gets SIGKILL before or after a commit of a named kind, once."""

from __future__ import annotations

import inspect
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

from deuz_workers.core.change import Change, Outcome
from deuz_workers.core.chat import ChatRecord, ChatState
from deuz_workers.ports.chat import ChatKept
from deuz_workers.ports.store import RunStore

T = TypeVar("T")

KINDS = ("moved on", "admitted", "reply", "receipts", "outcome", "answered", "suspended", "resumed", "asked", "ended")
"""Of commits: a call of the next candidate is admitted, and the last one has failed; any other model call is; its reply is
saved without calls; receipts of calls that begin, with the reply or after the answers of people; an outcome beside calls that
still run; the turn is answered; the run is suspended; its answers are taken in; the reply that ends the loop is saved and the
final answer asked for; the run has ended."""
CHAT_KINDS = ("chat", "chat state")
"""Writes behind the commits that suspend and end a run: its chat, and how far that has come."""
POINTS = tuple(f"{when} {kind}" for kind in (*KINDS, *CHAT_KINDS) for when in ("before", "after"))


def kind_of(change: Change) -> str:
    """By what the commit writes; the first that fits."""
    records = [json.loads(body) for body in change.journal]
    types = {record["type"] for record in records}
    for kind, found in (
        ("ended", change.status in ("completed", "stopped", "failed")),
        ("suspended", bool(change.items)),
        ("resumed", "run.resumed" in types),
        ("moved on", any("next_model" in record for record in records)),
        ("admitted", "model.called" in types),
        ("receipts", "tool.started" in types),
        ("answered", "turn.answered" in types),
        ("outcome", any(row.stage != "executing" for row in change.receipts)),
        ("asked", change.phase == "finalizing" and len(change.messages) > int("model.replied" in types)),
        ("reply", "model.replied" in types),
    ):
        if found:
            return kind
    return "other"


class KillingStore:
    """Passes everything on to `inner`; `mark` is made when the process is killed, and while it is there nobody is."""

    def __init__(self, inner: RunStore, point: str, mark: Path) -> None:
        self._inner = inner
        self._when, _, self._kind = point.partition(" ")
        self._mark = mark

    @property
    def as_store(self) -> RunStore:
        return cast(RunStore, self)

    async def commit(self, change: Change) -> Outcome:
        return await self._passing(kind_of(change), lambda: self._inner.commit(change))

    async def write_chat(self, record: ChatRecord, expected: int | None) -> int:
        return await self._passing("chat", lambda: self._inner.write_chat(record, expected))

    async def keep_chat_state(self, rid: UUID, state: ChatState, **read: Any) -> ChatKept:
        return await self._passing("chat state", lambda: self._inner.keep_chat_state(rid, state, **read))

    async def _passing(self, kind: str, write: Callable[[], Awaitable[T]]) -> T:
        if kind == self._kind and self._when == "before":
            self._die()
        outcome = await write()
        if kind == self._kind and self._when == "after":
            self._die()
        return outcome

    def _die(self) -> None:
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.killpg(0, signal.SIGKILL)

    def __getattr__(self, name: str) -> Any:
        reached = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(reached):
            return reached

        async def call(*args: Any, **kwargs: Any) -> object:
            return await reached(*args, **kwargs)

        return call
