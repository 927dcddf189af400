"""What all models of a process share of the way to their providers, and what takes the place of a network."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from typing import Any

import pytest

from deuz_workers import Agent, Limits, run_agent
from deuz_workers.core.messages import user
from deuz_workers.errors import (
    ModelRateLimitedError,
    ModelRequestError,
    ModelResponseError,
    ModelStreamBrokenError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers import ChatCompletionsModel, model_from_name
from deuz_workers.providers.http import Timeouts
from deuz_workers.providers.script import reply
from deuz_workers.providers.transport import Answered, SentRequest
from deuz_workers.testing.model_faults import Served, cut, refuse, stall
from deuz_workers.testing.model_server import ModelServer, in_order
from tests.providers.test_faults import RecordingClock
from tests.providers.wires import WIRES

REQUEST = ModelRequest("r1", (user("hi"),), timeout_ms=20_000)


async def test_models_of_a_process_share_their_connections() -> None:
    """Two models of one server, on whichever wire, take one socket one after the other; it is closed with the last of them."""
    with ModelServer(["done"]) as server:
        first, second = (wire.model(server) for wire in (WIRES["chat"], WIRES["responses"]))
        for model in (first, second, first):
            await model.call(REQUEST)
        assert server.accepted == 1
        await first.close()
        await second.call(REQUEST)
        assert (server.accepted, server.open_connections) == (1, 1)
        await second.close()
        server.wait_until(lambda seen: seen.open_connections == 0)


async def test_closing_a_model_cuts_off_no_call() -> None:
    """Who closes it while a call is on its way gives the connections back when that has ended."""
    arrived, release = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def hold(request: object) -> str:
        loop.call_soon_threadsafe(arrived.set)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(release.wait(), loop))
        return "done"

    with ModelServer(hold) as server:
        model = ChatCompletionsModel("m", server.base_url)
        pending = asyncio.ensure_future(model.call(REQUEST))
        await arrived.wait()
        await model.close()
        release.set()
        assert (await pending).message.text == "done"
        server.wait_until(lambda seen: seen.open_connections == 0)


async def test_runs_side_by_side_share_an_agent() -> None:
    """The first to end takes nothing from the others."""
    with ModelServer(lambda request: "a word " * (1 if request.number % 2 else 2_000)) as server:
        agent = Agent("x", model=ChatCompletionsModel("m", server.base_url))
        results = await asyncio.gather(*(run_agent(agent, f"go {number}") for number in range(20)))
        assert {result.status for result in results} == {"completed"}
        assert server.received == 20


async def test_no_cookie_is_sent_back() -> None:
    """What a server sets for one key's requests does not travel with another's."""
    with ModelServer([Served(b"{}", status=400, headers={"Set-Cookie": "who=1; Path=/"})]) as server:
        model = ChatCompletionsModel("m", server.base_url, api_key="sk-1")
        for _ in range(2):
            with pytest.raises(Exception, match="400"):
                await model.call(REQUEST)
        await model.close()
        assert "cookie" not in server.requests[-1].headers


async def test_the_whole_call_has_a_limit_of_the_model_too() -> None:
    """`total_ms` ends a call that the request would wait longer for, retries included; the shorter of both counts."""
    with ModelServer([stall()]) as server:
        model = ChatCompletionsModel("m", server.base_url, timeouts=Timeouts(total_ms=50))
        with pytest.raises(ModelTimeoutError, match="total_ms of its timeouts, 50 ms"):
            await model.call(REQUEST)
        with pytest.raises(ModelTimeoutError, match="the request's timeout_ms, 20 ms"):
            await model.call(ModelRequest("r1", (user("hi"),), timeout_ms=20))
        await model.close()


@pytest.mark.spec("WIR-008")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_call_is_repeated_only_before_its_first_byte(wire: str) -> None:
    """Twice by default, after waits that double with jitter, and as long as the provider asks for, up to half a minute."""
    clock = RecordingClock()
    told: dict[str, Any] = {"clock": clock, "chance": lambda: 0.5}
    with ModelServer(in_order([refuse(429), refuse(429), "done"])) as server:
        model = WIRES[wire].model(server, **told)
        assert (await model.call(REQUEST)).message.text == "done"
        assert clock.slept_ms == [250, 500]
        await model.close()
    with ModelServer(in_order([refuse(429, retry_after="30"), refuse(429, retry_after="31"), "done"])) as server:
        model = WIRES[wire].model(server, **told)
        with pytest.raises(ModelRateLimitedError) as caught:
            await model.call(ModelRequest("r1", (user("hi"),)))
        assert (caught.value.retry_after_ms, server.received) == (31_000, 2)
        assert clock.slept_ms[2:] == [30_062]
        await model.close()
    with ModelServer([cut(reply("hello there"), 100)]) as server:
        model = WIRES[wire].model(server, **told)
        with pytest.raises(ModelStreamBrokenError):
            await model.call(REQUEST)
        assert (server.received, clock.slept_ms[3:]) == (1, [])
        await model.close()


async def test_without_retries_there_is_one_attempt() -> None:
    """`max_retries=0` gives the first failure to the caller."""
    with ModelServer([refuse(503)]) as server:
        model = ChatCompletionsModel("m", server.base_url, max_retries=0)
        with pytest.raises(ModelUnavailableError):
            await model.call(REQUEST)
        await model.close()
        assert server.received == 1


WHOLE = {
    "openai": {"choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}]},
    "openai-responses": {
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hi."}]}],
    },
    "anthropic": {"role": "assistant", "content": [{"type": "text", "text": "Hi."}], "stop_reason": "end_turn"},
    "google": {"candidates": [{"content": {"parts": [{"text": "Hi."}]}, "finishReason": "STOP"}]},
}
"""By prefix of the model's name: what its vendor answers."""


