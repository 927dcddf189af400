"""What a mutant is: edits of the package."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """In a file of the package, one text that stands there exactly once becomes another."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """What breaks, and how. `tests`: arguments of pytest for named tests that notice it, where schedules may not."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...] = ()


def mutant(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, (Edit(file, old, new),), tests)
