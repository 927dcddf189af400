"""A client against a real server that fails in every way it can."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deuz_workers.core.limits import MAX_RETRY_AFTER_MS
from deuz_workers.core.messages import user
from deuz_workers.errors import (
    ModelAuthenticationError,
    ModelContextOverflowError,
    ModelError,
    ModelNotFoundError,
    ModelRateLimitedError,
    ModelRequestError,
    ModelResponseError,
    ModelStreamBrokenError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from deuz_workers.ports.model import ModelReply, ModelRequest
from deuz_workers.providers.chat.model import ChatCompletionsModel
from deuz_workers.providers.http import Timeouts
from deuz_workers.providers.retry import RetryPolicy
from deuz_workers.providers.script import ScriptedReply, call, calls, reply
from deuz_workers.providers.wire_model import WireModel
from deuz_workers.testing.model_faults import (
    BEFORE_HEADERS,
    Framing,
    Served,
    cut,
    garbage,
    mistyped,
    refuse,
    reset,
    slowly,
    stall,
)
from deuz_workers.testing.model_server import ModelServer, ReceivedRequest, Script, in_order
from tests.providers.wires import WIRES

KEY = "sk-Very-Secret-Key-123"
PROMPT = "the prompt that nobody may read"
TURN = calls(call("pay", amount=1250, to="é"), call("pay", amount=7), text="Paying.")
ONE_TRY = RetryPolicy(max_retries=0)
AT_ONCE = RetryPolicy(max_retries=2, first_wait_ms=0)


@asynccontextmanager
async def talking(script: Script, wire: str = "chat", **settings: Any) -> AsyncGenerator[tuple[ModelServer, WireModel]]:
    """A server with that script, and a model that talks to it."""
    with ModelServer(script) as server:
        model = WIRES[wire].model(server, api_key=KEY, **settings)
        try:
            yield server, model
        finally:
            await model.close()


def asked(**settings: Any) -> ModelRequest:
    return ModelRequest("r1", (user(PROMPT),), **settings)


async def failure(
    served: Served, wire: str = "chat", *, retry: RetryPolicy = ONE_TRY, timeouts: Timeouts | None = None
) -> ModelError:
    """The error of a call that is answered like this."""
    async with talking([served], wire, retry=retry, timeouts=timeouts or Timeouts()) as (_, model):
        with pytest.raises(ModelError) as caught:
            await model.call(asked(timeout_ms=20_000))
    error = caught.value
    for text in (str(error), repr(error), repr(error.fields)):
        assert KEY not in text
        assert PROMPT not in text
    return error


@pytest.mark.spec("FR-27")
@pytest.mark.parametrize("framing", ["chunked", "close"])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_cut_at_any_byte_yields_no_half_call(wire: str, framing: Framing) -> None:
    """Whatever byte of a stream with text, a thought and two tool calls is the last one, the call fails as unavailable, no call
    is made of it, and what was heard of the text is its beginning.

    Where the end of the connection is the only framing, a cut behind the finish reason cannot be told from an end: the reply
    is taken then, and it is whole, because the finish reason comes after all arguments.
    """
    stream = WIRES[wire].short_stream
    finished = stream.index(WIRES[wire].finished)
    whole = (await one_reply(Served(stream), wire)).message
    assert [use.arguments for use in whole.tool_uses] == [{"usd": 1250, "to": "é"}, {"usd": 7}]
    assert whole.text == "Paying."
    replies: dict[int, ModelReply] = {}
    failures: dict[int, ModelUnavailableError] = {}
    async with talking(lambda request: cut(stream, request.number - 1, framing=framing), wire, retry=ONE_TRY) as (_, model):
        for at in range(len(stream)):
            heard: list[str] = []
            try:
                replies[at] = await model.call(asked(timeout_ms=20_000), heard.append)
            except ModelUnavailableError as error:
                failures[at] = error
            assert "Paying.".startswith("".join(heard))
            assert at not in replies or "".join(heard) == "Paying."
    assert {error.billed for error in failures.values()} == {"unknown"}
    assert all(at > finished and answer.message == whole for at, answer in replies.items())
    assert not replies or framing == "close"


async def one_reply(scripted: ScriptedReply | Served, wire: str = "chat", **settings: Any) -> ModelReply:
    async with talking([scripted], wire, **settings) as (_, model):
        return await model.call(asked(timeout_ms=20_000))


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 5, 8, 13, 1000])
@pytest.mark.parametrize("wire", WIRES)
async def test_slow_pieces_of_any_size(piece_bytes: int, wire: str) -> None:
    """Where the network cuts a reply makes no difference to it."""
    scripted = calls(call("pay", to="\N{GRINNING FACE}"), text="Héllo")
    assert await one_reply(slowly(scripted, piece_bytes=piece_bytes, delay_ms=0), wire) == await one_reply(scripted, wire)


@pytest.mark.spec("WIR-007")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("served", "kind", "billed"),
    [
        (refuse(400), ModelRequestError, "no"),
        (refuse(400, code="context_length_exceeded"), ModelContextOverflowError, "no"),
        (refuse(404), ModelRequestError, "no"),
        (refuse(404, code="model_not_found"), ModelNotFoundError, "no"),
        (refuse(413), ModelRequestError, "no"),
        (refuse(422), ModelRequestError, "no"),
        (refuse(302), ModelRequestError, "no"),
        (refuse(402), ModelRequestError, "no"),
        (refuse(401, message=KEY), ModelAuthenticationError, "no"),
        (refuse(403, code=KEY), ModelAuthenticationError, "no"),
        (refuse(429), ModelRateLimitedError, "no"),
        (refuse(503), ModelUnavailableError, "unknown"),
        (refuse(529), ModelUnavailableError, "unknown"),
        (refuse(500, message=PROMPT), ModelUnavailableError, "unknown"),
        (refuse(502, code=PROMPT), ModelUnavailableError, "unknown"),
        (refuse(504), ModelUnavailableError, "unknown"),
        (refuse(409), ModelUnavailableError, "unknown"),
        (refuse(408), ModelTimeoutError, "unknown"),
        (Served(b"<html>no JSON</html>", status=500), ModelUnavailableError, "unknown"),
        (cut(b'{"choices":', 5), ModelStreamBrokenError, "unknown"),
        (Served(b'{"choices":'), ModelResponseError, "unknown"),
        (Served(b'{"error":"x"}', status=500, cut_at=3), ModelUnavailableError, "unknown"),
        (reset(), ModelStreamBrokenError, "unknown"),
        (reset(TURN, 0), ModelStreamBrokenError, "unknown"),
        (reset(TURN, 300), ModelStreamBrokenError, "unknown"),
        (cut(TURN, BEFORE_HEADERS), ModelStreamBrokenError, "unknown"),
        (garbage(), ModelResponseError, "unknown"),
        (garbage(b"data: {not json}\n\n"), ModelResponseError, "unknown"),
        (garbage(b"no event at all"), ModelStreamBrokenError, "unknown"),
        (mistyped(TURN), ModelResponseError, "unknown"),
        (mistyped(TURN, "text/event-stream-not"), ModelResponseError, "unknown"),
        (mistyped(TURN, "application/json"), ModelResponseError, "unknown"),
        (Served(b"\x1f\x8b junk", headers={"Content-Encoding": "gzip"}), ModelResponseError, "unknown"),
    ],
    ids=lambda value: f"{value.status}" if isinstance(value, Served) else getattr(value, "__name__", str(value)),
)
async def test_every_failure_has_its_error(served: Served, kind: type[ModelError], billed: str, wire: str) -> None:
    """Each failure is one error of the family that says whether it was billed and may be tried again, and repeats neither key
    nor prompt."""
    error = await failure(served, wire)
    assert type(error) is kind
    assert error.billed == billed
    assert error.retry == ("never" if issubclass(kind, ModelRequestError | ModelAuthenticationError) else "later")


@pytest.mark.parametrize("code", ["insufficient_quota", "credit_balance_exhausted", "project_spend_limit_exceeded"])
async def test_an_empty_account_is_not_waited_for(code: str) -> None:
    """A 429 about money is not transient: one try, and a code that says what to do."""
    async with talking([refuse(429, code=code)], retry=AT_ONCE) as (server, model):
        with pytest.raises(ModelRequestError, match="add credit") as caught:
            await model.call(asked())
        assert (caught.value.code, caught.value.retry, server.received) == ("insufficient_quota", "never", 1)


@pytest.mark.parametrize(
    ("headers", "asked_ms"),
    [
        ({"Retry-After": "7"}, 7_000),
        ({"Retry-After": "0.25"}, 250),
        ({"retry-after-ms": "1500", "Retry-After": "9"}, 1_500),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "nan"}, None),
        ({"retry-after-ms": "nan", "Retry-After": "2"}, 2_000),
        ({"Retry-After": "1e300"}, MAX_RETRY_AFTER_MS),
        ({"retry-after-ms": "1e308"}, MAX_RETRY_AFTER_MS),
        ({"Retry-After": "1796028260"}, MAX_RETRY_AFTER_MS),
        ({"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}, MAX_RETRY_AFTER_MS),
        ({"Retry-After": "Fri, 31 Dec 9999 23:59:59 -0000"}, MAX_RETRY_AFTER_MS),
        ({"Retry-After": "Mon, 01 Jan 0001 00:00:00 +1400"}, 0),
        ({"Retry-After": "Fri, 99 Dec 99999 99:99:99 GMT"}, None),
        ({}, None),
    ],
)
async def test_what_the_provider_asks_to_wait(headers: dict[str, str], asked_ms: int | None) -> None:
    """Seconds, fractions, milliseconds and dates are understood, up to an hour; nonsense is not."""
    assert (await failure(Served(b"{}", status=429, headers=headers))).retry_after_ms == asked_ms


class RecordingClock:
    """Remembers what was waited for, and waits for nothing."""

    def __init__(self) -> None:
        self.slept_ms: list[int] = []

    def monotonic_ms(self) -> int:
        return 0

    def unix_ms(self) -> int:
        return 0

    async def sleep_ms(self, ms: int) -> None:
        self.slept_ms.append(ms)


async def test_a_stream_that_ends_well_and_says_nothing_is_no_reply() -> None:
    """Neither of the two wires has a reply without an item or a choice."""
    said = {
        "chat": b"data: {}\n\ndata: [DONE]\n\n",
        "responses": b'data: {"type":"response.completed","response":{"output":[]}}\n\n',
    }
    for wire, stream in said.items():
        assert type(await failure(garbage(stream), wire)) is ModelResponseError


async def test_unbilled_failures_are_tried_again_with_jitter(caplog: pytest.LogCaptureFixture) -> None:
    """Refusals are repeated at most twice, later each time and not before the moment that the provider asked for."""
    clock = RecordingClock()
    script = in_order([refuse(429), refuse(429, retry_after="2"), "done"])
    with caplog.at_level(logging.INFO, "deuz_workers"):
        async with talking(script, clock=clock, chance=lambda: 0.5) as (server, model):
            assert (await model.call(asked())).message.text == "done"
            assert server.received == 3
    assert clock.slept_ms == [250, 2_125]
    assert [record.message for record in caplog.records] == ["model_call_retried"] * 2
    assert not any(KEY in str(vars(record)) or PROMPT in str(vars(record)) for record in caplog.records)


async def test_retries_end() -> None:
    """After the last repetition the caller gets the error itself."""
    async with talking([refuse(429)], retry=AT_ONCE) as (server, model):
        with pytest.raises(ModelRateLimitedError):
            await model.call(asked())
        assert server.received == 3


@pytest.mark.parametrize("served", [refuse(500), refuse(503), refuse(529), reset(), cut(TURN, 200), garbage()])
async def test_what_may_be_billed_is_not_repeated_here(served: Served) -> None:
    """One request only: whoever reserved the money decides about the next."""
    async with talking([served], retry=AT_ONCE) as (server, model):
        with pytest.raises(ModelError) as caught:
            await model.call(asked())
        assert (caught.value.billed, server.received) == ("unknown", 1)


async def test_a_long_wait_belongs_to_the_caller() -> None:
    """Asked to wait beyond the policy, or beyond the request's own limit, the client gives up at once and says how long."""
    clock = RecordingClock()
    async with talking([refuse(429, retry_after="60")], clock=clock) as (_, model):
        with pytest.raises(ModelRateLimitedError) as caught:
            await model.call(asked())
        assert caught.value.retry_after_ms == 60_000
    async with talking([refuse(429, retry_after="5")], clock=clock) as (_, model):
        with pytest.raises(ModelRateLimitedError):
            await model.call(asked(timeout_ms=4_000))
    assert clock.slept_ms == []