@pytest.mark.spec("WIR-011")
@pytest.mark.parametrize("prefix", WHOLE)
async def test_a_run_fails_over_without_a_network(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first provider is a function that answers 503, the second one that answers; nothing connects anywhere."""

    def refuse_network(*given: object) -> None:
        raise AssertionError(f"somebody wants the network: {given}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse_network)
    monkeypatch.setattr(socket.socket, "connect", refuse_network)
    asked: list[str] = []

    async def down(request: SentRequest) -> Answered:
        asked.append("first")
        return Answered(503, b"{}")

    async def up(request: SentRequest) -> Answered:
        asked.append("second")
        return Answered(200, json.dumps(WHOLE[prefix]).encode())

    first = model_from_name("openai:gpt-first", api_key="sk-1", transport=down, max_retries=0)
    second = model_from_name(f"{prefix}:second", api_key="sk-2", transport=up)
    result = await run_agent(Agent("x", model=first, fallback_models=[second], limits=Limits(max_retries=0)), "go")
    assert (result.status, result.text, asked) == ("completed", "Hi.", ["first", "second"])


@pytest.mark.parametrize("prefix", [name for name in WHOLE if name.startswith("openai")])
async def test_a_provider_is_imitated_without_a_network(prefix: str) -> None:
    """A factory takes a function in place of the network: it sees what would be sent, and its answers are read like any."""
    seen: list[SentRequest] = []

    async def answer(request: SentRequest) -> Answered:
        seen.append(request)
        if len(seen) == 1:
            return Answered(429, b"{}", {"retry-after": "0"})
        return Answered(200, json.dumps(WHOLE[prefix]).encode())

    settings: dict[str, Any] = {"api_key": "sk-1", "transport": answer, "clock": RecordingClock()}
    model = model_from_name(f"{prefix}:gpt", **settings)
    assert (await model.call(REQUEST)).message.text == "Hi."
    await model.close()
    assert [request.url.partition("/v1/")[0] for request in seen] == ["https://api.openai.com"] * 2
    assert (seen[0].headers["authorization"], json.loads(seen[0].body)["model"]) == ("Bearer sk-1", "gpt")


async def test_an_imitated_network_may_break() -> None:
    """What it raises is a broken connection."""

    async def answer(request: SentRequest) -> Answered:
        raise ConnectionResetError

    model = ChatCompletionsModel("m", api_key="k", transport=answer)
    with pytest.raises(ModelStreamBrokenError):
        await model.call(REQUEST)
    await model.close()


@pytest.mark.parametrize("status", [200, 400])
async def test_a_body_that_was_packed_twice_is_not_unpacked(status: int) -> None:
    """A kilobyte of it is gigabytes, all of which the library unpacks before it hands any of it over."""
    packed = gzip.compress(gzip.compress(b"\0" * 4_000_000))
    head = {"content-type": "application/json", "content-encoding": "gzip, gzip"}

    async def answer(request: SentRequest) -> Answered:
        return Answered(status, packed, head)

    model = ChatCompletionsModel("m", "http://nowhere.invalid/v1", transport=answer)
    with pytest.raises(ModelResponseError if status == 200 else ModelRequestError):
        await model.call(REQUEST)
