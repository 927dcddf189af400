"""Chat stores of an application's own, for tests: in a dict, with faults, and what happened to them in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from deuz_workers import Agent, ChatRecord, ChatStore, Deuz, RevisionConflictError, Settings
from deuz_workers.leases import memory_leases
from deuz_workers.ports.store import RunStore
from tests.app.world import World


@dataclass
class PlainChats:
    """A store that writes whatever it is given."""

    records: dict[str, ChatRecord] = field(default_factory=dict[str, ChatRecord])
    saves: list[ChatRecord] = field(default_factory=list[ChatRecord])
    """Every record that was written, oldest first."""
    before_load: list[Callable[[], Awaitable[None]]] = field(default_factory=list[Callable[[], Awaitable[None]]])
    before_save: list[Callable[[], Awaitable[None]]] = field(default_factory=list[Callable[[], Awaitable[None]]])
    """Each is called once, ahead of one call; what it raises is what that call raises."""

    async def load_chat(self, chat_id: str) -> ChatRecord | None:
        if self.before_load:
            await self.before_load.pop(0)()
        return self.records.get(chat_id)

    async def save_chat(self, record: ChatRecord) -> None:
        if self.before_save:
            await self.before_save.pop(0)()
        self._put(record)

    def _put(self, record: ChatRecord) -> None:
        self.records[record.chat_id] = record
        self.saves.append(record)


@dataclass
class ConditionalChats(PlainChats):
    """One whose records have a revision."""

    async def write_chat(self, record: ChatRecord, expected: int | None) -> None:
        if self.before_save:
            await self.before_save.pop(0)()
        stored = self.records.get(record.chat_id)
        if (None if stored is None else stored.revision) != expected:
            raise RevisionConflictError("the chat was written meanwhile", chat_id=record.chat_id)
        self._put(replace(record, revision=(expected or 0) + 1))


class ChatFault(Exception):
    """What a chat store raises that is away."""


async def fails() -> None:
    raise ChatFault("secret text of the driver")


def process(
    world: World,
    *agents: Agent,
    chats: ChatStore | None = None,
    store: RunStore | None = None,
    **given: Any,
) -> Deuz:
    """As `World.process`, with a chat store."""
    settings = Settings(database_url=world.url, redis_url=None, broker_url=None, leases_url="memory://", **given)
    app = Deuz(agents, settings=settings, store=store or world.store, leases=memory_leases(), chats=chats)
    world.opened.append(app)
    return app
