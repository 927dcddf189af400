"""What is really sent to `generateContent`: the bodies of requests, asserted whole."""

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
from deuz_workers.providers.gemini.reply import read_reply
from deuz_workers.providers.gemini.request import Dialect, build_body
from deuz_workers.providers.gemini.wire import GeminiWire
from deuz_workers.providers.json_body import encode_body

AUTHOR = "google:gemini"
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
PLAIN = Dialect(author=AUTHOR, model="gemini")
BILL = OutputFormat("bill", {"type": "object", "properties": {"cents": {"type": "integer"}}})


def body_of(*messages: Message, dialect: Dialect = PLAIN, **settings: Any) -> dict[str, Any]:
    return build_body(ModelRequest("r1", messages, **settings), dialect)


def sent(*messages: Message, dialect: Dialect = PLAIN) -> list[dict[str, Any]]:
    return body_of(*messages, dialect=dialect)["contents"]


def use(call_id: str, name: str = "add", **provider: object) -> ToolUsePart:
    return ToolUsePart(call_id, name, {}, provider={"author": AUTHOR, **provider})


def results(*call_ids: str) -> Message:
    return message("tool", [ToolResultPart(call_id, "add", f"for {call_id}") for call_id in call_ids])


def test_a_request_with_everything() -> None:
    """Instructions, a question with images and files, calls and their results, tools and settings: the whole body."""
    question = user(
        [
            TextPart("What is this?"),
            ImagePart("image/png", b"\x89PNG"),
            ImagePart("image/png", url="https://x/y.png"),
            FilePart("application/pdf", b"%PDF"),
            FilePart("application/pdf", file_id="https://generativelanguage.googleapis.com/v1/files/abc"),
        ]
    )
    first = ToolUsePart("c1", "add", {"a": 1}, provider={"author": AUTHOR, "id": "c1", "signature": "Ab+/=="})
    turn = assistant([TextPart("Let me add."), first, ToolUsePart("s1c2", "add", None, "{", provider={"author": AUTHOR})])
    answers = message("tool", [ToolResultPart("c1", "add", "3"), ToolResultPart("s1c2", "add", "no JSON", is_error=True)])
    body = body_of(
        system("Be kind."),
        question,
        turn,
        answers,
        tools=(ADD,),
        tool_choice="required",
        max_output_tokens=100,
        temperature=0.5,
        extra={"safetySettings": [], "generationConfig": {"seed": 7}},
    )
    assert body == {
        "systemInstruction": {"parts": [{"text": "Be kind."}]},
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "add",
                        "description": "Adds.",
                        "parametersJsonSchema": {"type": "object", "properties": {"a": {"type": "integer"}}},
                    }
                ]
            }
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "What is this?"},
                    {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}},
                    {"fileData": {"mimeType": "image/png", "fileUri": "https://x/y.png"}},
                    {"inlineData": {"mimeType": "application/pdf", "data": "JVBERg=="}},
                    {
                        "fileData": {
                            "mimeType": "application/pdf",
                            "fileUri": "https://generativelanguage.googleapis.com/v1/files/abc",
                        }
                    },
                ],
            },
            {
                "role": "model",
                "parts": [
                    {"text": "Let me add."},
                    {"functionCall": {"id": "c1", "name": "add", "args": {"a": 1}}, "thoughtSignature": "Ab+/=="},
                    {"functionCall": {"name": "add", "args": {"unreadable_arguments": "{"}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"id": "c1", "name": "add", "response": {"output": "3"}}},
                    {"functionResponse": {"name": "add", "response": {"error": "no JSON"}}},
                ],
            },
        ],
        "generationConfig": {"maxOutputTokens": 100, "temperature": 0.5, "seed": 7},
        "safetySettings": [],
    }


def test_what_is_sent_where_nobody_says_more() -> None:
    """The contents alone."""
    assert body_of(user("hi")) == {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}


