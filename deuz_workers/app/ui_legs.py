"""Legs of runs as a recorder follows them: their events while they go on, and what was saved when they are over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from deuz_workers.app.access import Access
from deuz_workers.app.agent_stream import AgentStream, View
from deuz_workers.app.async_handle import AsyncHandle
from deuz_workers.app.below import read_below, reports
from deuz_workers.app.chat import with_chat
from deuz_workers.app.results import AgentResult, result_of
from deuz_workers.app.stream_events import StreamEvent
from deuz_workers.app.ui_target import turn_texts
from deuz_workers.core.codec import decode
from deuz_workers.core.run import read_run
from deuz_workers.ports.store import Loaded, RunStore

PAGE = 500
"""Rows of a run's journal that are read at once."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a leg ended. `revision`: of the run, None where that is not known."""

    result: AgentResult[Any]
    texts: Mapping[int, str]
    revision: int | None


class Leg(Protocol):
    """Taken before anything of it starts, so that nothing is missed."""

    @property
    def run_id(self) -> str: ...

    @property
    def events(self) -> View[StreamEvent]:
        """From its making on, ended by a result."""
        ...

    async def texts(self) -> Mapping[int, str]:
        """Those that are saved now, by turn."""
        ...

    async def ended(self, result: AgentResult[Any]) -> Ended | None:
        """What is saved, behind the last event; None: the run goes on already, or this leg was refused before it began."""
        ...

    async def close(self) -> None:
        """Nothing more is followed; the run goes on."""
        ...


class StreamLeg:
    """Of a stream that somebody else made. `store`: of its run, where texts are looked up; without it the result has them."""

    def __init__(self, stream: AgentStream, store: RunStore | None = None) -> None:
        self._stream = stream
        self._store = store
        self.events = stream.events

    @property
    def run_id(self) -> str:
        return self._stream.run_id

    async def texts(self) -> Mapping[int, str]:
        if self._store is None:
            return {}
        loaded = await self._store.load(self._stream.scope, self._stream.run_id)
        return {} if loaded is None else await texts_of(self._store, loaded)

    async def ended(self, result: AgentResult[Any]) -> Ended | None:
        if is_refused(result):
            return None
        texts = await self.texts()
        if not texts and result.status in ("completed", "suspended"):  # its last turn was answered
            texts = turn_texts(result.transcript or result.messages, range(result.steps, result.steps + 1))
        return Ended(result, texts, None)

    async def close(self) -> None:
        """The stream belongs to whoever made it."""
        await self.events.aclose()


class StoredLeg:
    """Of a run that any process executes, from now on."""

    def __init__(self, access: Access, scope: str, run_id: str, stream: AgentStream | None = None) -> None:
        """`stream`: of the run, which this leg closes; None: one that begins now."""
        self._access = access
        self._scope = scope
        self.run_id = run_id
        self._stream = stream or AsyncHandle(access, scope, run_id).stream()
        self.events = self._stream.events

    async def texts(self) -> Mapping[int, str]:
        loaded = await self._access.store.load(self._scope, self.run_id)
        return {} if loaded is None else await texts_of(self._access.store, loaded)

    async def ended(self, result: AgentResult[Any]) -> Ended | None:
        loaded = await self._access.store.load(self._scope, self.run_id)
        if loaded is None or not await reports(self._access.store, loaded.head):
            return None
        below = await read_below(self._access.store, loaded.head, None)
        result = await with_chat(self._access.store, loaded, result_of(loaded, below=below))
        return Ended(result, await texts_of(self._access.store, loaded), loaded.head.revision)

    async def close(self) -> None:
        await self._stream.aclose()


def is_refused(result: AgentResult[Any]) -> bool:
    """Of a call that a store or a lease refused, or of a stream that broke: the run itself is as it was."""
    return result.status == "failed" and not result.messages


async def texts_of(store: RunStore, loaded: Loaded) -> dict[int, str]:
    """Texts of the turns that are answered, as far as the history has them."""
    run = read_run(loaded.head, loaded.messages, loaded.receipts)
    return turn_texts(run.transcript, await _replied(store, loaded.head.scope, loaded.head.run_id))


async def _replied(store: RunStore, scope: str, run_id: str) -> list[int]:
    """Turns that were answered, in order."""
    after, steps = 0, list[int]()
    while rows := await store.journal(scope, run_id, after, PAGE):
        after = rows[-1].seq
        records = (cast(Mapping[str, object], decode(row.body)) for row in rows)
        steps += [cast(int, record["step"]) for record in records if record.get("type") == "model.replied"]
    return steps
