"""Where the demo is shown: a picture that is drawn over and over on a terminal, lines elsewhere, nothing beside JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from rich.live import Live
from rich.markup import escape

from deuz_workers.cli.demo.picture import budget, counts, picture
from deuz_workers.cli.demo.watch import View
from deuz_workers.cli.output import Output

REFRESHES_PER_S = 12


class Screen:
    """A context manager. `names` and `dead` are filled in by the story as it learns them."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._live: Live | None = None
        self._said_last = ""
        self._began = time.monotonic()
        self.names: Mapping[int, str] = {}
        self.dead: int | None = None

    @property
    def can_ask(self) -> bool:
        """Somebody sits at it."""
        return self._is_drawn and sys.stdin.isatty()

    @property
    def _is_drawn(self) -> bool:
        return self._output.console.is_terminal and not self._output.json

    @property
    def seconds(self) -> float:
        """Since it was opened."""
        return time.monotonic() - self._began

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._draw()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._rest()

    def show(self, view: View) -> None:
        """The picture is of this view. Without a terminal, a line where the counts have changed."""
        if self._live is not None:
            self._live.update(picture(view, self.names, self.dead, self.seconds))
        elif (line := f"{counts(view)}; {budget(view.balance)}") and counts(view) != self._said_last:
            self._said_last = counts(view)
            self._output.show(f"[dim]{self.seconds:5.1f} s[/]  {escape(line)}")

    def say(self, text: str) -> None:
        """A line that stays, above the picture. Rich's markup."""
        self._output.show(text)

    def ask(self, question: Callable[[], str]) -> str:
        """What `question` returns, asked while the picture stands still."""
        self._rest()
        answer = question()
        self._draw()
        return answer

    def _draw(self) -> None:
        if self._is_drawn:
            console = self._output.console
            console.soft_wrap = False  # a line of the picture that is wrapped would be drawn over at the wrong place
            self._live = Live(console=console, refresh_per_second=REFRESHES_PER_S, redirect_stderr=False)
            self._live.start()

    def _rest(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
            self._output.console.soft_wrap = True
