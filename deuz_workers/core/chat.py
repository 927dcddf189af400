"""The chat of a run: where its transcript is written for whoever goes on with the conversation, and how far that has come.

The transcript is the run's; a chat record is made from it and never read back into the run. What decides is here: which ids
messages have, whether a stored chat may be written over, what is left to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, cast

from deuz_workers.core.codec import canonical, decode, digest, encode
from deuz_workers.core.messages import Message, message_from_record, message_to_record
from deuz_workers.errors import CodecError

ChatStatus = Literal["pending", "saved", "failed", "scope-mismatch", "superseded"]
"""`pending`: nothing was tried yet. `superseded`: the chat was deleted or went on without this run, which writes no more."""
Judgement = Literal["write", "keep", "scope-mismatch", "superseded"]
"""`keep`: the stored chat has the whole transcript already, and perhaps more."""
Occasion = Literal["leg", "due", "asked"]
"""Why it is looked at: a leg of the run has just been saved; one was whose executor died before its chat was written; somebody
asks for what is left to do. The last two are late: the conversation may have gone on since."""

ABSENT = "absent"
"""Stands for the digest of a chat that is not there."""

NO_ERROR: Mapping[str, object] = MappingProxyType({})
NO_TURNS: Mapping[int, str] = MappingProxyType({})
NO_CALLS: Mapping[tuple[int, str], str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ChatRecord:
    """A conversation as a chat store keeps it, whole."""

    chat_id: str
    scope: str
    messages: tuple[Message, ...]
    message_ids: tuple[str, ...]
    """One for each message."""
    revision: int = 0
    """Of the record, in stores that have `write_chat`."""
    deleted: bool = False
    """It was deleted, and nothing is written under this id again; the rest is empty."""


@dataclass(frozen=True, slots=True)
class RunChat:
    """Which chat a run writes. That alone stands in the body of its record; what became of it is a row of its own, and part of
    an inspected envelope."""

    chat_id: str
    scope: str
    own_store: bool = False
    """It is kept in the application's chat store instead of beside the runs."""
    status: ChatStatus = "pending"
    cursor: int = 0
    """So many messages of the transcript are known to be in the chat."""
    error: Mapping[str, object] = field(default_factory=lambda: NO_ERROR)
    """Of the newest attempt that failed."""
    turns: Mapping[int, str] = field(default_factory=lambda: NO_TURNS)
    """By number of the turn, the id of the message that the model answered with."""
    calls: Mapping[tuple[int, str], str] = field(default_factory=lambda: NO_CALLS)
    """By turn and call id, the id of the message that asks for the call."""

    def to_record(self) -> dict[str, object]:
        """What a resume has to match."""
        record: dict[str, object] = {"chat_id": self.chat_id, "scope": self.scope}
        return record | ({"own_store": True} if self.own_store else {})

    @staticmethod
    def from_record(record: Mapping[str, object]) -> RunChat:
        return RunChat(str(record["chat_id"]), str(record["scope"]), record.get("own_store") is True)


