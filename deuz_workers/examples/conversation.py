"""A conversation over two runs: with a memory, a chat that is kept in a store of one's own, and a model that goes away.

``python -m deuz_workers.examples.conversation`` plays it with scripted models. The chat store is away at first, which
fails no run: the chat is repaired when it is back, and the second run goes on from it.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from deuz_workers import (
    Agent,
    Chat,
    ChatRecord,
    Limits,
    Memory,
    MemoryScope,
    MemorySeams,
    MockModel,
    ModelUnavailableError,
    reconcile_agent_run,
    run_agent,
)


class DictChats:
    """Chats in a dict, which may be away as a server may that is restarting."""

    def __init__(self) -> None:
        self.records: dict[str, ChatRecord] = {}
        self.is_away = True

    async def load_chat(self, chat_id: str) -> ChatRecord | None:
        return self.records.get(chat_id)

    async def save_chat(self, record: ChatRecord) -> None:
        if self.is_away:
            raise ConnectionError("the chat server is restarting")
        self.records[record.chat_id] = record


async def remember(system: str, user: str) -> str:
    """Stands for the model that finds out what is worth remembering."""
    if "new facts" in system:
        return '{"memory": [{"event": "ADD", "text": "Drinks tea, never coffee."}]}'
    return '{"facts": ["Drinks tea, never coffee."]}'


def waiter() -> Agent:
    """Its first model is away, so that every call goes on with the other one."""
    away = MockModel([ModelUnavailableError("away", status=503)] * 9, model="large")
    return Agent(
        "waiter",
        model=away,
        fallback_models=[MockModel(["Noted.", "Tea, then."], model="small")],
        limits=Limits(max_retries=0),
        memory=Memory(MemoryScope(user_id="ann"), MemorySeams(llm=remember)),
    )


@dataclass(frozen=True, slots=True)
class Told:
    """What happened, for whoever reads the example."""

    answers: tuple[str, ...]
    warnings: tuple[str, ...]
    """Settings that the first run was warned about."""
    repaired: str | None
    message_ids: tuple[str, ...]
    """Of the chat in the end."""
    recalled: bool
    """The second run was told what the first one had learned."""


async def converse(store: str) -> Told:
    """`store`: URL of a database that outlives a run, such as a file of SQLite."""
    chats = DictChats()
    chat = Chat("table 7", store=chats)
    first = await run_agent(waiter(), "I drink tea, never coffee.", store=store, run_id="hello-1", chat=chat)
    chats.is_away = False
    repair = await reconcile_agent_run("hello-1", store=store, chats=chats, agent=waiter())
    said = chats.records["table 7"].messages
    more = [*said, {"role": "user", "content": "What shall I order?"}]
    second = await run_agent(waiter(), messages=more, store=store, run_id="hello-2", chat=chat)
    return Told(
        (first.output, second.output),
        tuple(warning.setting for warning in first.warnings),
        repair.chat,
        chats.records["table 7"].message_ids,
        any("Drinks tea" in message.text for message in second.messages if message.role == "system"),
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(asyncio.run(converse(f"sqlite:///{Path(folder) / 'runs.db'}")))
