"""A model that follows a script, for a demonstration without a key.

What it answers depends on the request alone: it reads which results are there and asks for the next one. So it goes on from
wherever a worker died, in any other process. The numbers it passes on were measured by the tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from deuz_workers import MockModel, Usage
from deuz_workers.examples.code_review.measuring import remarks
from deuz_workers.examples.code_review.report import markdown
from deuz_workers.testing.script import Entry, ModelRequest, ScriptedReply, call, reply

CHARS_PER_TOKEN = 4
Script = Callable[[ModelRequest], ScriptedReply]


def scripted(script: Script, *, pace_ms: int) -> MockModel:
    """A model whose answers take `pace_ms` and are billed by their length."""

    def answer(request: ModelRequest) -> Entry:
        made = script(request)
        sent = sum(len(message.text) + sum(len(result.text) for result in message.tool_results) for message in request.messages)
        written = len(made.text) + sum(len(json.dumps(dict(asked.arguments or {}))) for asked in made.calls)
        usage = Usage(sent // CHARS_PER_TOKEN, written // CHARS_PER_TOKEN, cost_micros=0)
        return replace(made, usage=usage, delay_ms=pace_ms)

    return MockModel.function(answer, model="reviewer")


def plan(request: ModelRequest) -> ScriptedReply:
    """Asks which files there are, then says what will be reviewed."""
    listed = _results(request).get("list_files")
    if listed is None:
        return reply("", call("list_files"))
    files = json.loads(listed)
    size = sum(file["bytes"] for file in files)
    return reply(f"{len(files)} files, {size:,} bytes: one reviewer each, then a merge and a report.")


def review(request: ModelRequest) -> ScriptedReply:
    """Reads, parses and measures its file one after the other, then answers with the numbers and a remark."""
    path = next(found[1] for message in request.messages if (found := re.search(r"Review the file `(.+?)`", message.text)))
    results = _results(request)
    wanted = ("read_file", "parse", "measure") if path.endswith(".py") else ("read_file", "measure")
    for name in wanted:
        if name not in results:
            return reply("", call(name, path=path))
    numbers = _record(results["measure"]) | _record(results.get("parse", ""))
    remark = "; ".join(remarks(numbers))
    return reply(json.dumps({"path": path, "numbers": numbers, "remark": remark}))


def report(request: ModelRequest) -> ScriptedReply:
    """Asks to write what was merged, then says where it is, or that it was not wanted."""
    written = _results(request).get("write_report")
    if written is not None:
        return reply(f"write_report answered: {written}")
    given = "".join(message.text for message in request.messages if message.role == "user")
    found = re.search(r'<result task="merge">\n(.*?)\n</result>', given, re.DOTALL)
    return reply("", call("write_report", markdown=markdown(json.loads(found[1]) if found else {})))


def _results(request: ModelRequest) -> dict[str, str]:
    """Answers of tools so far, by tool."""
    return {result.name: result.text for message in request.messages for result in message.tool_results}


def _record(text: str) -> dict[str, Any]:
    """What a tool answered; nothing where it answered with an error, such as a file that does not parse."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
