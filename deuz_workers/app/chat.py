"""The chat that a run is told to write, and what readers of the run learn about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from deuz_workers.app.names import check_id
from deuz_workers.app.results import AgentResult, ResultWarning
from deuz_workers.core.change import Head
from deuz_workers.core.chat import RunChat, ids_of
from deuz_workers.core.codec import decode
from deuz_workers.core.envelope import AgentRunEnvelope
from deuz_workers.core.run import read_run
from deuz_workers.engine.in_process import binding_changed
from deuz_workers.engine.projecting import chat_of, read_transcript
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.chat import ChatStore
from deuz_workers.ports.store import Loaded, RunStore

WARNS = "chat"
"""Setting of the warnings."""
JOURNAL_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Chat:
    """Where a run writes its transcript, so that a later run can go on with the conversation."""

    chat_id: str
    scope: str | None = None
    """Of whoever the chat belongs to; one of another scope is left alone. None: the run's."""
    store: ChatStore | None = None
    """None: beside the runs, or the application's `chats`."""

    def __post_init__(self) -> None:
        """Raises `ConfigurationError`."""
        check_id("a chat id", self.chat_id)
        if self.scope is not None:
            check_id("the scope of a chat", self.scope)
        if self.store is not None:
            check_chat_store(self.store)


def check_chat_store(store: object) -> None:
    """Raises `ConfigurationError` for what is none."""
    if not all(callable(getattr(store, name, None)) for name in ("load_chat", "save_chat")):
        raise ConfigurationError(f"a {type(store).__name__} is no chat store; it needs load_chat and save_chat")


def own_chats(chat: Chat | None, store: object) -> ChatStore | None:
    """The chat store that an application made for one run has beside `store`, what was given for its runs."""
    return None if chat is None or chat.store is None or chat.store is store else chat.store


def run_chat(chat: Chat | None, scope: str, chats: ChatStore | None, store: RunStore) -> RunChat | None:
    """What of `chat` belongs to a run of `scope`, in an application whose chat store is `chats`.

    Raises `ConfigurationError` for a store that other processes could not know.
    """
    if chat is None:
        return None
    if not isinstance(chat, Chat):  # pyright: ignore[reportUnnecessaryIsInstance] - what users pass
        raise ConfigurationError(f"chat is a {type(chat).__name__}; pass Chat('an id')")
    if chat.store is not None and chat.store is not (chats or store):
        raise ConfigurationError(
            "an application keeps its chats in one store, which every process of it knows: give that one as Deuz(chats=...)"
        )
    return RunChat(chat.chat_id, chat.scope or scope, own_store=chats is not None)


def check_chat(head: Head, asked: RunChat | None, chats: ChatStore | None) -> None:
    """A resume has to name the chat that the run began with, or none. Raises `ExecutionPolicyError` (BND-005)."""
    known = chat_of(head)
    lacks = known is not None and known.own_store and chats is None
    if lacks or (asked is not None and asked != known):
        raise binding_changed(head.run_id, head.agent)


async def with_chat(store: RunStore, loaded: Loaded, result: AgentResult[Any]) -> AgentResult[Any]:
    """The result of a run that writes a chat, with what is to be said about that, and all that was ever said in it."""
    if chat_of(loaded.head) is None:
        return result
    run = read_run(loaded.head, loaded.messages, loaded.receipts)
    warning = (await store.chat_state(loaded.head.rid)).warning
    warnings = () if warning is None else (ResultWarning(WARNS, warning),)
    return replace(
        result,
        transcript=await read_transcript(store, loaded, run),
        warnings=(*result.warnings, *warnings),
    )


async def inspected(store: RunStore, loaded: Loaded, envelope: AgentRunEnvelope) -> AgentRunEnvelope:
    """The record with what became of its chat: how far it came, and which message is which turn and call (CHT-006)."""
    chat = envelope.chat
    if chat is None:
        return envelope
    head = loaded.head
    state = await store.chat_state(head.rid)
    run = read_run(head, loaded.messages, loaded.receipts)
    said = await read_transcript(store, loaded, run)
    ids = ids_of(head.run_id, len(said), state.kept_ids or ())
    replies = [place for place, message in enumerate(said) if message.role == "assistant"]
    steps = await _replied_steps(store, head)
    turns = dict(zip(steps, replies[len(replies) - len(steps) :], strict=False))
    calls = {(step, call.call_id): ids[place] for step, place in turns.items() for call in said[place].tool_uses}
    found = replace(
        chat,
        status=state.status,
        cursor=state.cursor,
        error=state.error,
        turns={step: ids[place] for step, place in turns.items()},
        calls=calls,
    )
    return replace(envelope, chat=found)


async def _replied_steps(store: RunStore, head: Head) -> list[int]:
    """Numbers of the turns that the model answered, in order: one for each of its messages."""
    steps: list[int] = []
    after = 0
    while after < head.journal_seq:
        rows = await store.journal(head.scope, head.run_id, after, min(JOURNAL_PAGE, head.journal_seq - after))
        if not rows:
            break
        for row in rows:
            record = cast("Mapping[str, object]", decode(row.body))
            if record["type"] == "model.replied":
                steps.append(cast(int, record["step"]))
        after = rows[-1].seq
    return steps
