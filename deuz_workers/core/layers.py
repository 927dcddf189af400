"""Which parts of a history make room, layer by layer: results of tools, reasoning, then whole messages behind a summary.

Never touched are system turns, the opening user turn, the newest turns of the model with what followed them, and the last
message. A call and its result stay or go together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

from deuz_workers.core.compaction import Compaction, is_summary, reshaped, summary_of
from deuz_workers.core.estimate import BYTES_PER_TOKEN, calibrated_tokens
from deuz_workers.core.history import History, message_bytes
from deuz_workers.core.messages import Message
from deuz_workers.core.run import Run

Layer = Literal["tool-results", "reasoning", "summary"]
LEAST_SHARE = 0.05
"""Of the window: fewer messages than that are not worth a summary, which is paid for every time."""


@dataclass(frozen=True, slots=True)
class Measure:
    """How much room there is, and how full a request of this run is. Sizes in tokens unless they say bytes."""

    window: int
    threshold: int
    """From here on history is compacted."""
    target: int
    """Below this nothing more is left out."""
    keep_turns: int
    fixed_bytes: int
    """Of what every request repeats: instructions and tools."""
    calibration: int
    """Thousandths: tokens that the provider counted for what was estimated as a thousand."""

    def tokens(self, size_bytes: int) -> int:
        """Of a request whose history has `size_bytes`."""
        return calibrated_tokens(size_bytes + self.fixed_bytes, self.calibration)

    def bytes_of(self, tokens: int) -> int:
        return tokens * 1_000 * BYTES_PER_TOKEN // self.calibration

    def is_full(self, history: History) -> bool:
        return self.tokens(history.size_bytes) >= self.threshold

    def is_enough(self, history: History) -> bool:
        return self.tokens(history.size_bytes) < self.target

    def forced(self, history: History) -> Measure:
        """The provider refused this history as too long, whatever was known of its window."""
        window = min(self.window, max(1, self.tokens(history.size_bytes)))
        share = window / self.window
        return replace(self, window=window, threshold=round(self.threshold * share), target=round(self.target * share))


@dataclass(frozen=True, slots=True)
class Pruned:
    """One layer was applied; the tokens are those of the whole request before and after."""

    layer: Layer
    compaction: Compaction
    before_tokens: int
    after_tokens: int


@dataclass(frozen=True, slots=True)
class Fold:
    """Messages of the history that a summary can stand for."""

    start: int
    end: int
    messages: tuple[Message, ...]
    """An earlier summary is among them, system turns are not."""
    systems: tuple[Message, ...]


def opening_length(history: Sequence[Message]) -> int:
    """Messages from the first to the opening user turn; the system turns in front, where there is none."""
    first = next((index for index, message in enumerate(history) if message.role == "user"), None)
    if first is not None:
        return first + 1
    return sum(1 for _ in takewhile(lambda message: message.role == "system", history))


def protected_from(history: Sequence[Message], keep_turns: int) -> int:
    """Index of the first message of the newest turns; all that follow it are protected."""
    turns = [index for index, message in enumerate(history) if message.role == "assistant"]
    start = min([len(history) - 1, *turns[-keep_turns:]]) if keep_turns else len(history) - 1
    while start > 0 and history[start].role == "tool":
        start -= 1  # the turn whose calls these results answer
    return max(start, 0)


def pruned(run: Run, measure: Measure) -> tuple[Pruned, ...]:
    """The layers that need no model, one after the other, until there is enough room."""
    history, compaction = run.history, run.compaction
    place = compaction.place(protected_from(history, measure.keep_turns))
    found: list[Pruned] = []
    for layer in ("tool-results", "reasoning"):
        if measure.is_enough(history):
            break
        moved = {"results_to": place} if layer == "tool-results" else {"reasoning_to": place}
        after = replace(compaction, number=compaction.number + 1, **moved)
        shorter = History(reshaped(history, compaction, after))
        before_tokens, after_tokens = measure.tokens(history.size_bytes), measure.tokens(shorter.size_bytes)
        if shorter.size_bytes >= history.size_bytes:
            continue
        after = replace(after, folded_step=first_step(shorter, run.step))
        found.append(Pruned(layer, after, before_tokens, after_tokens))
        history, compaction = shorter, after
    return tuple(found)


def foldable(run: Run, measure: Measure, *, forced: bool = False) -> Fold | None:
    """What a summary would stand for; None where that is nothing, or not worth it."""
    history, compaction = run.history, run.compaction
    start = compaction.folded_from if compaction.summary else opening_length(history)
    end = protected_from(history, measure.keep_turns)
    among = history[start:end]
    messages = tuple(message for message in among if message.role != "system")
    size_bytes = sum(message_bytes(message) for message in messages if not is_summary(message))
    least = 1 if forced else measure.bytes_of(round(measure.window * LEAST_SHARE))
    if size_bytes < least:
        return None
    return Fold(start, end, messages, tuple(message for message in among if message.role == "system"))


def folded(run: Run, fold: Fold, text: str) -> Compaction:
    """The compaction with `text` in place of the messages of `fold`."""
    compaction = run.compaction
    first = compaction.folded_from if compaction.summary else compaction.place(fold.start)
    after = replace(
        compaction,
        number=compaction.number + 1,
        folded_from=first,
        folded_to=compaction.place(fold.end),
        summary=(*fold.systems, summary_of(text)),
    )
    return replace(after, folded_step=first_step(reshaped(run.history, compaction, after), run.step))


def first_step(history: Sequence[Message], step: int) -> int:
    """The earliest turn whose receipts hold texts of this history; `step`, which is at work, where there is none before."""
    steps = (part.receipt_step for message in history for part in message.tool_results if part.receipt_step is not None)
    return min((*steps, step))
