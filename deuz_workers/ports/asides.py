"""What a model writes beside its text: thoughts, and the arguments of calls that it is about to ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Aside:
    """A fragment. `place`: of the call among those of the reply, from 0; fragments of one call go on from each other."""

    kind: Literal["reasoning", "arguments"]
    text: str
    place: int = 0
    tool: str = ""
    """Name of the tool, as far as it is known by then."""


@runtime_checkable
class TellsAsides(Protocol):
    """What the `on_text` of a call may be, beside a function of text. Called like it: from any thread, and it never raises."""

    def aside(self, aside: Aside) -> None: ...


def tell_asides(listener: object, asides: list[Aside]) -> None:
    """Hand them to an `on_text` that wants them."""
    if asides and isinstance(listener, TellsAsides):
        for aside in asides:
            listener.aside(aside)