def test_the_address_says_how_it_is_answered() -> None:
    """The model and the method are parts of the path; the key travels in a header of its own, never in the address."""
    whole = GeminiWire("google", Dialect(AUTHOR, "gemini-3.8-flash", stream=False))
    streamed = GeminiWire("google", Dialect(AUTHOR, "tunedModels/my model"))
    assert whole.path == "/models/gemini-3.8-flash:generateContent"
    assert streamed.path == "/tunedModels/my%20model:streamGenerateContent?alt=sse"
    assert whole.headers("k") == {"x-goog-api-key": "k"}
    assert whole.headers("") == {}


@pytest.mark.spec("WIR-003")
def test_a_typed_answer_is_asked_for_by_its_schema_without_any_tool() -> None:
    """The schema as it is, JSON as the type of the answer, and neither declarations nor a choice among them."""
    body = body_of(user("go"), tools=(ADD,), tool_choice="none", output_format=BILL)
    assert body == {
        "contents": [{"role": "user", "parts": [{"text": "go"}]}],
        "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": dict(BILL.schema)},
    }


@pytest.mark.spec("WIR-004")
def test_the_forced_output_tool_is_the_only_one() -> None:
    """One declaration, and the mode that makes the model call it."""
    body = body_of(user("go"), tools=(ToolSpec("bill", "Give the final answer.", BILL.schema),), tool_choice="required")
    (declared,) = body["tools"]
    assert [one["name"] for one in declared["functionDeclarations"]] == ["bill"]
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}


def test_tools_out_of_reach_stay_declared_in_the_loop() -> None:
    """`NONE` where the choice is none and no format is wanted, nothing where it is the model's."""
    assert body_of(user("go"), tools=(ADD,), tool_choice="none")["toolConfig"] == {"functionCallingConfig": {"mode": "NONE"}}
    assert "toolConfig" not in body_of(user("go"), tools=(ADD,))


def test_results_answer_their_turn_in_one_content_in_the_order_of_the_calls() -> None:
    """However many messages they came in and in whatever order: the API refuses any other number or order."""
    turn = assistant([use("a", id="a"), use("b", "look"), use("c", id="c")])
    contents = sent(user("hi"), turn, results("c"), results("b", "a"), user("go on"))
    assert [content["role"] for content in contents] == ["user", "model", "user", "user"]
    responses = [part["functionResponse"] for part in contents[2]["parts"]]
    assert [(one.get("id"), one["name"], one["response"]) for one in responses] == [
        ("a", "add", {"output": "for a"}),
        (None, "look", {"output": "for b"}),
        ("c", "add", {"output": "for c"}),
    ]


def test_an_id_is_echoed_if_the_model_sent_one_that_tells_calls_apart() -> None:
    """Without ids, and where one stands twice, order tells them apart; ours are nothing to the API."""
    twice = [use("s1c1", id="x"), use("s1c2", id="x"), use("s1c3"), use("y", id="y")]
    contents = sent(user("hi"), assistant(twice), results("s1c1", "s1c2", "s1c3", "y"))
    assert [part["functionCall"].get("id") for part in contents[1]["parts"]] == [None, None, None, "y"]
    assert [part["functionResponse"].get("id") for part in contents[2]["parts"]] == [None, None, None, "y"]


@pytest.mark.spec("MSG-002")
@pytest.mark.parametrize("answered", [[], ["a"], ["a", "b", "b"], ["a", "b", "c"]])
def test_no_request_leaves_a_call_unanswered(answered: list[str]) -> None:
    """Calls that are not answered one to one never reach the wire: the builder refuses the request and names the call."""
    with pytest.raises(ModelRequestError, match=r"call '[abc]'") as caught:
        body_of(user("hi"), assistant([use("a"), use("b")]), results(*answered), user("go on"))
    assert (caught.value.code, caught.value.billed) == ("unpaired_tool_call", "no")


