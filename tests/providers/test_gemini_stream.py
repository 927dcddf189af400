"""Streams of `streamGenerateContent`: every documented kind of part, and what is made of streams that are not as documented."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deuz_workers.core.messages import ReasoningPart, TextPart
from deuz_workers.core.usage import Usage
from deuz_workers.errors import ModelError, ModelRateLimitedError, ModelResponseError, ModelUnavailableError
from deuz_workers.ports.model import ModelReply
from deuz_workers.providers.gemini.reply import read_reply
from deuz_workers.providers.gemini.stream import ContentStream
from deuz_workers.providers.sse import EventReader, ServerEvent
from tests.providers.recorded import recorded

AUTHOR = "google:gemini"


def play(*events: dict[str, Any] | str, heard: list[str] | None = None) -> ModelReply | None:
    stream = ContentStream()
    for event in events:
        said = stream.take(ServerEvent("message", event if isinstance(event, str) else json.dumps(event)))
        if heard is not None and said:
            heard.append(said)
    completion = stream.completion()
    return None if completion is None else read_reply(completion, author=AUTHOR, provider="google", model="gemini")


def played(*events: dict[str, Any] | str, heard: list[str] | None = None) -> ModelReply:
    reply = play(*events, heard=heard)
    assert reply is not None
    return reply


def chunk(*parts: Any, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": finish}], **fields}


def called(name: str = "add", **call: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {}, **call}}


def test_every_documented_part() -> None:
    """A recorded stream with all of them, those that say nothing to us and one that nobody knows included."""
    stream, heard = ContentStream(), list[str]()
    for event in EventReader().feed(recorded("gemini_every_event.sse")):
        assert not stream.is_done, "nothing says that it is the last"
        heard.append(stream.take(event))
    completion = stream.completion()
    assert completion is not None
    reply = read_reply(completion, author=AUTHOR, provider="google", model="gemini")
    assert [part for part in reply.message.parts if isinstance(part, TextPart)] == [
        TextPart("It is sunny."),
        TextPart("", {"author": AUTHOR, "signature": "EpIECo8EAb4"}),
    ]
    thought, *kept = [part for part in reply.message.parts if isinstance(part, ReasoningPart)]
    assert thought == ReasoningPart("I should look it up.", {"author": AUTHOR})
    kinds = [next(iter(part.provider["part"])) for part in kept]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert kinds == ["executableCode", "codeExecutionResult", "inlineData", "toolCall", "toolResponse", "somethingOfTomorrow"]
    assert [(use.call_id, use.arguments, use.provider.get("signature")) for use in reply.message.tool_uses] == [
        ("fc_1", {"city": "Z\N{LATIN SMALL LETTER U WITH DIAERESIS}rich", "days": 2}, "CiQBjz1rX0l2"),
        ("", {}, None),
    ]
    assert "".join(heard) == reply.message.text == "It is sunny."
    assert reply.finish_reason == "tool_calls"
    assert reply.usage == Usage(150, 61, 128, 31, cost_micros=None)
    assert reply.model == "google:gemini-3.8-flash"


def test_texts_join_until_one_is_signed() -> None:
    """Pieces of one text are one part; a part with a signature stands alone, as do the texts on its two sides."""
    heard: list[str] = []
    reply = played(
        chunk({"text": "H", "thought": True}),
        chunk({"text": "m", "thought": True}),
        chunk({"text": "Hel"}),
        chunk({"text": "lo"}, {"text": ","}),
        chunk({"text": " you", "thoughtSignature": "s"}),
        chunk({"text": "!"}),
        chunk({"text": "", "thoughtSignature": "t"}, finish="STOP"),
        heard=heard,
    )
    assert reply.message.parts == (
        ReasoningPart("Hm", {"author": AUTHOR}),
        TextPart("Hello,"),
        TextPart(" you", {"author": AUTHOR, "signature": "s"}),
        TextPart("!"),
        TextPart("", {"author": AUTHOR, "signature": "t"}),
    )
    assert heard == ["Hel", "lo,", " you", "!"]


def test_the_newest_of_several_usages_counts() -> None:
    """Each event counts anew, so the last one has the total."""
    first, last = ({"promptTokenCount": 3, "candidatesTokenCount": n} for n in (1, 2))
    reply = played(chunk({"text": "a"}, usageMetadata=first), chunk(finish="STOP", usageMetadata=last))
    assert reply.usage == Usage(3, 2, cost_micros=None)


def test_calls_of_several_events_stay_as_many() -> None:
    """Whole in one part each, with the same id or none."""
    reply = played(chunk(called(id="a"), called(id="a")), chunk({"text": "x"}, called("look")), chunk(finish="STOP"))
    assert [(use.call_id, use.name) for use in reply.message.tool_uses] == [("a", "add"), ("a", "add"), ("", "look")]


def test_half_of_a_surrogate_pair_waits_for_the_other() -> None:
    """A character that a server cut in two is heard whole, and stands whole in the reply."""
    heard: list[str] = []
    halves = ['{"candidates":[{"content":{"parts":[{"text":"' + half + '"}]}}]}' for half in (r"x\ud83d", r"\ude00y")]
    assert played(*halves, chunk(finish="STOP"), heard=heard).message.text == "x\N{GRINNING FACE}y"
    assert heard == ["x", "\N{GRINNING FACE}y"]


@pytest.mark.parametrize(
    "events",
    [
        [],
        [chunk({"text": "Hel"})],
        [chunk(called())],
        [chunk({"text": "Hel"}, finish="FINISH_REASON_UNSPECIFIED")],
        [{"usageMetadata": {"promptTokenCount": 1}}],
    ],
    ids=["nothing", "text", "call", "unspecified", "usage"],
)
def test_a_stream_without_its_finish_reason_is_void(events: list[dict[str, Any]]) -> None:
    """Neither text nor calls of it become a reply."""
    assert play(*events) is None


def test_a_prompt_that_was_refused() -> None:
    """One event without a candidate says why."""
    reply = played({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 4}})
    assert (reply.finish_reason, reply.message.parts, reply.usage) == ("content_filter", (), Usage(4, 0, cost_micros=None))


def test_what_is_not_an_object_is_no_event() -> None:
    """Broken JSON, arrays and endless nesting are typed errors; strange fields inside an event are passed over."""
    for data in ("{", "[]", "7", "[" * 100_000):
        with pytest.raises(ModelResponseError):
            play(data)
    strange = [{"candidates": 7}, {"candidates": [7]}, {"candidates": [{"content": 7}]}, chunk(7), chunk({"text": 7})]
    assert played(*strange, chunk({"text": "Hi"}, finish="STOP")).message.text == "Hi"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 503, "status": "UNAVAILABLE"}, ModelUnavailableError),
        ({"code": 429, "status": "RESOURCE_EXHAUSTED"}, ModelRateLimitedError),
        ({"message": "secret"}, ModelUnavailableError),
    ],
)
def test_an_error_in_the_middle(error: dict[str, Any], kind: type[ModelError]) -> None:
    """It ends the call with the kind of error that it names; whether it was billed nobody knows; its text is not repeated."""
    with pytest.raises(kind) as caught:
        play(chunk({"text": "Hel"}), {"error": error})
    assert caught.value.billed == "unknown"
    assert "secret" not in str(caught.value)
