"""What the official `google-genai` package says of the wire of `generateContent`: of what we send, and of what our scripted
server sends.

The package and its types stand for the vendor; no request leaves this machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pydantic
import pytest
from google import genai
from google.genai import errors, types

from deuz_workers.core.messages import (
    FilePart,
    ImagePart,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    assistant,
    message,
    system,
    user,
)
from deuz_workers.core.usage import Usage
from deuz_workers.ports.model import ModelRequest, OutputFormat, ToolSpec
from deuz_workers.providers.gemini.reply import FINISH_REASONS
from deuz_workers.providers.gemini.request import Dialect, build_body
from deuz_workers.providers.script import call, reply
from deuz_workers.providers.sse import EventReader
from deuz_workers.testing.model_faults import Served, refuse
from deuz_workers.testing.model_server import ModelServer, in_order
from tests.providers.recorded import recorded

AUTHOR = "google:gemini"
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
BILL = OutputFormat("bill", {"type": "object", "properties": {"cents": {"type": "integer"}}})
HISTORY = (
    system("Be kind."),
    user(
        [
            TextPart("hi"),
            ImagePart("image/png", b"\xff\xfe"),
            ImagePart("image/png", url="https://x/y.png"),
            FilePart("application/pdf", b"x"),
            FilePart("application/pdf", url="https://x/y.pdf"),
        ]
    ),
    assistant(
        [
            ReasoningPart("hm", {"author": AUTHOR}),
            TextPart("Let me add.", {"author": AUTHOR, "signature": "Zm9v"}),
            ToolUsePart("a", "add", {"a": 1}, provider={"author": AUTHOR, "id": "a", "signature": "YmFy"}),
            ToolUsePart("b", "add", None, "{", provider={"author": AUTHOR}),
        ]
    ),
    message("tool", [ToolResultPart("a", "add", "1"), ToolResultPart("b", "add", "no", is_error=True)]),
)
FOREIGN = (user("hi"), assistant([ToolUsePart("a", "add", {})]), message("tool", [ToolResultPart("a", "add", "1")]))
REQUESTS = {
    "plain": ModelRequest("r", (user("hi"),)),
    "all parts": ModelRequest("r", HISTORY, (ADD,), temperature=1.0, max_output_tokens=9_000),
    "forced": ModelRequest("r", HISTORY, (ADD,), "required"),
    "none": ModelRequest("r", HISTORY, (ADD,), "none"),
    "typed": ModelRequest("r", HISTORY, (ADD,), "none", output_format=BILL),
    "another model's calls": ModelRequest("r", FOREIGN, (ADD,)),
    "extra": ModelRequest(
        "r",
        HISTORY,
        extra={
            "safetySettings": [{"category": "HARM_CATEGORY_HATE_SPEECH", "threshold": "BLOCK_NONE"}],
            "generationConfig": {"seed": 3, "stopSequences": ["x"]},
        },
    ),
}
THINKING: dict[str, object] = {"includeThoughts": True, "thinkingLevel": "LOW"}


@contextmanager
def client_of(script: Any) -> Generator[tuple[genai.Client, ModelServer]]:
    with ModelServer(script) as server:
        options = types.HttpOptions(base_url=server.base_url.removesuffix("/v1"), api_version="v1")
        client = genai.Client(api_key="k", http_options=options)
        try:
            yield client, server
        finally:
            client.close()


@pytest.mark.parametrize("thinking", [None, THINKING], ids=["plain", "thinking"])
@pytest.mark.parametrize("name", REQUESTS)
def test_the_body_is_what_the_package_sends(name: str, thinking: dict[str, object] | None) -> None:
    """Read by the package's own types, which allow no field that they do not know, and sent by its client: the same body."""
    body = build_body(REQUESTS[name], Dialect(AUTHOR, "gemini", thinking=thinking))
    fields = dict(body)
    contents = [types.Content.model_validate(content) for content in fields.pop("contents")]
    settings = fields.pop("generationConfig", {})
    config = types.GenerateContentConfig.model_validate({**fields, **settings})
    with client_of(in_order(["done"])) as (client, server):
        client.models.generate_content(model="gemini", contents=contents, config=config)
        (sent,) = server.requests
    assert plainly(sent.body) == plainly(body)
    assert sent.path.startswith("/v1/models/gemini:generateContent")
    assert sent.headers["x-goog-api-key"] == "k"


def plainly(body: dict[str, Any]) -> object:
    """What the API reads alike in one spelling: names in its own, where the package leaves some in that of Python; bytes in one
    of the two alphabets of base64; nothing said in an empty field."""
    return spelled({"generationConfig": {}, **body, "systemInstruction": body.get("systemInstruction", {}).get("parts")})