async def test_a_refused_connection_is_unbilled() -> None:
    """Nothing listens: nothing was sent."""
    with ModelServer(["x"]) as server:
        base_url = server.base_url
    model = ChatCompletionsModel("m", base_url, retry=ONE_TRY)
    with pytest.raises(ModelUnavailableError, match="cannot be reached") as caught:
        await model.call(asked())
    assert caught.value.billed == "no"
    await model.close()


@pytest.mark.parametrize(
    ("served", "timeouts"),
    [
        (stall(), Timeouts(first_byte_ms=50)),
        (stall(TURN, 0), Timeouts(between_chunks_ms=50)),
        (stall(TURN, 500), Timeouts(between_chunks_ms=50)),
        (stall(garbage().content, 5), Timeouts(between_chunks_ms=50)),
    ],
    ids=["before the first byte", "after the headers", "in the middle", "in a body"],
)
async def test_a_silent_server_is_left(served: Served, timeouts: Timeouts) -> None:
    """Silence ends each phase at the limit of its own, and the connection is closed."""
    async with talking([served], retry=ONE_TRY, timeouts=timeouts) as (server, model):
        with pytest.raises(ModelTimeoutError, match="50 ms") as caught:
            await model.call(asked())
        assert caught.value.billed == "unknown"
        server.wait_until(lambda seen: seen.open_connections == 0)


