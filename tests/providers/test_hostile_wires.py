"""Replies of the two wires that are JSON and no good: read, stored, and sent back in the next turn."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deuz_workers.core.codec import decode, encode
from deuz_workers.core.evolve import identify_calls
from deuz_workers.core.messages import Message, ToolResultPart, message_from_record, message_to_record, user
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.anthropic import reply as anthropic_reply
from deuz_workers.providers.anthropic import request as anthropic_request
from deuz_workers.providers.gemini import reply as gemini_reply
from deuz_workers.providers.gemini import request as gemini_request
from deuz_workers.providers.json_body import encode_body

AUTHOR = "p:m"


def nested(levels: int) -> Any:
    return json.loads("[" * levels + "]" * levels)


STRANGE: dict[str, dict[str, Any]] = {
    "nul": {"id": "a\0b"},
    "surrogate": {"id": "a\ud800"},
    "long": {"id": "x" * 12_000},
    "no id": {"id": None},
    "id of a number": {"id": 7},
    "name": {"name": "l\ud800k\0"},
    "deep list": {"input": nested(300)},
    "deep object": {"input": {"a": nested(300)}},
    "text": {"input": '{"n": ' + "9" * 5_000 + "}"},
    "nan": {"input": {"a": float("nan")}},
}


def stored(turn: Message) -> Message:
    """As it comes back from the store."""
    return message_from_record(decode(encode(message_to_record(turn))))


def next_turn(turn: Message) -> ModelRequest:
    results = tuple(ToolResultPart(use.call_id, use.name, "x") for use in turn.tool_uses)
    return ModelRequest("r", (user("go"), turn, Message("tool", results)))


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
def test_a_strange_call_of_the_messages_api(strange: dict[str, Any]) -> None:
    """Call and result go back under one id of the letters that the API takes, with the thought before them."""
    thought = {"type": "thinking", "thinking": "h\0m\ud800", "signature": "s\0\ud800"}
    made = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}, **strange}
    reply = anthropic_reply.read_reply({"content": [thought, made]}, author=AUTHOR, provider="p", model="m")
    turn = stored(identify_calls(reply.message, 1))
    body = anthropic_request.build_body(next_turn(turn), anthropic_request.Dialect(AUTHOR, "m"))
    _, asked, answered = (json.loads(encode_body(body)))["messages"]
    assert asked["content"][0]["type"] == "thinking"
    assert asked["content"][1]["id"] == answered["content"][0]["tool_use_id"]
    assert asked["content"][1]["id"].replace("_", "").isalnum()
    assert isinstance(asked["content"][1]["input"], dict)


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
def test_a_strange_call_of_gemini(strange: dict[str, Any]) -> None:
    """Call and result go back under one name, with the id that the model gave or none."""
    made = {"name": "look", "id": "c", "args": {}, **strange}
    made["args"] = made.pop("input", {})
    part = {"functionCall": made, "thoughtSignature": "s\0\ud800"}
    response = {"candidates": [{"content": {"parts": [part]}}]}
    turn = stored(identify_calls(gemini_reply.read_reply(response, author=AUTHOR, provider="p", model="m").message, 1))
    body = gemini_request.build_body(next_turn(turn), gemini_request.Dialect(AUTHOR, "m"))
    _, asked, answered = (json.loads(encode_body(body)))["contents"]
    called, response = asked["parts"][0]["functionCall"], answered["parts"][0]["functionResponse"]
    assert (called["name"], called.get("id")) == (response["name"], response.get("id"))
    assert isinstance(called["args"], dict)
    assert "thoughtSignature" in asked["parts"][0]


@pytest.mark.parametrize("deep", [nested(300), float("nan")], ids=["deep", "nan"])
def test_what_cannot_be_stored_of_a_block_nobody_knows_is_left_out(deep: object) -> None:
    """The rest of the reply is of use without it."""
    strange = {"type": "new", "x": deep}
    turn = anthropic_reply.read_reply(
        {"content": [strange, {"type": "text", "text": "Hi"}]}, author=AUTHOR, provider="p", model="m"
    )
    assert (turn.message.text, len(turn.message.parts)) == ("Hi", 1)
    response = {"candidates": [{"content": {"parts": [{"new": deep}, {"text": "Hi"}]}}]}
    turn = gemini_reply.read_reply(response, author=AUTHOR, provider="p", model="m")
    assert (turn.message.text, len(turn.message.parts)) == ("Hi", 1)
