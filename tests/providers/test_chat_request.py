"""What is really sent: the bodies of chat completion requests, asserted whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deuz_workers.core.messages import (
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    assistant,
    message,
    system,
    user,
)
from deuz_workers.errors import ModelRequestError
from deuz_workers.ports.model import ModelRequest, OutputFormat, ToolSpec
from deuz_workers.providers.chat.reply import read_reply
from deuz_workers.providers.chat.request import Dialect, build_body
from deuz_workers.providers.json_body import encode_body

ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
PLAIN = Dialect(author="openai:gpt", model="gpt")


def body_of(*messages: Message, dialect: Dialect = PLAIN, **settings: Any) -> dict[str, Any]:
    return build_body(ModelRequest("r1", messages, **settings), dialect)


def test_a_request_with_everything() -> None:
    """Instructions, a question with an image, calls and their results, tools and settings: the whole body, nothing else."""
    turn = assistant(
        [
            TextPart("Let me "),
            TextPart("add."),
            ToolUsePart("call_a", "add", {"a": 1, "b": "é"}),
            ToolUsePart("s1c2", "add", None, '{"a": '),
        ]
    )
    results = message("tool", [ToolResultPart("call_a", "add", "3"), ToolResultPart("s1c2", "add", "no JSON", is_error=True)])
    body = body_of(
        system("Be kind."),
        user([TextPart("What is this?"), ImagePart("image/png", b"\x89PNG"), ImagePart("image/png", url="https://x/y.png")]),
        turn,
        results,
        tools=(ADD,),
        tool_choice="required",
        max_output_tokens=100,
        temperature=0.5,
        extra={"seed": 7},
    )
    assert body == {
        "model": "gpt",
        "messages": [
            {"role": "system", "content": "Be kind."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
                    {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                ],
            },
            {
                "role": "assistant",
                "content": "Let me add.",
                "tool_calls": [
                    {"id": "call_a", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":"é"}'}},
                    {"id": "s1c2", "type": "function", "function": {"name": "add", "arguments": '{"a": '}},
                ],
            },
            {"role": "tool", "tool_call_id": "call_a", "content": "3"},
            {"role": "tool", "tool_call_id": "s1c2", "content": "no JSON"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "add",
                    "description": "Adds.",
                    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
                },
            }
        ],
        "tool_choice": "required",
        "max_completion_tokens": 100,
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": 7,
    }


def test_a_typed_answer_is_asked_for_by_its_schema_with_the_tools_out_of_reach() -> None:
    """`response_format` of type `json_schema`; the tools stay listed and their choice is `none`."""
    answer = OutputFormat("bill", {"type": "object", "properties": {"cents": {"type": "integer"}}})
    body = body_of(user("go"), tools=(ADD,), tool_choice="none", output_format=answer)
    assert body["response_format"] == {"type": "json_schema", "json_schema": {"name": "bill", "schema": dict(answer.schema)}}
    assert ([tool["function"]["name"] for tool in body["tools"]], body["tool_choice"]) == (["add"], "none")
    with pytest.raises(ModelRequestError, match="response_format"):
        body_of(user("go"), output_format=answer, extra={"response_format": {"type": "text"}})


@pytest.mark.spec("MSG-001")
def test_a_string_is_one_text_part() -> None:
    """The same body, whether content was given as a string or as one text part."""
    assert body_of(user("hi")) == body_of(user([TextPart("hi")]))
    assert body_of(user("hi"))["messages"] == [{"role": "user", "content": "hi"}]


def test_servers_without_the_newer_fields() -> None:
    """Older servers get `max_tokens`, no `stream_options`, or no streaming at all."""
    older = Dialect("a", "m", max_tokens_field="max_tokens", stream_usage=False)
    whole = Dialect("a", "m", stream=False)
    assert body_of(user("hi"), dialect=older, max_output_tokens=9) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
        "stream": True,
    }
    assert body_of(user("hi"), dialect=whole) == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_a_turn_of_calls_alone_has_null_content() -> None:
    """Null beside calls, an empty string for a turn that said nothing at all."""
    turn = assistant([ToolUsePart("c", "add", {})])
    made = body_of(turn, message("tool", [ToolResultPart("c", "add", "")]), assistant(""))["messages"]
    assert (made[0]["content"], made[2]["content"]) == (None, "")


@pytest.mark.spec("MSG-002")
@pytest.mark.parametrize(
    "answered",
    [[], ["a"], ["a", "b", "b"], ["a", "b", "c"], ["c"]],
    ids=["none", "one of two", "one twice", "a third", "another"],
)
def test_no_request_leaves_a_call_unanswered(answered: list[str]) -> None:
    """Calls that are not answered one to one never reach the wire: the builder refuses the request and names the call."""
    turn = assistant([ToolUsePart("a", "add", {}), ToolUsePart("b", "add", {})])
    results = Message("tool", tuple(ToolResultPart(call_id, "add", "") for call_id in answered))
    with pytest.raises(ModelRequestError, match=r"call '[abc]'") as caught:
        body_of(user("hi"), turn, results, user("go on"))
    assert (caught.value.code, caught.value.billed) == ("unpaired_tool_call", "no")


def test_ids_on_the_wire() -> None:
    """A provider's id is echoed where it names one call of the turn; repeated ones give way to ours, in call and result."""
    turn = assistant(
        [
            ToolUsePart("s1c1", "add", {}, provider_call_id="x"),
            ToolUsePart("s1c2", "add", {}, provider_call_id="x"),
            ToolUsePart("s1c3", "add", {}, provider_call_id="y"),
            ToolUsePart("s1c4", "add", {}),
        ]
    )
    results = [ToolResultPart(use.call_id, "add", "") for use in turn.tool_uses]
    calls, *answers = body_of(turn, message("tool", results))["messages"]
    assert [call["id"] for call in calls["tool_calls"]] == ["s1c1", "s1c2", "y", "s1c4"]
    assert [answer["tool_call_id"] for answer in answers] == ["s1c1", "s1c2", "y", "s1c4"]