async def test_the_whole_call_has_a_limit() -> None:
    """A server that keeps talking is left at the request's `timeout_ms` all the same."""
    endless = slowly(reply("word " * 2_000), piece_bytes=8, delay_ms=5)
    async with talking([endless], retry=ONE_TRY) as (server, model):
        with pytest.raises(ModelTimeoutError, match="timeout_ms"):
            await model.call(asked(timeout_ms=100))
        server.wait_until(lambda seen: seen.open_connections == 0)


async def test_a_server_that_does_not_know_stream_options() -> None:
    """It is asked again without them, at once, and remembered to be of that kind."""

    def answer(request: ReceivedRequest) -> Served | str:
        return refuse(400, message="unknown field: stream_options") if "stream_options" in request.body else "done"

    async with talking(answer, retry=ONE_TRY) as (server, model):
        for _ in range(2):
            got = await model.call(asked())
            assert (got.message.text, got.usage) == ("done", None)
        assert ["stream_options" in request.body for request in server.requests] == [True, False, False]


async def test_a_server_that_answers_a_stream_request_whole() -> None:
    """The reply is the same, and the listener hears the text in one piece."""
    heard: list[str] = []
    async with talking(["done"], stream=False) as (_, model):
        whole = await model.call(asked(), heard.append)
    assert heard == ["done"]
    assert whole == await one_reply(reply("done"))


