"""What a request says, read alike from every wire: for tests that compare what is sent and not how it is spelled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from deuz_workers.testing.anthropic_answers import AnthropicAnswers
from deuz_workers.testing.chat_answers import ChatAnswers
from deuz_workers.testing.gemini_answers import GeminiAnswers
from deuz_workers.testing.model_server import ReceivedRequest
from deuz_workers.testing.responses_answers import ResponsesAnswers


@dataclass(frozen=True, slots=True)
class Sent:
    history: list[Any]
    """As it stands in the body; instructions may stand elsewhere."""
    tools: list[str]
    choice: str | None
    """`none` or `required`; None: the model's."""
    schema: dict[str, Any] | None
    """Of the format, where one is asked for."""
    pairs: list[tuple[str, str]] = field(default_factory=lambda: list[tuple[str, str]]())
    """Ids of calls with the results that stand under them; without ids, places tell them apart."""
    thoughts: list[Any] = field(default_factory=lambda: list[Any]())
    """That go back, as they stand in the body."""


def sent(request: ReceivedRequest) -> Sent:
    """Raises: `AssertionError`, for ids that name two calls of a turn and for results without a call."""
    body = request.body
    match request.answers:
        case ChatAnswers():
            return _chat(body)
        case ResponsesAnswers():
            return _responses(body)
        case AnthropicAnswers():
            return _anthropic(body)
        case GeminiAnswers():
            return _gemini(body)
        case other:
            raise AssertionError(f"say here how a request of {type(other).__name__} is read")


def _chat(body: dict[str, Any]) -> Sent:
    pairs: list[tuple[str, str]] = []
    turns: list[tuple[list[str], dict[str, str]]] = []
    for said in body["messages"]:
        if said["role"] == "tool":
            turns[-1][1][said["tool_call_id"]] = said["content"]
        elif said.get("tool_calls"):
            turns.append(([made["id"] for made in said["tool_calls"]], {}))
    for ids, results in turns:
        pairs += _paired(ids, results)
    named = [tool["function"]["name"] for tool in body.get("tools", ())]
    schema = body["response_format"]["json_schema"]["schema"] if "response_format" in body else None
    return Sent(body["messages"], named, body.get("tool_choice"), schema, pairs)


def _responses(body: dict[str, Any]) -> Sent:
    items = body["input"]
    results = {item["call_id"]: item["output"] for item in items if item.get("type") == "function_call_output"}
    pairs = _paired([item["call_id"] for item in items if item.get("type") == "function_call"], results)
    named = [tool["name"] for tool in body.get("tools", ())]
    schema = body["text"]["format"]["schema"] if "text" in body else None
    thoughts = [item for item in items if item.get("type") == "reasoning"]
    return Sent(items, named, body.get("tool_choice"), schema, pairs, thoughts)


def _anthropic(body: dict[str, Any]) -> Sent:
    blocks = [block for message in body["messages"] for block in message["content"]]
    results = {block["tool_use_id"]: block["content"] for block in blocks if block["type"] == "tool_result"}
    pairs = _paired([block["id"] for block in blocks if block["type"] == "tool_use"], results)
    named = [tool["name"] for tool in body.get("tools", ())]
    choice = {"none": "none", "any": "required", None: None}[body.get("tool_choice", {}).get("type")]
    schema = body["output_config"]["format"]["schema"] if "output_config" in body else None
    thoughts = [block for block in blocks if block["type"].endswith("thinking")]
    return Sent(body["messages"], named, choice, schema, pairs, thoughts)


def _gemini(body: dict[str, Any]) -> Sent:
    pairs: list[tuple[str, str]] = []
    ids: list[str] = []
    for content in body["contents"]:
        made = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        given = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        if made:
            ids = [call.get("id", f"place {place}") for place, call in enumerate(made)]
        if given:
            texts = [next(iter(one["response"].values())) for one in given]
            answered = [one.get("id", f"place {place}") for place, one in enumerate(given)]
            pairs += _paired(ids, dict(zip(answered, texts, strict=True)))
    named = [one["name"] for tool in body.get("tools", ()) for one in tool["functionDeclarations"]]
    mode = body.get("toolConfig", {}).get("functionCallingConfig", {}).get("mode")
    schema = body.get("generationConfig", {}).get("responseJsonSchema")
    parts = [part for content in body["contents"] for part in content["parts"]]
    thoughts = [part for part in parts if part.get("thought") or "thoughtSignature" in part]
    return Sent(body["contents"], named, {"NONE": "none", "ANY": "required", None: None}[mode], schema, pairs, thoughts)


def _paired(ids: list[str], results: dict[str, str]) -> list[tuple[str, str]]:
    assert len(set(ids)) == len(ids) == len(results)
    return [(call_id, results[call_id]) for call_id in ids]
