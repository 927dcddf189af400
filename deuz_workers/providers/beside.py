"""Thoughts and arguments of one stream on their way, as far as they have come since somebody asked."""

from __future__ import annotations

from deuz_workers.ports.asides import Aside
from deuz_workers.providers.json_body import WholePairs


class Beside:
    """Fragments hold no half of a surrogate pair."""

    def __init__(self) -> None:
        self._waiting: list[Aside] = []
        self._thoughts = WholePairs()
        self._calls: dict[object, tuple[int, WholePairs]] = {}

    def think(self, text: str) -> None:
        if whole := self._thoughts.take(text):
            self._waiting.append(Aside("reasoning", whole))

    def ask(self, call: object, tool: str, text: str) -> None:
        """`call`: whatever tells the calls of this stream apart; places are given in the order in which they come."""
        place, pairs = self._calls.setdefault(call, (len(self._calls), WholePairs()))
        if whole := pairs.take(text):
            self._waiting.append(Aside("arguments", whole, place, tool))

    def taken(self) -> list[Aside]:
        """What has come since the last time."""
        waiting, self._waiting = self._waiting, []
        return waiting
