"""What the readers of a run have been shown, folded from the recorded parts, and the parts that show them more. Pure.

Parts are made from the difference between this record and what is to be shown, never from events alone. So a recorder that
begins late, that takes over from a dead one, or that works beside another one repeats nothing and leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from deuz_workers.app.ui_parts import DONE, Part, agent_part, numbered

Attempt = tuple[int, int]
"""Turn, and which model call of that turn."""


@dataclass(slots=True)
class UiRecord:
    """`run_id`: of the run, for the part that begins a leg."""

    run_id: str
    seq: int = 0
    """Number of the newest part, 0 before the first."""
    is_done: bool = True
    """No leg is under way: nothing was shown yet, or the newest part ended one."""
    texts: dict[int, str] = field(default_factory=dict[int, str])
    """By turn, as readers have it before them."""
    blocks: dict[int, int] = field(default_factory=dict[int, int])
    """By turn, how many blocks of text were begun."""
    open_block: tuple[int, str] | None = None
    """Turn and id of the block that is being written."""
    step: int = 0
    """The turn that is open, 0: none."""
    attempt: Attempt = (0, 0)
    """The newest model call that was told of."""
    told: set[tuple[object, ...]] = field(default_factory=set[tuple[object, ...]])
    """What is told once."""
    draft: tuple[int, int, int] = (0, 0, 0)
    """Turn and model call of the newest draft, and how many characters it was made from."""
    state: Mapping[str, object] | None = None
    """The newest end of a leg."""

    def copy(self) -> UiRecord:
        """One that may be folded further on its own."""
        return UiRecord(
            self.run_id,
            self.seq,
            self.is_done,
            dict(self.texts),
            dict(self.blocks),
            self.open_block,
            self.step,
            self.attempt,
            set(self.told),
            self.draft,
            self.state,
        )

    def fold(self, part: Part) -> None:
        """The next part was recorded. One of a kind that this build does not know counts, and changes nothing else."""
        self.seq += 1
        self.is_done = False
        match part:
            case {"type": "finish-step"}:
                self.step = 0
            case {"type": "text-start", "id": str(block)}:
                step = step_of(block)
                self.open_block = (step, block)
                self.blocks[step] = self.blocks.get(step, 0) + 1
            case {"type": "text-delta", "id": str(block), "delta": str(delta)}:
                step = step_of(block)
                self.texts[step] = self.texts.get(step, "") + delta
            case {"type": "text-end"}:
                self.open_block = None
            case {"type": "data-agent", "data": dict(data)}:
                self._fold_agent(cast("dict[str, Any]", data))
            case {"type": "done"}:
                self.is_done = True
            case _:
                pass

    def _fold_agent(self, data: dict[str, Any]) -> None:
        step = int(data.get("step", 0))
        match data.get("kind"):
            case "phase":
                self.step = step
                self.attempt = (step, int(data["callAttempt"]))
            case "discard":
                self.texts[step] = ""
            case "draft":
                self.draft = (step, int(data["callAttempt"]), int(data["chars"]))
            case "state":
                self.state = {name: value for name, value in data.items() if name not in ("runId", "seq")}
            case "tool" | "guardrail" | "handoff" | "warning":
                self.told.add(once(data))
            case _:
                pass


class UiWriter:
    """Shows the readers of a run more: folds parts into `record`, and has them in `parts`, numbered, to be recorded."""

    def __init__(self, record: UiRecord) -> None:
        self.record = record
        self.parts: list[Part] = []

    def show_phase(self, phase: Part, attempt: Attempt) -> None:
        """A model call begins; what an earlier one of its turn wrote is void. Nothing where a newer one was told of."""
        if attempt <= self.record.attempt:
            return
        if attempt[0] == self.record.attempt[0]:
            self.drop_text(attempt[0])
        else:
            self._finish_step()
            self._emit({"type": "start-step"})
        self._emit(phase)

    def show_text(self, step: int, text: str) -> None:
        """Readers have at least `text` of the turn before them, which goes on from what they have."""
        shown = self.record.texts.get(step, "")
        if len(text) <= len(shown):
            return
        block = self.record.open_block
        if block is None or block[0] != step:
            self._close_text()
            block = (step, f"text-{step}-{self.record.blocks.get(step, 0) + 1}")
            self._emit({"type": "text-start", "id": block[1]})
        self._emit({"type": "text-delta", "id": block[1], "delta": text[len(shown) :]})

    def settle_text(self, step: int, text: str) -> None:
        """Readers have exactly `text` of the turn before them: it is saved."""
        if not text.startswith(self.record.texts.get(step, "")):
            self.drop_text(step)
        self.show_text(step, text)

    def drop_text(self, step: int) -> None:
        """What is shown of the turn is void."""
        if not self.record.texts.get(step):
            return
        if self.record.open_block is not None and self.record.open_block[0] == step:
            self._close_text()
        self._emit(agent_part("discard", step=step))

    def show_once(self, part: Part) -> None:
        if once(part["data"]) not in self.record.told:
            self._emit(part)

    def show_draft(self, part: Part, draft: tuple[int, int, int]) -> None:
        """Nothing where readers have that much of this answer, or of a later one."""
        if draft > self.record.draft and draft[:2] >= self.record.attempt:
            self._emit(part)

    def end_leg(self, state: Part, revision: int | None) -> None:
        """Nothing where readers were told that the leg ended just so."""
        if self.record.is_done and self.record.state == state["data"]:
            return
        self._finish_step()
        self._emit(state)
        self._emit({"type": "finish"})
        self._emit({"type": DONE} if revision is None else {"type": DONE, "revision": revision})

    def _finish_step(self) -> None:
        self._close_text()
        if self.record.step:
            self._emit({"type": "finish-step"})

    def _close_text(self) -> None:
        if self.record.open_block is not None:
            self._emit({"type": "text-end", "id": self.record.open_block[1]})

    def _emit(self, part: Part) -> None:
        if self.record.is_done and part["type"] not in ("start", DONE):
            self._emit({"type": "start", "messageId": self.record.run_id})
        made = numbered(part, self.record.run_id, self.record.seq + 1)
        self.record.fold(made)
        self.parts.append(made)


def step_of(block: str) -> int:
    """The turn that a block of text belongs to."""
    return int(block.split("-")[1])


def once(data: Mapping[str, object]) -> tuple[object, ...]:
    """Tells things apart that are told once."""
    names = ("kind", "step", "toolCallId", "hook", "action", "name", "setting", "message")
    return tuple(data.get(name) for name in names)
