"""Brakes: while one is set, no new effect begins of what it names, in any process."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

BrakeKind = Literal["scope", "agent", "tool", "model", "queue"]
BRAKE_KINDS: tuple[BrakeKind, ...] = get_args(BrakeKind)


@dataclass(frozen=True, slots=True)
class Brake:
    """A model call or a tool that would begin under it waits; what is under way ends as it would."""

    kind: BrakeKind
    name: str
    """Of a tenant, an agent, a tool, a model as its runs name it (`provider:model`), or a queue."""
    reason: str | None = None
    actor: str | None = None
    """Who set it."""
    at_ms: int = 0
    """When, Unix time in milliseconds by the store's clock."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class BrakeAct:
    """What somebody did to a brake; kept for good."""

    act: Literal["set", "lifted"]
    kind: BrakeKind
    name: str
    reason: str | None
    actor: str | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class Begins:
    """What is about to begin."""

    scope: str
    agent: str
    queue: str
    model: str | None = None
    tools: Collection[str] = ()
    driver: str | None = None
    """The agent that a run of `agent` was handed over to, which begins it."""

    def held_by(self, brakes: Iterable[Brake]) -> Brake | None:
        """The first brake that it is under."""
        names: dict[BrakeKind, Collection[str]] = {
            "scope": (self.scope,),
            "agent": (self.agent,) if self.driver is None else (self.agent, self.driver),
            "queue": (self.queue,),
            "tool": self.tools,
            "model": () if self.model is None else (self.model,),
        }
        return next((brake for brake in brakes if brake.name in names[brake.kind]), None)
