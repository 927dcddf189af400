"""Answers of an OpenAI-compatible model that reviews, as a script of the model server: by agent and turn."""

from __future__ import annotations

import json
import re
from typing import Any

from deuz_workers.testing.model_server import ReceivedRequest
from deuz_workers.testing.script import ScriptedReply, call, calls, reply


def answer(request: ReceivedRequest) -> ScriptedReply:
    messages: list[dict[str, Any]] = request.body["messages"]
    instructions = str(messages[0]["content"])
    if "list_files" in instructions:
        return calls(call("list_files")) if request.turn == 1 else reply("I will review them all.")
    if "write_report" in instructions:
        return calls(call("write_report", markdown=_report(messages))) if request.turn == 1 else reply("It is written.")
    path = next(found[1] for message in messages if (found := re.search(r"Review the file `(.+?)`", str(message["content"]))))
    if request.turn == 1:
        return calls(call("read_file", path=path), call("measure", path=path))
    numbers = json.loads([message["content"] for message in messages if message["role"] == "tool"][1])
    return reply(json.dumps({"path": path, "numbers": numbers, "remark": "The model says so."}))


def _report(messages: list[dict[str, Any]]) -> str:
    merged = next(
        found[1]
        for message in messages
        if (found := re.search(r'<result task="merge">\n(.*?)\n</result>', str(message["content"]), re.DOTALL))
    )
    result = json.loads(merged)
    return f"# By a model\n\n{result['totals']['lines']} lines\n\n{result['table']}\n"
