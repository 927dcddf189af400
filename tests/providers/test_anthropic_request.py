"""What is really sent to the Messages API: the bodies of requests, asserted whole."""

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
from deuz_workers.providers.anthropic.model import AnthropicModel
from deuz_workers.providers.anthropic.reply import read_reply
from deuz_workers.providers.anthropic.request import DEFAULT_MAX_TOKENS, Dialect, build_body
from deuz_workers.providers.anthropic.schema import strict_schema
from deuz_workers.providers.anthropic.wire import MessagesWire
from deuz_workers.providers.json_body import encode_body

AUTHOR = "anthropic:claude"
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
PLAIN = Dialect(author=AUTHOR, model="claude")
BILL = OutputFormat("bill", {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]})


def body_of(*messages: Message, dialect: Dialect = PLAIN, **settings: Any) -> dict[str, Any]:
    return build_body(ModelRequest("r1", messages, **settings), dialect)


def sent(*messages: Message, dialect: Dialect = PLAIN) -> list[dict[str, Any]]:
    return body_of(*messages, dialect=dialect)["messages"]


def results(*call_ids: str) -> Message:
    return message("tool", [ToolResultPart(call_id, "add", "3") for call_id in call_ids])


def test_a_request_with_everything() -> None:
    """Instructions, a question with images and files, calls and their results, tools and settings: the whole body."""
    question = user(
        [
            TextPart("What is this?"),
            ImagePart("image/png", b"\x89PNG"),
            ImagePart("image/png", url="https://x/y.png"),
            FilePart("application/pdf", b"%PDF", name="bill.pdf"),
            FilePart("application/pdf", url="https://x/y.pdf"),
            FilePart("text/plain", "é".encode()),
            FilePart("application/pdf", file_id="file_011"),
        ]
    )
    turn = assistant([TextPart("Let me add."), ToolUsePart("toolu_a", "add", {"a": 1}), ToolUsePart("s1c2", "add", None, "{")])
    answers = message("tool", [ToolResultPart("toolu_a", "add", "3"), ToolResultPart("s1c2", "add", "no JSON", is_error=True)])
    body = body_of(
        system("Be kind."),
        question,
        turn,
        answers,
        tools=(ADD,),
        tool_choice="required",
        max_output_tokens=100,
        extra={"metadata": {"user_id": "u"}},
    )
    assert body == {
        "model": "claude",
        "max_tokens": 100,
        "system": "Be kind.",
        "tools": [
            {
                "name": "add",
                "description": "Adds.",
                "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
            }
        ],
        "tool_choice": {"type": "any"},
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
                    {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
                    {
                        "type": "document",
                        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
                        "title": "bill.pdf",
                    },
                    {"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}},
                    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "é"}},
                    {"type": "document", "source": {"type": "file", "file_id": "file_011"}},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Let me add."},
                    {"type": "tool_use", "id": "toolu_a", "name": "add", "input": {"a": 1}},
                    {"type": "tool_use", "id": "s1c2", "name": "add", "input": {"unreadable_arguments": "{"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_a", "content": "3"},
                    {"type": "tool_result", "tool_use_id": "s1c2", "content": "no JSON", "is_error": True},
                ],
            },
        ],
        "stream": True,
        "metadata": {"user_id": "u"},
    }


def test_what_is_sent_where_nobody_says_more() -> None:
    """The limit that the API wants, and no field beside it; whole replies where streaming is off."""
    whole = Dialect(AUTHOR, "claude", stream=False)
    assert body_of(user("hi"), dialect=whole) == {
        "model": "claude",
        "max_tokens": DEFAULT_MAX_TOKENS,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    }


