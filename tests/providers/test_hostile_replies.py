"""Replies that are JSON and no good: what a client makes of them over the wire."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from deuz_workers.core.call_ids import identify_calls
from deuz_workers.core.codec import encode
from deuz_workers.core.messages import Message, ToolResultPart, message_to_record, user
from deuz_workers.ports.model import ModelReply, ModelRequest
from deuz_workers.providers.chat.model import ChatCompletionsModel
from deuz_workers.providers.chat.stream import ChatStream
from deuz_workers.providers.chat.wire import ChatWire
from deuz_workers.providers.sse import EventReader, ServerEvent
from deuz_workers.testing.model_faults import Served
from deuz_workers.testing.model_server import ModelServer


def nested(levels: int) -> Any:
    return json.loads("[" * levels + "]" * levels)


def tool_call(call_id: str = "a", *, name: str = "look", arguments: object = "{}", **more: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def whole(*calls: dict[str, Any], content: str | None = None, **more: Any) -> Served:
    message = {"role": "assistant", "content": content, "tool_calls": list(calls)}
    body = {"choices": [{"message": message, "finish_reason": "stop"}], "model": "m", **more}
    return Served(json.dumps(body).encode(), content_type="application/json")


def streamed(*calls: dict[str, Any], content: str | None = None, **more: Any) -> Served:
    entries = [{"index": index, **call} for index, call in enumerate(calls)]
    delta = {"choices": [{"delta": {"content": content, "tool_calls": entries}, "finish_reason": "stop"}], "model": "m", **more}
    return Served(f"data: {json.dumps(delta)}\n\ndata: [DONE]\n\n".encode(), content_type="text/event-stream")


def chunk(choice: dict[str, Any]) -> ServerEvent:
    return ServerEvent("message", json.dumps({"choices": [choice]}))


async def read(served: Served) -> ModelReply:
    with ModelServer([served]) as server:
        model = ChatCompletionsModel("m", server.base_url)
        try:
            return await model.call(ModelRequest("r", (user("go"),), timeout_ms=60_000))
        finally:
            await model.close()


@pytest.mark.parametrize("make", [whole, streamed])
@pytest.mark.parametrize(
    "made",
    [
        tool_call("a\0b"),
        tool_call("a\ud800"),
        tool_call("x" * 12_000),
        tool_call(name="l\ud800k\0"),
        tool_call(extra_content=nested(300)),
        tool_call(extra_content={"score": float("nan")}),
        tool_call(arguments=json.dumps(nested(900))),
        tool_call(arguments=nested(300)),
        tool_call(arguments={"a": nested(300)}),
        tool_call(arguments='{"n": ' + "9" * 5_000 + "}"),
    ],
    ids=["nul", "surrogate", "long", "name", "deep-extra", "nan-extra", "deep-text", "deep-list", "deep-object", "long-number"],
)
async def test_a_strange_call_can_be_stored_and_sent_back(make: Any, made: dict[str, Any]) -> None:
    """The reply is read, saved, and goes back as part of the next turn with call and result under one id."""
    ids: list[tuple[str, str]] = []
    with ModelServer([make(made), "done"]) as server:
        model = ChatCompletionsModel("m", server.base_url)
        first = await model.call(ModelRequest("r1", (user("go"),), timeout_ms=60_000))
        turn = identify_calls(first.message, 1)
        encode(message_to_record(turn))
        results = Message("tool", tuple(ToolResultPart(use.call_id, use.name, "x") for use in turn.tool_uses))
        await model.call(ModelRequest("r2", (user("go"), turn, results), timeout_ms=60_000))
        await model.close()
        sent = server.requests[-1].body["messages"]
        ids = [(sent[1]["tool_calls"][0]["id"], sent[2]["tool_call_id"])]
    assert ids[0][0] == ids[0][1]
    assert ids[0][0].isprintable()


@pytest.mark.parametrize("make", [whole, streamed])
@pytest.mark.parametrize("arguments", ['{"usd": 1e999}', {"usd": float("nan")}, {"usd": [-float("inf")]}])
async def test_numbers_that_json_cannot_say_again_are_no_arguments(make: Any, arguments: object) -> None:
    """No tool runs on them, and no other wire is asked to repeat them."""
    (use,) = (await read(make(tool_call(arguments=arguments)))).message.tool_uses
    assert (use.arguments, use.raw_arguments is None) == (None, False)


@pytest.mark.parametrize("says", [{"index": None}, {}], ids=["ids", "places"])
async def test_fifty_thousand_calls_are_read_in_bearable_time(says: dict[str, Any]) -> None:
    """Of one stream, in an event of their own each, told apart by their ids or by their places: looking through all that came
    before for each of them would outlast what any test may take."""
    calls = [tool_call(f"c{place}", arguments="") | {"index": place} | says for place in range(50_000)]
    events = "".join(f"data: {json.dumps({'choices': [{'delta': {'tool_calls': [call]}}]})}\n\n" for call in calls)
    reader, stream = EventReader(), ChatStream()
    for event in reader.feed(events.encode()):
        stream.take(event)
    assert stream.has_content


async def test_events_behind_a_long_refusal_do_not_read_it_again() -> None:
    """Twenty megabytes in two pieces, heard once at the end of the reply, and many empty events after it, each of which would
    take them up again: for longer than any test may take."""
    piece, stream = "x" * 10_000_000, ChatStream()
    for _ in range(2):
        assert stream.take(chunk({"delta": {"refusal": piece}})) == ""
    assert len(stream.take(chunk({"delta": {}, "finish_reason": "stop"}))) == 2 * len(piece)
    assert not any(stream.take(chunk({"delta": {}})) for _ in range(10_000))


@pytest.mark.parametrize("make", [whole, streamed])
async def test_ids_that_look_alike_on_the_wire_stay_apart(make: Any) -> None:
    """UTF-8 has no lone surrogates: two ids that differ in them alone would both arrive as the same text."""
    turn = identify_calls((await read(make(tool_call("a\ud800"), tool_call("a\ud801")))).message, 3)
    assert [(use.call_id, use.provider_call_id) for use in turn.tool_uses] == [("s3c1", None), ("s3c2", None)]


@pytest.mark.parametrize("make", [whole, streamed])
@pytest.mark.parametrize("counted", [10**25, -5, 1.5, float("nan"), "9"])
async def test_a_count_that_is_none_is_not_zero(make: Any, counted: object) -> None:
    """The text is taken, what it cost stays unknown."""
    reply = await read(make(content="Hi.", usage={"prompt_tokens": counted, "completion_tokens": 1}))
    assert (reply.message.text, reply.usage) == ("Hi.", None)


@pytest.mark.parametrize("make", [whole, streamed])
async def test_a_reply_of_megabytes_is_read_beside_the_loop(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made of fifty megabytes is made by another thread."""
    readers: list[threading.Thread] = []

    def watched(wire: ChatWire, completion: Mapping[str, Any]) -> ModelReply:
        readers.append(threading.current_thread())
        return as_before(wire, completion)

    as_before = ChatWire.read
    monkeypatch.setattr(ChatWire, "read", watched)
    assert len((await read(make(content="x" * 50_000_000))).message.text) == 50_000_000
    [reader] = readers
    assert reader is not threading.current_thread()
