"""Fail-over: which model a call goes to, and what a run remembers of those that it gave up.

A call has candidates: the model it is meant for, then the agent's fallbacks in their order. A model that failed over is skipped
for the rest of the run (FOV-006). A call fails over only to a candidate that did not fail, so one is always left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from deuz_workers.core.change import Phase
from deuz_workers.core.transient import TransientKind
from deuz_workers.errors import ConfigurationError

RULES = 1
"""Of the record; a build refuses others, since it would call what they skip."""
LONGEST_WAIT_MS = 30_000
"""A provider that asks for more is not waited for where another candidate is left."""
MAX_ERROR_CHARS = 500
"""Of an error's text in the record, which is written again with every commit of the run."""


@dataclass(frozen=True, slots=True)
class ModelId:
    """A model as the record names it. Told apart by `provider` and `model`; `protocol` is there where the model says it."""

    provider: str
    model: str
    protocol: str | None = None

    @staticmethod
    def of(name: str, protocol: object = None) -> ModelId:
        """`name`: `provider:model`; without a colon the provider is empty."""
        provider, colon, model = name.partition(":")
        known = protocol if isinstance(protocol, str) else None
        return ModelId(provider, model, known) if colon else ModelId("", name, known)

    @property
    def name(self) -> str:
        return f"{self.provider}:{self.model}" if self.provider else self.model

    def to_record(self) -> dict[str, object]:
        record: dict[str, object] = {"provider": self.provider, "model": self.model}
        return record if self.protocol is None else record | {"protocol": self.protocol}

    @staticmethod
    def from_record(record: Mapping[str, object]) -> ModelId:
        protocol = record.get("protocol")
        return ModelId(str(record["provider"]), str(record["model"]), None if protocol is None else str(protocol))


@dataclass(frozen=True, slots=True)
class FailOver:
    """One call that went on with another model."""

    step: int
    attempt: int
    """Of its turn, from 1. A model whose breaker was open was not called: then it is the attempt that the next one makes."""
    phase: Phase
    failed: ModelId
    next: ModelId
    kind: TransientKind
    error: Mapping[str, object]

    def to_record(self) -> dict[str, object]:
        return {
            "step": self.step,
            "attempt": self.attempt,
            "phase": self.phase,
            "failed": self.failed.to_record(),
            "next": self.next.to_record(),
            "kind": self.kind,
            "error": dict(self.error),
        }

    @staticmethod
    def from_record(record: Mapping[str, object]) -> FailOver:
        step, attempt = record["step"], record["attempt"]
        assert isinstance(step, int)
        assert isinstance(attempt, int)
        return FailOver(
            step,
            attempt,
            cast(Phase, record["phase"]),
            ModelId.from_record(cast(Mapping[str, object], record["failed"])),
            ModelId.from_record(cast(Mapping[str, object], record["next"])),
            cast(TransientKind, record["kind"]),
            cast(Mapping[str, object], record["error"]),
        )


@dataclass(frozen=True, slots=True)
class Models:
    """What a run knows of its models once a call has failed over."""

    failovers: tuple[FailOver, ...]
    """In order, one at least."""

    @property
    def selected(self) -> ModelId:
        """Which the newest fail-over went to."""
        return self.failovers[-1].next

    @property
    def failed(self) -> frozenset[str]:
        """Names of models that this run calls no more."""
        return frozenset(each.failed.name for each in self.failovers)

    def to_record(self) -> dict[str, object]:
        failovers = [each.to_record() for each in self.failovers]
        return {"policy": RULES, "selected": self.selected.to_record(), "failovers": failovers}

    @staticmethod
    def from_record(record: Mapping[str, object]) -> Models:
        """Raises `ConfigurationError` for a record of other rules."""
        if record["policy"] != RULES:
            raise ConfigurationError(f"models are recorded by rules {record['policy']!r}; this build reads {RULES}")
        failovers = cast("list[Mapping[str, object]]", record["failovers"])
        return Models(tuple(map(FailOver.from_record, failovers)))


def failed_names(models: Models | None) -> frozenset[str]:
    return frozenset() if models is None else models.failed


def chosen(names: Sequence[str], failed: Collection[str]) -> int:
    """Place of the candidate that a call goes to: the first that has not failed, and the last where all have."""
    return next((place for place, name in enumerate(names) if name not in failed), len(names) - 1)


def next_chosen(names: Sequence[str], failed: Collection[str], failing: str) -> int | None:
    """Place of the candidate that is called after `failing`; None: nobody is left, and `failing` stays."""
    return next((place for place, name in enumerate(names) if name != failing and name not in failed), None)


def moves_on(kind: TransientKind | None, *, after_content: bool) -> bool:
    """A failure of this kind is one for another model (FOV-002, FOV-003). `after_content`: some of the reply had arrived."""
    return kind is not None and not after_content


def repeats_first(kind: TransientKind | None, asked_wait_ms: int) -> bool:
    """The model that failed is called again before another is, as long as the call has repeats left."""
    return kind != "breaker-open" and asked_wait_ms <= LONGEST_WAIT_MS


def short(error: Mapping[str, object]) -> Mapping[str, object]:
    """The error as the record keeps it."""
    message = error.get("message")
    if not isinstance(message, str) or len(message) <= MAX_ERROR_CHARS:
        return error
    return {**error, "message": f"{message[:MAX_ERROR_CHARS]} [cut]"}
