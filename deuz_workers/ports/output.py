"""What a run's answer has to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

OutputMode = Literal["json", "tool"]
"""`json`: the request carries the format. `tool`: the model is made to call one tool whose parameters are the format."""

MAX_OUTPUT_BYTES = 5_000_000
"""Of an accepted output as it is stored."""


class OutputType(Protocol):
    @property
    def name(self) -> str:
        """Of the format, and of the tool where it is asked for with one."""
        ...

    @property
    def mode(self) -> OutputMode | None:
        """None: the model's `output_mode` decides, `json` where it has none."""
        ...

    @property
    def schema(self) -> Mapping[str, Any]:
        """JSON Schema of type object."""
        ...

    @property
    def record(self) -> Mapping[str, object]:
        """What a resume must match."""
        ...

    @property
    def wrapper(self) -> str | None:
        """The only property of `schema`, where the output is no object and stands in one; else None."""
        ...

    def element(self, value: object) -> object:
        """An element of an output that is a list, as readers are shown it while the rest is being written.

        Raises whatever says that it does not fit. That one passes says nothing about the whole.
        """
        ...

    def accept(self, text: str) -> object:
        """The output that the text stands for.

        Raises `OutputError`, whose message tells the model what to change.
        """
        ...

    def restore(self, stored: object) -> object:
        """The output as `accept` returned it, from its stored form. Never raises: what does not fit comes back as stored."""
        ...