THOUGHT = " Hm\u0000 \N{WINKING FACE}\r\n "
SIGNED = {"google": {"thought_signature": "Ab+/==\u2028"}}
SERVED = {
    "model": "deepseek-reasoner",
    "choices": [
        {
            "finish_reason": "tool_calls",
            "message": {
                "content": "",
                "reasoning_content": THOUGHT,
                "tool_calls": [
                    {
                        "id": "c",
                        "type": "function",
                        "function": {"name": "add", "arguments": '{ "a":1.0 }'},
                        "extra_content": SIGNED,
                    }
                ],
            },
        }
    ],
}


@pytest.mark.spec("MSG-003")
def test_thoughts_and_signatures_go_back_byte_for_byte() -> None:
    """What the model thought, how it wrote its arguments and what it signed is in the next request as it came."""
    author = "deepseek:r"
    turn = read_reply(SERVED, author=author, provider="deepseek", model="r").message
    sent = body_of(
        turn,
        message("tool", [ToolResultPart("c", "add", "1")]),
        dialect=Dialect(author, "r", replay_reasoning=True),
    )
    assert json.loads(encode_body(sent))["messages"][0] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": THOUGHT,
        "tool_calls": [
            {
                "id": "c",
                "type": "function",
                "function": {"name": "add", "arguments": '{ "a":1.0 }'},
                "extra_content": SIGNED,
            }
        ],
    }


def test_private_metadata_stays_with_its_author() -> None:
    """Another model gets neither thoughts nor signatures nor the other's spelling; and thoughts go nowhere unasked."""
    turn = read_reply(SERVED, author="deepseek:r", provider="deepseek", model="r").message
    result = message("tool", [ToolResultPart("c", "add", "1")])
    other = body_of(turn, result, dialect=Dialect("openai:gpt", "gpt", replay_reasoning=True))["messages"][0]
    unasked = body_of(turn, result, dialect=Dialect("deepseek:r", "r"))["messages"][0]
    assert other["tool_calls"] == [{"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a":1.0}'}}]
    assert "reasoning_content" not in other
    assert "reasoning_content" not in unasked


def test_text_that_json_cannot_carry() -> None:
    """NUL travels as an escape, a surrogate pair as its character, a lone surrogate as U+FFFD; the body is UTF-8."""
    raw = encode_body({"text": "a\u0000 \ud83d\ude00 \ud800 é"})
    assert json.loads(raw.decode("utf-8")) == {"text": "a\u0000 \N{GRINNING FACE} \ufffd é"}


@pytest.mark.parametrize("value", [float("nan"), b"bytes", {1, 2}], ids=["nan", "bytes", "set"])
def test_a_value_that_is_no_json_is_refused(value: object) -> None:
    """The error says where to look; nothing is sent."""
    with pytest.raises(ModelRequestError, match="look at extra"):
        encode_body({"x": value})


@pytest.mark.parametrize("field", ["messages", "stream", "tools", "n"])
def test_extra_may_not_set_what_the_client_depends_on(field: str) -> None:
    """A typed error names the field."""
    with pytest.raises(ModelRequestError, match=field):
        body_of(user("hi"), extra={field: 1})


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("system", ImagePart("image/png", b"x")),
        ("user", ReasoningPart("hm")),
        ("assistant", ImagePart("image/png", b"x")),
        ("tool", TextPart("x")),
        ("user", ImagePart("image/png")),
    ],
)
def test_a_part_without_a_place_is_refused(role: Any, part: Part) -> None:
    """A part that the wire has no place for is a typed error, not silently dropped."""
    with pytest.raises(ModelRequestError):
        body_of(Message(role, (part,)))
