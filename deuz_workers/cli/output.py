"""Where a command writes: tables and lines for people, or JSON for programs, and never both."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any
from uuid import UUID

from rich.console import Console, RenderableType
from rich.markup import escape

from deuz_workers.errors import DeuzError, as_record

PIPE_COLUMNS = 10_000
"""No line of a table is folded in a pipe or a file, where it is searched and not looked at."""


class Output:
    """`json` True: stdout gets JSON alone, one document a line; everything for people is left out."""

    def __init__(self, json: bool = False) -> None:
        self.json = json
        width = None if sys.stdout.isatty() else PIPE_COLUMNS
        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True, width=width)

    def show(self, *shown: RenderableType) -> None:
        """For people; nothing happens in JSON mode. Text may hold rich's markup."""
        if not self.json:
            self.console.print(*shown)

    def document(self, record: object) -> None:
        """For programs; nothing happens in the other mode."""
        if self.json:
            sys.stdout.write(json.dumps(record, default=_plain) + "\n")
            sys.stdout.flush()


def report_error(error: DeuzError, *, as_json: bool) -> None:
    """One line on stderr with code, message and way out; in JSON mode the record of the error on stdout instead."""
    if as_json:
        Output(json=True).document({"error": as_record(error)})
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[red]error[/] [bold]{escape(error.code)}[/]: {escape(_one_line(error.message))}")


def report_warning(code: str, message: str) -> None:
    """One line on stderr, in either mode."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[yellow]warning[/] [bold]{escape(code)}[/]: {escape(_one_line(message))}")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _plain(value: Any) -> object:
    """What JSON does not know itself, as something it knows."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return repr(value)
