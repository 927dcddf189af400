"""What a task of a swarm asks for when it creates others."""

from __future__ import annotations

from dataclasses import dataclass


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
    """Of one attempt."""