def spelled(value: Any) -> object:
    match value:
        case dict():
            return {re.sub("_(.)", lambda found: found[1].upper(), name): spelled(inner) for name, inner in value.items()}
        case list():
            return [spelled(inner) for inner in value]
        case str():
            return value.replace("_", "/").replace("-", "+")
        case _:
            return value


def test_a_body_that_is_wrong_is_noticed() -> None:
    """The check above can fail: a field that the package does not know is an error wherever it stands."""
    for wrong in ({"text": 7}, {"txt": "a"}, {"functionCall": {"arguments": {}}}):
        with pytest.raises(pydantic.ValidationError):
            types.Content.model_validate({"role": "user", "parts": [wrong]})


USED = Usage(100, 20, 60, 5, cost_micros=None)
TURN = reply(
    "Paying now.",
    call("pay", amount=1250, to="é"),
    call("pay", amount=7),
    reasoning=ReasoningPart("Hm, hm.", {"signature": "Zm9v"}),
    usage=USED,
)


def check_parts(parts: list[types.Part]) -> None:
    assert [part.text for part in parts if part.thought] == ["Hm, hm."]
    assert "".join(part.text or "" for part in parts if not part.thought) == "Paying now."
    called = [part for part in parts if part.function_call is not None]
    assert [part.function_call.args for part in called if part.function_call] == [{"amount": 1250, "to": "é"}, {"amount": 7}]
    assert [part.thought_signature for part in called] == [b"foo", None]


def check_end(got: types.GenerateContentResponse) -> None:
    assert got.candidates is not None
    assert got.candidates[0].finish_reason == types.FinishReason.STOP
    used = got.usage_metadata
    assert used is not None
    assert (used.prompt_token_count, used.cached_content_token_count) == (100, 60)
    assert (used.candidates_token_count, used.thoughts_token_count, used.total_token_count) == (15, 5, 120)


def test_the_package_reads_our_whole_reply() -> None:
    """Over a real socket: parts, signature, arguments and usage."""
    with client_of([TURN]) as (client, _):
        got = client.models.generate_content(model="gemini", contents="hi")
    check_parts(got.parts or [])
    check_end(got)


def test_the_package_reads_our_stream() -> None:
    """Over a real socket, event by event."""
    with client_of([TURN]) as (client, server):
        chunks = list(client.models.generate_content_stream(model="gemini", contents="hi"))
        assert server.requests[0].path.endswith(":streamGenerateContent?alt=sse")
    check_parts([part for chunk in chunks for part in chunk.parts or []])
    check_end(chunks[-1])


def test_the_package_reads_our_refusals() -> None:
    """Each status ends in the package's own class for it, with the vendor's word."""
    for status, word in ((400, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED"), (503, "UNAVAILABLE")):
        with client_of([refuse(status)]) as (client, _), pytest.raises(errors.APIError) as caught:
            client.models.generate_content(model="gemini", contents="hi")
        assert (caught.value.code, caught.value.status) == (status, word)


def test_the_recorded_parts_are_of_the_documented_types() -> None:
    """The package's strict types read every event but the part that nobody knows; all kinds of parts are there."""
    kinds: set[str] = set()
    for event in EventReader().feed(recorded("gemini_every_event.sse")):
        record = json.loads(event.data)
        parts = record["candidates"][0]["content"]["parts"]
        kinds |= {name for part in parts for name in part}
        record["candidates"][0]["content"]["parts"] = [part for part in parts if "somethingOfTomorrow" not in part]
        types.GenerateContentResponse.model_validate(record)
    documented = {"text", "thought", "thoughtSignature", "functionCall", "executableCode", "codeExecutionResult"}
    assert kinds == documented | {"inlineData", "toolCall", "toolResponse", "somethingOfTomorrow"}


def test_the_package_reads_the_recording() -> None:
    """The whole recording, those parts included that we pass over."""
    served = Served(recorded("gemini_every_event.sse"), content_type="text/event-stream")
    with client_of([served]) as (client, _):
        chunks = list(client.models.generate_content_stream(model="gemini", contents="hi"))
    assert len(chunks) == 9


def test_every_finish_reason_of_the_package_is_decided() -> None:
    """Those that are not in our table mean that the generation broke off: a new one is looked at here."""
    broke_off = {
        "FINISH_REASON_UNSPECIFIED",
        "OTHER",
        "MALFORMED_FUNCTION_CALL",
        "IMAGE_OTHER",
        "NO_IMAGE",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "MISSING_THOUGHT_SIGNATURE",
        "MALFORMED_RESPONSE",
    }
    assert {reason.value for reason in types.FinishReason} == broke_off | FINISH_REASONS.keys()
