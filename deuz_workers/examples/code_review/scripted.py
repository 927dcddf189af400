"""A model without a key: it answers by rule from the request alone, so every worker gives the same answer.

What it says about a file is computed from what the tools returned; nothing is made up beforehand.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from deuz_workers import Message, MockModel, Usage
from deuz_workers.testing import call, calls, reply

_FILE = re.compile(r"Review the file `([^`]+)`")
_MERGED = re.compile(r'<result task="merge">\n(.*)\n</result>', re.DOTALL)
CHARS_PER_TOKEN = 4


class Request(Protocol):
    """The part of a request that the script reads."""

    @property
    def messages(self) -> Sequence[Message]: ...


def scripted_model(pace_ms: int) -> MockModel:
    """`pace_ms`: how long an answer takes, about."""

    async def answer(request: Request) -> Any:
        turn = 1 + sum(message.role == "assistant" for message in request.messages)
        asked = "\n".join(message.text for message in request.messages if message.role == "user")
        if file := _FILE.search(asked):
            said, made = review(file[1], turn, request.messages)
        elif merged := _MERGED.search(asked):
            said, made = report(merged[1], turn, request.messages)
        else:
            said, made = plan(turn, request.messages)
        written = said + "".join(json.dumps(dict(one.arguments or {})) for one in made)
        usage = Usage(
            input_tokens=sum(map(weight, request.messages)) // CHARS_PER_TOKEN,
            output_tokens=max(1, len(written) // CHARS_PER_TOKEN),
            cost_micros=None,
        )
        return reply(said, *made, usage=usage, delay_ms=_delay_ms(pace_ms, asked, turn), fragments=(said,))

    return MockModel.function(answer, model="scripted-reviewer")


def plan(turn: int, messages: Sequence[Message]) -> tuple[str, Sequence[Any]]:
    """Lists the files, then says what will be done with them."""
    if turn == 1:
        return "", calls(call("list_files")).calls
    files = cast(list[Mapping[str, Any]], json.loads(results(messages)["list_files"]))
    total = sum(int(file["bytes"]) for file in files)
    return f"{len(files)} files, {total:,} bytes in all. One reviewer per file; the numbers are measured, not guessed.", ()


def review(path: str, turn: int, messages: Sequence[Message]) -> tuple[str, Sequence[Any]]:
    """Reads, then parses and measures side by side, then judges by rule."""
    if turn == 1:
        return "", calls(call("read_file", path=path)).calls
    if turn == 2:
        return "", calls(call("parse_file", path=path), call("measure_file", path=path)).calls
    answers = results(messages)
    try:
        measured = cast(dict[str, Any], json.loads(answers["measure_file"]))
        outlined = cast(dict[str, Any], json.loads(answers["parse_file"]))
    except ValueError:  # the tool's error, in words
        return json.dumps({"path": path, "finding": answers["measure_file"]}), ()
    return json.dumps({"path": path, **measured, "finding": remark(measured, outlined)}), ()


def remark(measured: Mapping[str, Any], outlined: Mapping[str, Any]) -> str:
    """The most useful sentence about a file."""
    if measured["complexity"] > 12:
        return (
            f"{measured['most_complex_function']} takes {measured['complexity']} decisions; a table or smaller functions help."
        )
    if measured["longest_function_lines"] > 60:
        return f"{measured['longest_function']} is {measured['longest_function_lines']} lines long; it could be told in parts."
    if measured["lines"] > 350:
        return f"{measured['lines']} lines in one file; look for a second noun in it."
    if len(outlined["imports"]) > 20:
        return f"It imports {len(outlined['imports'])} modules; perhaps it does the work of two."
    if measured["without_docstring"] > 5:
        return f"{measured['without_docstring']} public functions say nothing about themselves."
    return "Nothing stands out."


def report(merged: str, turn: int, messages: Sequence[Message]) -> tuple[str, Sequence[Any]]:
    """Asks to write what the reducer merged, under a heading."""
    if turn == 1:
        return "", calls(call("write_report", markdown=f"# Code review\n\n{merged}")).calls
    part = next(part for message in reversed(messages) for part in message.tool_results)
    if part.is_error:
        return f"The report was not written: {part.text}", ()
    written = cast(Mapping[str, Any], json.loads(part.text))
    return f"The report is in {written['path']}: {written['lines']} lines, {written['bytes']:,} bytes.", ()


def results(messages: Sequence[Message]) -> dict[str, str]:
    """The newest answer of every tool, by its name."""
    return {part.name: part.text for message in messages for part in message.tool_results}


def weight(message: Message) -> int:
    """Characters that a model would have to read."""
    asked = sum(len(json.dumps(dict(use.arguments or {}))) for use in message.tool_uses)
    return len(message.text) + asked + sum(len(part.text) for part in message.tool_results)


def _delay_ms(pace_ms: int, asked: str, turn: int) -> int:
    """Between half and one and a half of the pace, the same for the same question."""
    chance = hashlib.sha256(f"{asked}{turn}".encode()).digest()[0] / 255
    return round(pace_ms * (0.5 + chance))