@pytest.mark.spec("WIR-001")
def test_a_typed_answer_is_asked_for_by_its_schema_with_the_tools_out_of_reach() -> None:
    """`output_config.format`, beside other settings of that field; the tools stay listed and their choice is `none`."""
    loop = body_of(user("go"), tools=(ADD,))
    body = body_of(user("go"), tools=(ADD,), tool_choice="none", output_format=BILL, extra={"output_config": {"effort": "low"}})
    schema = {**BILL.schema, "additionalProperties": False}
    assert body["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": schema}}
    assert (body["tools"], body["tool_choice"]) == (loop["tools"], {"type": "none"})
    with pytest.raises(ModelRequestError, match="output_config"):
        body_of(user("go"), output_format=BILL, extra={"output_config": {"format": {}}})


@pytest.mark.spec("WIR-004")
def test_the_forced_output_tool_is_the_only_one() -> None:
    """One tool, and the choice that makes the model call it."""
    answer = ToolSpec("bill", "Give the final answer.", BILL.schema)
    body = body_of(user("go"), tools=(answer,), tool_choice="required")
    assert ([tool["name"] for tool in body["tools"]], body["tool_choice"]) == (["bill"], {"type": "any"})


def test_a_temperature_goes_with_the_older_version_of_the_api() -> None:
    """The newer one refuses it even at its default, so it is refused before anything is sent."""
    older = Dialect(AUTHOR, "claude", api_version="2023-06-01")
    assert body_of(user("hi"), temperature=0.5, dialect=older)["temperature"] == 0.5
    with pytest.raises(ModelRequestError, match="2023-06-01") as caught:
        body_of(user("hi"), temperature=1.0)
    assert (caught.value.code, caught.value.billed) == ("unsupported_setting", "no")


def test_an_agent_s_temperature_is_not_asked_for() -> None:
    """The model says what it does not take, so that an agent may go from one model to another."""
    assert AnthropicModel("claude").rejects == {"temperature"}
    assert AnthropicModel("claude", api_version="2023-06-01").rejects == frozenset()
    assert AnthropicModel("claude", rejects=()).rejects == frozenset()


def test_the_headers_say_version_and_key() -> None:
    """The version always, the key where there is one."""
    newest, older = (MessagesWire("anthropic", dialect) for dialect in (PLAIN, Dialect(AUTHOR, "m", api_version="2023-06-01")))
    assert newest.headers("k") == {"anthropic-version": "2026-10-21", "Authorization": "Bearer k"}
    assert older.headers("") == {"anthropic-version": "2023-06-01"}


def test_a_finalization_goes_on_from_the_bytes_of_the_loop() -> None:
    """What was sent before stands in front of what is added, tools and messages alike, so that the cached prefix is found."""
    history = (user("go"), assistant([ToolUsePart("a", "add", {})]), results("a"))
    loop = body_of(system("Be kind."), *history, tools=(ADD,))
    final = body_of(system("Be kind."), *history, user("Now."), tools=(ADD,), tool_choice="none", output_format=BILL)
    for field in ("system", "tools"):
        assert encode_body({field: final[field]}) == encode_body({field: loop[field]})
    before, after = (encode_body({"messages": body["messages"]}) for body in (loop, final))
    assert after.startswith(before.removesuffix(b"]}"))


def test_instructions_stand_in_front_wherever_they_were() -> None:
    """One field for all of them: most models refuse a system message among the others."""
    body = body_of(system("A"), user("hi"), system("B"), system(" "))
    assert body["system"] == "A\n\nB"
    assert [made["role"] for made in body["messages"]] == ["user"]


def test_blank_texts_are_left_out() -> None:
    """A text block must say something; a message that says nothing at all is refused before it is sent."""
    turn = assistant([TextPart("\n"), ToolUsePart("a", "add", {})])
    assert [block["type"] for block in sent(user("hi"), turn, results("a"))[1]["content"]] == ["tool_use"]
    with pytest.raises(ModelRequestError, match="says nothing"):
        body_of(user(" "))


