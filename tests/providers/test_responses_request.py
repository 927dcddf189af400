"""What is really sent: the bodies of requests to OpenAI's Responses, asserted whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deuz_workers.core.messages import (
    FilePart,
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
from deuz_workers.providers.json_body import encode_body
from deuz_workers.providers.responses.reply import read_reply
from deuz_workers.providers.responses.request import Dialect, build_body

ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
PLAIN = Dialect(author="openai:gpt", model="gpt")


def body_of(*messages: Message, dialect: Dialect = PLAIN, **settings: Any) -> dict[str, Any]:
    return build_body(ModelRequest("r1", messages, **settings), dialect)


def test_a_request_with_everything() -> None:
    """Instructions, images and files in every form, calls and their results, tools and settings: the whole body."""
    question = user(
        [
            TextPart("What is this?"),
            ImagePart("image/png", b"\x89PNG"),
            ImagePart("image/png", url="https://x/y.png"),
            FilePart("application/pdf", b"%PDF", name="bill.pdf"),
            FilePart("application/pdf", b"%PDF"),
            FilePart("application/pdf", url="https://x/y.pdf"),
            FilePart("application/pdf", file_id="file-7"),
        ]
    )
    turn = assistant(
        [TextPart("Let me add."), ToolUsePart("call_a", "add", {"a": 1, "b": "é"}), ToolUsePart("s1c2", "add", None, '{"a": ')]
    )
    results = message("tool", [ToolResultPart("call_a", "add", "3"), ToolResultPart("s1c2", "add", "no JSON", is_error=True)])
    body = body_of(
        system("Be kind."),
        question,
        turn,
        results,
        tools=(ADD,),
        tool_choice="required",
        max_output_tokens=100,
        temperature=0.5,
        extra={"reasoning": {"effort": "low"}},
    )
    assert body == {
        "model": "gpt",
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": [
            {"role": "system", "content": "Be kind."},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is this?"},
                    {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,iVBORw=="},
                    {"type": "input_image", "detail": "auto", "image_url": "https://x/y.png"},
                    {"type": "input_file", "filename": "bill.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
                    {"type": "input_file", "filename": "file.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
                    {"type": "input_file", "file_url": "https://x/y.pdf"},
                    {"type": "input_file", "file_id": "file-7"},
                ],
            },
            {"role": "assistant", "content": "Let me add."},
            {"type": "function_call", "call_id": "call_a", "name": "add", "arguments": '{"a":1,"b":"é"}'},
            {"type": "function_call", "call_id": "s1c2", "name": "add", "arguments": '{"a": '},
            {"type": "function_call_output", "call_id": "call_a", "output": "3"},
            {"type": "function_call_output", "call_id": "s1c2", "output": "no JSON"},
        ],
        "tools": [
            {
                "type": "function",
                "name": "add",
                "description": "Adds.",
                "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
                "strict": False,
            }
        ],
        "tool_choice": "required",
        "max_output_tokens": 100,
        "temperature": 0.5,
        "stream": True,
        "reasoning": {"effort": "low"},
    }


def test_a_typed_answer_stands_beside_other_settings_of_the_text() -> None:
    """`text.format` of type `json_schema`; what `extra` says of the text stays, and may not say the format."""
    answer = OutputFormat("bill", {"type": "object", "properties": {"cents": {"type": "integer"}}})
    body = body_of(user("go"), output_format=answer, extra={"text": {"verbosity": "low"}})
    asked = {"type": "json_schema", "name": "bill", "schema": dict(answer.schema), "strict": False}
    assert body["text"] == {"verbosity": "low", "format": asked}
    with pytest.raises(ModelRequestError, match=r"text\.format"):
        body_of(user("go"), output_format=answer, extra={"text": {"format": {"type": "text"}}})


def test_servers_without_the_newer_fields() -> None:
    """Models that do not reason get no `include`, and servers that cannot stream no `stream`."""
    older = Dialect("a", "m", stream=False, encrypted_reasoning=False)
    assert body_of(user("hi"), dialect=older) == {
        "model": "m",
        "input": [{"role": "user", "content": "hi"}],
        "store": False,
    }


@pytest.mark.spec("MSG-002")
@pytest.mark.parametrize("answered", [[], ["a"], ["a", "b", "b"], ["a", "b", "c"]], ids=["none", "one", "twice", "a third"])
def test_no_request_leaves_a_call_unanswered(answered: list[str]) -> None:
    """Calls that are not answered one to one never reach the wire."""
    turn = assistant([ToolUsePart("a", "add", {}), ToolUsePart("b", "add", {})])
    results = Message("tool", tuple(ToolResultPart(call_id, "add", "") for call_id in answered))
    with pytest.raises(ModelRequestError, match=r"call '[abc]'"):
        body_of(user("hi"), turn, results, user("go on"))


def ids_of(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [(item["type"], item["call_id"]) for item in body["input"] if "call_id" in item]


def test_ids_on_the_wire() -> None:
    """A provider's id is echoed where it names one call; one that stands twice in a turn, or that an earlier turn has used,
    gives way, in call and result alike, and no two calls of the conversation share one."""
    first = assistant(
        [
            ToolUsePart("s1c1", "add", {}, provider_call_id="x"),
            ToolUsePart("s1c2", "add", {}, provider_call_id="x"),
            ToolUsePart("y", "add", {}),
            ToolUsePart("s1c4", "add", {}),
        ]
    )
    again = assistant([ToolUsePart("y", "add", {}), ToolUsePart("s1c1", "add", {})])
    results = [message("tool", [ToolResultPart(use.call_id, "add", "") for use in turn.tool_uses]) for turn in (first, again)]
    body = body_of(user("go"), first, results[0], again, results[1])
    expected = ["s1c1", "s1c2", "y", "s1c4"], ["y_2", "s1c1_2"]
    assert ids_of(body) == [
        *(("function_call", call_id) for call_id in expected[0]),
        *(("function_call_output", call_id) for call_id in expected[0]),
        *(("function_call", call_id) for call_id in expected[1]),
        *(("function_call_output", call_id) for call_id in expected[1]),
    ]
    assert ids_of(body_of(user("go"), first, results[0])) == ids_of(body)[:8]


ITEMS: list[dict[str, Any]] = [
    {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": " Hm\u0000 \N{WINKING FACE}\r\n "}],
        "encrypted_content": "Ab+/==\u2028",
        "status": None,
        "new": {"x": 2.50},
    },
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "phase": "commentary",
        "content": [{"type": "output_text", "text": "Let me add.", "annotations": []}],
    },
    {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "c",
        "name": "add",
        "arguments": '{ "a":1.0 }',
        "status": "completed",
        "namespace": "math",
    },
]
RESULT = message("tool", [ToolResultPart("c", "add", "1")])


def turn_of(*items: dict[str, Any], author: str = "openai:gpt") -> Message:
    response = {"status": "completed", "output": list(items)}
    return read_reply(response, author=author, provider="openai", model="gpt").message


@pytest.mark.spec("MSG-003")
def test_items_go_back_byte_for_byte() -> None:
    """What the model thought, its encrypted form, ids, phase and the spelling of arguments are in the next request as they
    came."""
    sent = json.loads(encode_body(body_of(user("go"), turn_of(*ITEMS), RESULT)))["input"]
    assert sent[1:4] == ITEMS
    assert json.dumps(sent[1]) == json.dumps(ITEMS[0])


def test_private_items_stay_with_their_author() -> None:
    """Another model gets neither thoughts nor ids nor the other's spelling, but what was said and asked for."""
    sent = body_of(user("go"), turn_of(*ITEMS, author="other:m"), RESULT)["input"]
    assert sent[1:3] == [
        {"role": "assistant", "content": "Let me add."},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a":1.0}'},
    ]


