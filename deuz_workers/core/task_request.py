"""What a task of a swarm asks for when it creates others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

MOST_TIMEOUT_MS = 36_525 * 86_400_000
"""A hundred years: a moment that every store can add to its own time."""


def is_timeout(limit_ms: object) -> bool:
    """It can limit an attempt: a whole number of milliseconds from 1 to `MOST_TIMEOUT_MS`."""
    return type(limit_ms) is int and 1 <= limit_ms <= MOST_TIMEOUT_MS


def are_task_ids(given: object) -> bool:
    """A collection of texts, and not one text."""
    if isinstance(given, str) or not isinstance(given, Collection):
        return False
    return all(isinstance(one, str) for one in cast("Collection[object]", given))


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """A further task, called `<id of the task that asks>/<key>`; exactly one of `agent` and `reducer`.

    What is asked for in one go is checked as a set: either all tasks exist with the end of the one that asked, or none does.
    """

    key: str
    """Letters, digits and `._:-`."""
    agent: str | None = None
    reducer: str | None = None
    prompt: str | None = None
    """Of an agent; one that waits for results needs none."""
    depends_on: tuple[str, ...] = ()
    """Full ids of tasks that have to complete before: of this swarm, or asked for in the same go."""
    after: tuple[str, ...] = ()
    """Full ids of tasks that have to end before, in whatever way."""
    timeout_ms: int | None = None
    """Of one attempt, at most a hundred years."""