@pytest.mark.spec("MSG-002")
@pytest.mark.parametrize("answered", [[], ["a"], ["a", "b", "b"], ["a", "b", "c"]])
def test_no_request_leaves_a_call_unanswered(answered: list[str]) -> None:
    """Calls that are not answered one to one never reach the wire: the builder refuses the request and names the call."""
    turn = assistant([ToolUsePart("a", "add", {}), ToolUsePart("b", "add", {})])
    with pytest.raises(ModelRequestError, match=r"call '[abc]'") as caught:
        body_of(user("hi"), turn, results(*answered), user("go on"))
    assert (caught.value.code, caught.value.billed) == ("unpaired_tool_call", "no")


def test_ids_on_the_wire() -> None:
    """Unique in the whole request and of the letters that the API takes; call and result always carry the same one."""
    first = assistant(
        [
            ToolUsePart("toolu_1", "add", {}),
            ToolUsePart("s1c2", "add", {}, provider_call_id="x"),
            ToolUsePart("s1c3", "add", {}, provider_call_id="x"),
            ToolUsePart("a.b", "add", {}),
        ]
    )
    second = assistant([ToolUsePart("toolu_1", "add", {}), ToolUsePart("call_5", "add", {})])
    made = sent(user("hi"), first, results("a.b", "s1c3", "s1c2", "toolu_1"), second, results("toolu_1", "call_5"))
    assert [block["id"] for block in made[1]["content"]] == ["toolu_1", "x", "s1c3", "call_4"]
    assert [block["tool_use_id"] for block in made[2]["content"]] == ["call_4", "s1c3", "x", "toolu_1"]
    assert [block["id"] for block in made[3]["content"]] == ["call_5", "call_6"]
    assert [block["tool_use_id"] for block in made[4]["content"]] == ["call_5", "call_6"]


THOUGHT = " Hm\u0000 \N{WINKING FACE}\r\n "
SIGNATURE = "EqQB+/==\u2028"
SERVED = {
    "model": "claude",
    "stop_reason": "tool_use",
    "content": [
        {"type": "thinking", "thinking": THOUGHT, "signature": SIGNATURE},
        {"type": "redacted_thinking", "data": "Zm9v"},
        {"type": "text", "text": "Let me see."},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": [1, None]}},
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1.0}},
    ],
}


@pytest.mark.spec("MSG-003")
def test_thoughts_and_signatures_go_back_byte_for_byte() -> None:
    """All blocks of a turn are in the next request as they came and in their order, those unknown here included."""
    turn = read_reply(SERVED, author=AUTHOR, provider="anthropic", model="claude").message
    body = body_of(user("hi"), turn, results("toolu_1"))
    assert json.loads(encode_body(body))["messages"][1] == {"role": "assistant", "content": SERVED["content"]}


def test_private_metadata_stays_with_its_author() -> None:
    """Another model gets text and calls, no thought, no signature and no block of a tool that ran elsewhere."""
    turn = read_reply(SERVED, author=AUTHOR, provider="anthropic", model="claude").message
    other = Dialect("anthropic:haiku", "haiku")
    blocks = sent(user("hi"), turn, results("toolu_1"), dialect=other)[1]["content"]
    assert [block["type"] for block in blocks] == ["text", "tool_use"]


def test_a_thought_that_nobody_signed_stays_here() -> None:
    """The API refuses thoughts without a signature."""
    turn = assistant([ReasoningPart("hm", {"author": AUTHOR}), TextPart("Hi.")])
    assert [block["type"] for block in sent(user("hi"), turn)[1]["content"]] == ["text"]


BUDGET = {"type": "enabled", "budget_tokens": 2048}
ADAPTIVE = {"type": "adaptive"}
OFF = {"type": "disabled"}
THINKER = assistant([ReasoningPart("hm", {"author": AUTHOR, "signature": "s"}), ToolUsePart("a", "add", {})])
FOREIGN = assistant([ReasoningPart("hm", {"author": "openai:gpt", "signature": "s"}), ToolUsePart("a", "add", {})])