def test_thoughts_of_the_other_wire_are_not_sent() -> None:
    """A reasoning part that came as a field of a chat completion has no item."""
    turn = assistant([ReasoningPart("Hm.", {"author": "openai:gpt", "field": "reasoning"}), TextPart("Hi.")])
    assert body_of(turn, user("on"))["input"][0] == {"role": "assistant", "content": "Hi."}


def test_a_thought_that_nothing_follows_is_left_out() -> None:
    """OpenAI refuses it; a turn without anything else is there all the same."""
    thought = ITEMS[0]
    assert body_of(user("go"), turn_of(thought), user("on"))["input"][1] == {"role": "assistant", "content": ""}
    assert body_of(user("go"), turn_of(ITEMS[1], thought), user("on"))["input"][1:-1] == [ITEMS[1]]


def test_a_rewritten_text_goes_back_rewritten() -> None:
    """A guardrail's word counts, under the item's id; a second content of a message is a message of its own."""
    said = ITEMS[1] | {"content": [{"type": "output_text", "text": text, "annotations": []} for text in ("a", "b")]}
    turn = turn_of(said)
    (first, second) = turn.parts
    assert isinstance(first, TextPart)
    rewritten = Message("assistant", (TextPart("A", first.provider), second))
    assert body_of(rewritten, user("on"))["input"][:2] == [
        ITEMS[1] | {"content": [{"type": "output_text", "text": "A", "annotations": []}]},
        {"role": "assistant", "content": "b"},
    ]


def test_a_refusal_goes_back_as_one() -> None:
    """As content of its kind."""
    refused = ITEMS[1] | {"content": [{"type": "refusal", "refusal": "No."}]}
    assert body_of(turn_of(refused), user("on"))["input"][0] == refused


@pytest.mark.parametrize("field", ["input", "stream", "tools", "previous_response_id", "background"])
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
        ("user", FilePart("application/pdf")),
    ],
)
def test_a_part_without_a_place_is_refused(role: Any, part: Part) -> None:
    """A part that the wire has no place for is a typed error, not silently dropped."""
    with pytest.raises(ModelRequestError):
        body_of(Message(role, (part,)))