SERVED: dict[str, Any] = {
    "modelVersion": "gemini",
    "candidates": [
        {
            "finishReason": "STOP",
            "content": {
                "role": "model",
                "parts": [
                    {"text": " Hm\u0000 \N{WINKING FACE}\r\n ", "thought": True, "thoughtSignature": "A+/=="},
                    {"text": "Let me see.", "thoughtSignature": "B+/=="},
                    {"text": "", "thoughtSignature": "C"},
                    {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "D"},
                    {"functionCall": {"id": "c", "name": "add", "args": {"a": 1.0}}, "thoughtSignature": "E\u2028"},
                    {"functionCall": {"name": "add", "args": {}}},
                ],
            },
        }
    ],
}


def served_turn() -> Message:
    turn = read_reply(SERVED, author=AUTHOR, provider="google", model="gemini").message
    uses = iter([ToolUsePart("c", "add", {"a": 1.0}, provider=turn.tool_uses[0].provider), use("s1c2")])
    return Message("assistant", tuple(next(uses) if isinstance(part, ToolUsePart) else part for part in turn.parts))


@pytest.mark.spec("MSG-003")
def test_thoughts_and_signatures_go_back_byte_for_byte() -> None:
    """Every part of a turn is in the next request as it came, its signature in the very part that it came with."""
    body = body_of(user("hi"), served_turn(), results("c", "s1c2"))
    parts = json.loads(encode_body(body))["contents"][1]["parts"]
    assert parts == SERVED["candidates"][0]["content"]["parts"]


def test_private_metadata_stays_with_its_author() -> None:
    """Another model gets text and calls, and in place of the signature that it would miss the one that skips the check."""
    contents = sent(user("hi"), served_turn(), results("c", "s1c2"), dialect=Dialect("google:pro", "pro"))
    assert contents[1]["parts"] == [
        {"text": "Let me see."},
        {"functionCall": {"name": "add", "args": {"a": 1.0}}, "thoughtSignature": "skip_thought_signature_validator"},
        {"functionCall": {"name": "add", "args": {}}},
    ]
    assert all("id" not in part["functionResponse"] for part in contents[2]["parts"])


def test_calls_of_its_own_that_had_no_signature_get_none() -> None:
    """What the model wrote goes back as it was."""
    assert "thoughtSignature" not in sent(user("hi"), assistant([use("a")]), results("a"))[1]["parts"][0]


def test_thinking_is_a_setting_of_the_generation() -> None:
    """As the API takes it; what `extra` says of the generation stands beside it."""
    thinking = Dialect(AUTHOR, "gemini", thinking={"includeThoughts": True})
    body = body_of(user("hi"), dialect=thinking, extra={"generationConfig": {"topK": 3}})
    assert body["generationConfig"] == {"thinkingConfig": {"includeThoughts": True}, "topK": 3}


def test_instructions_stand_in_front_wherever_they_were() -> None:
    """One field for all of them: there is no other place."""
    body = body_of(system("A"), user("hi"), system("B"))
    assert body["systemInstruction"] == {"parts": [{"text": "A"}, {"text": "B"}]}
    assert [content["role"] for content in body["contents"]] == ["user"]


@pytest.mark.parametrize(
    "extra",
    [
        {"contents": []},
        {"tools": []},
        {"toolConfig": {}},
        {"generationConfig": {"candidateCount": 2}},
        {"generationConfig": {"responseJsonSchema": {}}},
    ],
    ids=str,
)
def test_extra_may_not_set_what_the_client_depends_on(extra: dict[str, Any]) -> None:
    """A typed error names the field."""
    with pytest.raises(ModelRequestError, match="extra may not set"):
        body_of(user("hi"), extra=extra)


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("system", ImagePart("image/png", b"x")),
        ("user", ReasoningPart("hm")),
        ("assistant", ImagePart("image/png", b"x")),
        ("tool", TextPart("x")),
        ("user", ImagePart("image/png")),
        ("user", FilePart("application/pdf")),
        ("user", TextPart("")),
    ],
)
def test_a_part_without_a_place_is_refused(role: Any, part: Part) -> None:
    """A part that the wire has no place for is a typed error, not silently dropped."""
    with pytest.raises(ModelRequestError):
        body_of(Message(role, (part,)))