@dataclass(frozen=True, slots=True)
class ChatState:
    """How far the chat of a run has come; a row that follows the run's commits and moves no revision of it."""

    status: ChatStatus = "pending"
    cursor: int = 0
    kept_ids: tuple[str, ...] | None = None
    """Of the messages at the beginning, which came from the stored chat; None: it was not read yet."""
    found: str | None = None
    """Digest of the chat as the newest attempt left or found it; None: that is not known."""
    error: Mapping[str, object] = field(default_factory=lambda: NO_ERROR)
    seq: int = 0
    """How often the row was written; a writer names the number that it read."""

    def to_body(self) -> str:
        record: dict[str, object] = {"status": self.status, "cursor": self.cursor, "found": self.found}
        if self.kept_ids is not None:
            record["kept_ids"] = list(self.kept_ids)
        if self.error:
            record["error"] = dict(self.error)
        return encode(record)

    @staticmethod
    def from_body(seq: int, body: str) -> ChatState:
        """Raises `CodecError` for what `to_body` did not write."""
        try:
            record = cast("Mapping[str, object]", decode(body))
            kept = cast("list[str] | None", record.get("kept_ids"))
            return ChatState(
                cast(ChatStatus, record["status"]),
                cast(int, record["cursor"]),
                None if kept is None else tuple(kept),
                cast("str | None", record["found"]),
                cast("Mapping[str, object]", record.get("error", NO_ERROR)),
                seq,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise CodecError(f"the state of a run's chat is not readable: {type(error).__name__}") from error

    def moved(self, status: ChatStatus, **changes: object) -> ChatState:
        """After an attempt that ended so."""
        given: dict[str, Any] = {"error": NO_ERROR, **changes}
        return replace(self, status=status, **given)

    @property
    def warning(self) -> str | None:
        """What a reader of the run is told, where the chat does not have all of it."""
        match self.status:
            case "failed":
                why = f"{self.error.get('name')}: {self.error.get('message')}"
                return f"the chat could not be written ({why}); the next save of the run or a reconciliation repairs it"
            case "scope-mismatch":
                return "the chat belongs to another scope and was left as it is"
            case "superseded":
                return "the chat was deleted or went on without this run, so it was left as it is; the transcript has all turns"
            case _:
                return None


def is_owed(state: ChatState, length: int, occasion: Occasion) -> bool:
    """Something of a transcript of `length` messages is to be written. What is superseded stays so (CHT-014)."""
    if state.status == "superseded" or (occasion != "leg" and state.status == "scope-mismatch"):
        return False
    return state.cursor < length


def ids_of(run_id: str, length: int, kept: Sequence[str]) -> tuple[str, ...]:
    """Of all messages of a transcript: those of the stored chat keep theirs (CHT-005)."""
    return (*kept[:length], *(f"{run_id}:{place}" for place in range(min(len(kept), length), length)))


def kept_ids(stored: ChatRecord | None, texts: Sequence[str], scope: str) -> tuple[str, ...]:
    """Ids of the messages at the beginning of the transcript that the stored chat begins with too."""
    if stored is None or stored.deleted or stored.scope != scope:
        return ()
    shared = 0
    for mine, other in zip(texts, texts_of(stored.messages), strict=False):
        if mine != other:
            break
        shared += 1
    return stored.message_ids[:shared]


def judge(stored: ChatRecord | None, texts: Sequence[str], chat: RunChat, state: ChatState, occasion: Occasion) -> Judgement:
    """What may be done about the stored chat, where `texts` are to be its messages.

    A leg writes whatever the chat says by now (CHT-016). Late, a chat is written that is as it was found, or that the
    transcript extends (CHT-013); any other has moved on.
    """
    if stored is None:
        is_new = state.found in (None, ABSENT) and not state.cursor
        return "write" if occasion == "leg" or is_new else "superseded"
    if stored.deleted:
        return "superseded"
    if stored.scope != chat.scope:
        return "scope-mismatch"
    theirs = texts_of(stored.messages)
    if theirs[: len(texts)] == list(texts):
        return "keep"
    if occasion == "leg" or fingerprint(stored) == state.found or list(texts[: len(theirs)]) == theirs:
        return "write"
    return "superseded"


def texts_of(messages: Sequence[Message]) -> list[str]:
    """One text for each message, the same for equal messages."""
    return [canonical(message_to_record(message)) for message in messages]


def fingerprint(stored: ChatRecord | None) -> str:
    """The same for a chat that says the same, whatever its revision is."""
    if stored is None:
        return ABSENT
    return digest([stored.scope, stored.deleted, texts_of(stored.messages), list(stored.message_ids)])


def record_body(record: ChatRecord) -> str:
    """Messages and ids as our stores keep them: without loss."""
    messages = [message_to_record(message) for message in record.messages]
    return encode({"messages": messages, "message_ids": list(record.message_ids)})


def record_of(chat_id: str, scope: str, revision: int, body: str | None) -> ChatRecord:
    """Raises `CodecError` for a body that `record_body` did not write."""
    if body is None:
        return ChatRecord(chat_id, scope, (), (), revision, deleted=True)
    try:
        record = cast("Mapping[str, object]", decode(body))
        messages = tuple(map(message_from_record, cast("list[object]", record["messages"])))
        return ChatRecord(chat_id, scope, messages, tuple(cast("list[str]", record["message_ids"])), revision)
    except (KeyError, TypeError, AttributeError) as error:
        raise CodecError(f"chat {chat_id!r} is not readable: {type(error).__name__}") from error