@pytest.mark.parametrize("wanted", [BUDGET, ADAPTIVE])
def test_thinking_is_asked_for_but_not_where_a_call_is_forced(wanted: dict[str, object]) -> None:
    """The API refuses a forced call while thinking; `auto` and `none` go with it."""
    thinking = Dialect(AUTHOR, "claude", thinking=wanted)
    for choice, expected in (("auto", wanted), ("none", wanted), ("required", OFF)):
        body = body_of(user("go"), tools=(ADD,), tool_choice=choice, dialect=thinking)
        assert body["thinking"] == expected
    assert "thinking" not in body_of(user("go"))


@pytest.mark.parametrize(
    ("wanted", "turn", "behind", "expected"),
    [
        (BUDGET, THINKER, (), BUDGET),
        (BUDGET, FOREIGN, (), OFF),
        (BUDGET, FOREIGN, (user("go on"),), BUDGET),
        (ADAPTIVE, FOREIGN, (), ADAPTIVE),
        (OFF, FOREIGN, (), OFF),
    ],
    ids=["own thoughts", "another model's calls", "a new question", "adaptive", "off"],
)
def test_thinking_with_a_budget_goes_on_only_from_own_thoughts(
    wanted: dict[str, object], turn: Message, behind: tuple[Message, ...], expected: dict[str, object]
) -> None:
    """After a fail-over in the middle of a turn the API would refuse it."""
    body = body_of(user("hi"), turn, results("a"), *behind, dialect=Dialect(AUTHOR, "claude", thinking=wanted))
    assert body["thinking"] == expected


def test_the_prefix_is_kept_if_asked_for() -> None:
    """One field; which block is marked the provider finds itself."""
    assert body_of(user("hi"), dialect=Dialect(AUTHOR, "claude", cache=True))["cache_control"] == {"type": "ephemeral"}


@pytest.mark.parametrize("field", ["messages", "stream", "tools", "thinking", "max_tokens", "cache_control"])
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
        ("user", FilePart("audio/wav", b"x")),
        ("user", FilePart("text/plain", url="https://x/y.txt")),
    ],
)
def test_a_part_without_a_place_is_refused(role: Any, part: Part) -> None:
    """A part that the wire has no place for is a typed error, not silently dropped."""
    with pytest.raises(ModelRequestError):
        body_of(Message(role, (part,)))


def test_a_schema_is_closed_and_what_cannot_be_compiled_is_told() -> None:
    """Objects are closed at every depth, bounds and unknown formats move into descriptions, the rest stays as it is."""
    given = {
        "type": "object",
        "title": "Bill",
        "$defs": {"Line": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}}},
        "properties": {
            "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}, "minItems": 1, "maxItems": 5},
            "at": {"type": "string", "format": "date-time", "default": "now"},
            "code": {"type": "string", "format": "iban", "description": "Where to."},
            "kind": {"oneOf": [{"const": "a"}, {"type": "object", "properties": {"x": {"enum": [1, 2]}}}]},
        },
        "required": ["lines"],
    }
    assert strict_schema(given) == {
        "type": "object",
        "title": "Bill",
        "$defs": {
            "Line": {
                "type": "object",
                "properties": {"n": {"type": "integer", "description": "minimum: 1, maximum: 9"}},
                "additionalProperties": False,
            }
        },
        "properties": {
            "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}, "minItems": 1, "description": "maxItems: 5"},
            "at": {"type": "string", "format": "date-time"},
            "code": {"type": "string", "description": "Where to.\nformat: iban"},
            "kind": {
                "anyOf": [
                    {"const": "a"},
                    {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "additionalProperties": False},
                ]
            },
        },
        "required": ["lines"],
        "additionalProperties": False,
    }


def test_free_keys_are_refused_instead_of_lost() -> None:
    """Closed, such an object could only be empty; an empty one that is meant stays one."""
    with pytest.raises(ModelRequestError, match="output_mode='tool'") as caught:
        strict_schema({"type": "object", "properties": {"by_name": {"type": "object", "additionalProperties": True}}})
    assert caught.value.code == "unsupported_schema"
    empty = {"type": "object", "additionalProperties": False}
    assert strict_schema(empty) == {**empty, "properties": {}}
