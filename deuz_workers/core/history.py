"""The history of a run: an immutable sequence of messages that appends in constant time.

Snapshots share one list and know their own length, so a turn of a long run costs what the turn added, and no later append is
ever seen through an earlier snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from deuz_workers.core.codec import encode
from deuz_workers.core.estimate import text_bytes
from deuz_workers.core.messages import FilePart, ImagePart, Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart

IMAGE_BYTES = 4_500
"""An image counts like this much text; some 1,500 tokens, what OpenAI charges for a large one in high detail."""
FILE_BYTES = 9_000
"""A file counts like this much text, or like its bytes where they are more: some 3,000 tokens, two pages of a PDF as vendors
read them, text and picture. What one behind a URL or an id costs is not known before the reply."""


class History(Sequence[Message]):
    __slots__ = ("_length", "_open", "_shared", "_silent", "_size_bytes")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._shared = list(messages)
        self._length = len(self._shared)
        self._size_bytes = sum(map(message_bytes, self._shared))
        self._open = _open_after(NONE_OPEN, self._shared)
        self._silent = any(map(says_nothing, self._shared))

    def append(self, *messages: Message) -> History:
        """A history with `messages` at its end; this one stays as it is."""
        if not messages:
            return self
        shared = self._shared if len(self._shared) == self._length else self._shared[: self._length]
        shared.extend(messages)
        size_bytes = self._size_bytes + sum(map(message_bytes, messages))
        silent = self._silent or any(map(says_nothing, messages))
        return self._of(shared, self._length + len(messages), size_bytes, _open_after(self._open, messages), silent)

    @classmethod
    def _of(
        cls, shared: list[Message], length: int, size_bytes: int, open_calls: frozenset[str] | None, silent: bool
    ) -> History:
        self = cls.__new__(cls)
        self._shared, self._length, self._size_bytes, self._open, self._silent = shared, length, size_bytes, open_calls, silent
        return self

    @property
    def is_paired(self) -> bool:
        """Every call has exactly one result behind it, before the next turn, and every result its call."""
        return self._open is not None and not self._open

    @property
    def is_sendable(self) -> bool:
        """It is paired, and every turn of the model says something, which some providers demand."""
        return self.is_paired and not self._silent

    @property
    def size_bytes(self) -> int:
        """Size of all content as UTF-8, for estimates."""
        return self._size_bytes

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self._shared[i] for i in range(*index.indices(self._length))]
        at = index if index >= 0 else self._length + index
        if not 0 <= at < self._length:
            raise IndexError(index)
        return self._shared[at]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._shared[: self._length])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash((self._length, self._size_bytes))

    def __repr__(self) -> str:
        return f"History({self._length} messages, {self._size_bytes} bytes)"


NONE_OPEN: frozenset[str] = frozenset()


def says_nothing(message: Message) -> bool:
    """A reply without text, call or image; what was only thought is not said."""
    return message.role == "assistant" and not any(
        part.text if isinstance(part, TextPart) else not isinstance(part, ReasoningPart) for part in message.parts
    )


def _open_after(open_calls: frozenset[str] | None, messages: Iterable[Message]) -> frozenset[str] | None:
    """Calls that wait for their results after `messages`; None once a pair is broken, which nothing mends."""
    for message in messages:
        if open_calls is None:
            return None
        if message.role == "tool":
            results = [result.call_id for result in message.tool_results]
            answered = frozenset(results)
            open_calls = open_calls - answered if len(answered) == len(results) and answered <= open_calls else None
        elif open_calls:
            return None
        elif message.role == "assistant":
            calls = [call.call_id for call in message.tool_uses]
            open_calls = frozenset(calls)
            if len(open_calls) != len(calls):
                return None
    return open_calls


def message_bytes(message: Message) -> int:
    """What a message brings to a model, as UTF-8, structure included at a flat rate."""
    total = 16
    for part in message.parts:
        match part:
            case TextPart(text) | ReasoningPart(text):
                total += text_bytes(text)
            case ToolResultPart():
                total += text_bytes(part.text) + 32
            case ToolUsePart():
                total += len(part.name) + _arguments_bytes(part) + 48
            case ImagePart():
                total += IMAGE_BYTES
            case FilePart(_, data):
                total += max(FILE_BYTES, len(data or b""))
    return total


def _arguments_bytes(part: ToolUsePart) -> int:
    try:
        return text_bytes(part.raw_arguments or repr(part.arguments))
    except ValueError:  # an integer of more digits than Python writes in decimal
        return len(encode(part.arguments))