async def test_missing_usage_is_unknown() -> None:
    """The reply is good; what it used nobody said."""
    answer = await one_reply(reply("done", usage=None))
    assert (answer.message.text, answer.usage) == ("done", None)


@pytest.mark.parametrize("make", [lambda: stall(), lambda: stall(TURN, 300), lambda: slowly(TURN, piece_bytes=1, delay_ms=50)])
async def test_cancelling_closes_the_socket(make: Callable[[], Served]) -> None:
    """Before the headers and in the middle of a stream: the server sees the client leave, and the call ends cancelled."""
    async with talking([make()]) as (server, model):
        pending = asyncio.ensure_future(model.call(asked()))
        await asyncio.to_thread(server.wait_until, lambda seen: seen.received == 1)
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending
        server.wait_until(lambda seen: seen.open_connections == 0)


async def test_the_next_call_after_any_failure_succeeds() -> None:
    """One client through cuts, resets, garbage and refusals: every second call is answered well."""
    faults = [cut(TURN, 100), reset(), garbage(), refuse(500), mistyped(TURN), reset(TURN, 40)]

    def answer(request: ReceivedRequest) -> Served | str:
        return "fine" if request.number % 2 == 0 else faults[request.number // 2]

    async with talking(answer, retry=ONE_TRY) as (server, model):
        for _ in faults:
            with pytest.raises(ModelError):
                await model.call(asked())
            assert (await model.call(asked())).message.text == "fine"
        assert server.open_connections <= 1
