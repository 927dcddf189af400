"""What a tool's author asks of the people who approve its calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import cast

from deuz_workers.errors import ConfigurationError

When = bool | Callable[..., object]
LONGEST_MS = 36_525 * 86_400_000
"""A century: what is behind the year 9999 is no moment that a database, or anybody, could be told."""


@dataclass(frozen=True, slots=True)
class Approval:
    """`needs_approval=Approval(...)`: which calls wait, for whom, and how long. Times in milliseconds from the request."""

    when: When = True
    """As `needs_approval`: always, never, or a function of the arguments, and of the call's context if it takes two."""
    people: tuple[str, ...] = ()
    """Who may approve, by the name that is given with the answer; empty: anybody."""
    needed: int = 1
    """How many different people have to approve. One denial denies."""
    assignee: str | None = None
    """Who is asked first; carried, not enforced."""
    expires_in_ms: int | None = None
    """Then the call is answered as denied. None: it waits for ever."""
    remind_in_ms: int | None = None
    escalate_in_ms: int | None = None
    escalate_to: str | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigurationError` for what nobody could fulfil."""
        object.__setattr__(self, "people", tuple(self.people))
        if len(set(self.people)) != len(self.people) or not all(type(name) is str and name for name in self.people):
            raise ConfigurationError(f"people who approve are different names, not {self.people!r}")
        most = len(self.people) or None
        if type(self.needed) is not int or self.needed < 1 or (most is not None and self.needed > most):
            upper = "" if most is None else f" to {most}, the number of people"
            raise ConfigurationError(f"needed is a whole number from 1{upper}, not {self.needed!r}")
        for name in ("expires_in_ms", "remind_in_ms", "escalate_in_ms"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= LONGEST_MS):
                raise ConfigurationError(
                    f"{name} is a whole number of milliseconds from 1 to {LONGEST_MS}, a century, not {value!r}; None: for ever"
                )

    def is_given_by(self, people: Collection[str]) -> bool:
        """Together these people are enough. Where anybody may approve and one is enough, nobody needs to be named."""
        named = set(people) & set(self.people) if self.people else set(people)
        return len(named) >= self.needed or (self.needed == 1 and not self.people)

    def to_record(self) -> dict[str, object]:
        """For the body of an item; its times have columns, and what is not used is absent."""
        record: dict[str, object] = {}
        if self.people:
            record["people"] = list(self.people)
        if self.needed > 1:
            record["needed"] = self.needed
        for name in ("assignee", "escalate_to"):
            if getattr(self, name) is not None:
                record[name] = getattr(self, name)
        return record

    @staticmethod
    def from_record(record: Mapping[str, object]) -> Approval:
        return Approval(
            people=tuple(cast("list[str]", record.get("people", []))),
            needed=cast(int, record.get("needed", 1)),
            assignee=cast("str | None", record.get("assignee")),
            escalate_to=cast("str | None", record.get("escalate_to")),
        )


def people_of(verdict: Mapping[str, object] | None) -> tuple[str, ...]:
    """Who gave it: `by` is a name, or a list of names where several people agreed."""
    by: object = None if verdict is None else verdict.get("by")
    names = cast("list[object]", by) if isinstance(by, list | tuple) else [by]
    return tuple(name for name in names if isinstance(name, str))


ANYBODY = Approval()
