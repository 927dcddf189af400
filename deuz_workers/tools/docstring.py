"""What a docstring tells the model: a description of the tool and of each parameter.

Read are Google sections (`Args:`), numpy sections (`Parameters` underlined), Sphinx fields (`:param name: text`) and plain
lines `name: text` that start with the name of a parameter.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Collection
from dataclasses import dataclass, field

_PARAMETERS = frozenset({"args", "arguments", "params", "parameters", "keyword args", "keyword arguments", "other parameters"})
_LEFT_OUT = frozenset({"raises", "attributes"})
"""Sections that tell a model nothing it can use."""

_GOOGLE_HEADING = re.compile(r"([A-Z][A-Za-z ]*):\s*$")
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)(?:\s*\(.*?\))?\s*:(?:\s+(.*))?$")
_NUMPY_ENTRY = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\w+)*)(?:\s*:.*)?$")
_UNDERLINE = re.compile(r"-{3,}\s*$")
_SPHINX_FIELD = re.compile(r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$")
_SPHINX_OTHER = re.compile(r":(?:type|rtype|raises?|except|exception)\b[^:]*:.*$")
_PLAIN_ENTRY = re.compile(r"(?:[-*]\s+)?`{0,2}(\w+)`{0,2}\s*:\s+(.*)$")


@dataclass(slots=True)
class Docstring:
    description: str = ""
    parameters: dict[str, str] = field(default_factory=lambda: dict[str, str]())


def read_docstring(text: str | None, names: Collection[str]) -> Docstring:
    """The description without what describes parameters or errors, and one line of text per documented parameter.

    Entries for anything but `names` are dropped, so that an injected parameter stays unseen.
    """
    lines = inspect.cleandoc(text or "").splitlines()
    kept: list[str] = []
    found: dict[str, str] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        if at + 1 < len(lines) and _UNDERLINE.match(lines[at + 1]) and line.strip().lower() in _PARAMETERS | _LEFT_OUT:
            end = _end_of_numpy_section(lines, at + 2)
            if line.strip().lower() in _PARAMETERS:
                found |= _entries(lines[at + 2 : end], _NUMPY_ENTRY)
        elif (heading := _GOOGLE_HEADING.match(line)) and heading[1].lower() in _PARAMETERS | _LEFT_OUT:
            end = _end_of_indented(lines, at + 1)
            if heading[1].lower() in _PARAMETERS:
                found |= _entries(textwrap.dedent("\n".join(lines[at + 1 : end])).splitlines(), _GOOGLE_ENTRY)
        elif entry := _SPHINX_FIELD.match(line):
            end = _end_of_indented(lines, at + 1)
            found |= {entry[1]: _joined([entry[2], *lines[at + 1 : end]])}
        elif _SPHINX_OTHER.match(line):
            end = _end_of_indented(lines, at + 1)
        elif (entry := _PLAIN_ENTRY.match(line)) and entry[1] in names:
            end = _end_of_indented(lines, at + 1)
            found |= {entry[1]: _joined([entry[2], *lines[at + 1 : end]])}
        else:
            kept.append(line)
            end = at + 1
        at = end
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return Docstring(description, {name: text for name, text in found.items() if name in names and text})


def _end_of_indented(lines: list[str], at: int) -> int:
    while at < len(lines) and (not lines[at] or lines[at][0].isspace()):
        at += 1
    return at


def _end_of_numpy_section(lines: list[str], at: int) -> int:
    while at < len(lines) and not (at + 1 < len(lines) and _UNDERLINE.match(lines[at + 1])):
        at += 1
    return at


def _entries(lines: list[str], header: re.Pattern[str]) -> dict[str, str]:
    """An entry starts at a line without indentation and takes in the indented lines below it."""
    found: dict[str, str] = {}
    at = 0
    while at < len(lines):
        entry = header.match(lines[at])
        end = _end_of_indented(lines, at + 1)
        if entry:
            first = entry[2] or "" if header.groups > 1 else ""
            text = _joined([first, *lines[at + 1 : end]])
            found |= {name.strip(): text for name in entry[1].split(",")}
        at = end
    return found


def _joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())
