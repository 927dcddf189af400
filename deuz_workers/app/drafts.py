"""Drafts of a typed answer while it is being written. Pure: fragments in, values out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from pydantic_core import from_json

from deuz_workers.ports.output import OutputType

_FENCE = re.compile(r"\A\s*```(?:json)?[ \t]*\r?\n")
_HALF_A_FENCE = re.compile(r"\A\s*`{1,3}[a-z]{0,4}[ \t]*\r?\Z")
_END = re.compile(r"\r?\n?\s*`{1,3}\s*\Z")

NOTHING_YET = object()


class Drafts:
    """One attempt at the final answer. `output` None: its type is not known here, so nothing is checked."""

    def __init__(self, output: OutputType | None) -> None:
        self._output = output
        self._text = ""
        self._shown: object = NOTHING_YET
        self._elements = 0

    def add(self, text: str) -> tuple[object, list[tuple[int, Any]]]:
        """The draft, `NOTHING_YET` where it is the same as before; and elements that are whole now, with their places."""
        self._text += text
        written = _unfenced(self._text)
        try:
            value = _unwrapped(from_json(written, allow_partial="trailing-strings"), self._output)
        except ValueError:  # nothing yet, or no JSON at all, as the check of the answer will say
            return NOTHING_YET, []
        if value is NOTHING_YET or value == self._shown:
            draft = NOTHING_YET
        else:
            draft = self._shown = value
        return draft, list(self._new_elements(value, written))

    def _new_elements(self, value: object, written: str) -> Iterator[tuple[int, Any]]:
        if not isinstance(value, list):
            return
        found = cast("list[object]", value)
        # the last one may go on: 1 may become 12, and an object may get another field
        whole = len(found) if _is_whole(written) else len(found) - 1
        while self._elements < whole:
            place, self._elements = self._elements, self._elements + 1
            yield from self._accepted(place, found[place])

    def _accepted(self, place: int, element: object) -> Iterator[tuple[int, Any]]:
        if self._output is not None:
            try:
                element = self._output.element(element)
            except Exception:  # noqa: BLE001 - it does not fit, or a validator of the user's says so
                return
        yield place, element


def _unfenced(text: str) -> str:
    """The JSON in a text that may begin and end with a fence, as much of it as is there."""
    opened = _FENCE.match(text)
    if opened is None:
        return "" if _HALF_A_FENCE.match(text) else text
    return _END.sub("", text[opened.end() :])


def _unwrapped(value: object, output: OutputType | None) -> object:
    """The answer itself: one that is no object is asked for as the only property of an object."""
    wrapper = None if output is None else output.wrapper
    if wrapper is None:
        return value
    return cast("dict[str, object]", value).get(wrapper, NOTHING_YET) if isinstance(value, dict) else NOTHING_YET


def _is_whole(text: str) -> bool:
    try:
        from_json(text)
    except ValueError:
        return False
    return True
