"""How far the tasks of a swarm may create further ones."""

from __future__ import annotations

from dataclasses import dataclass

from deuz_workers.errors import SwarmDefinitionError

MOST_TASKS = 10_000
MOST_DEPTH = 64


@dataclass(frozen=True, slots=True)
class DynamicLimits:
    """Stored with the swarm when it starts; a later resume may lower them."""

    max_tasks: int
    """That the swarm may have in all, 1 to 10,000."""
    max_spawn_depth: int
    """Generations under a task of the definition, 1 to 64."""
    max_spawn_per_task: int | None = None
    """That one task may create; None: only the two others bind."""

    def __post_init__(self) -> None:
        """Raises `SwarmDefinitionError`, naming the limit and the value."""
        for name, most in (("max_tasks", MOST_TASKS), ("max_spawn_depth", MOST_DEPTH), ("max_spawn_per_task", MOST_TASKS)):
            value = getattr(self, name)
            if value is None and name == "max_spawn_per_task":
                continue
            if type(value) is not int or not 1 <= value <= most:
                raise SwarmDefinitionError(f"{name} is a whole number from 1 to {most}, not {value!r}")
