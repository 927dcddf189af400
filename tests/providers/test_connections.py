"""Connections of a client: kept, given back, and never shared between loops or processes."""

from __future__ import annotations

import asyncio
import os
import traceback

import pytest

from deuz_workers.core.messages import user
from deuz_workers.errors import ConfigurationError, ModelAuthenticationError
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.chat.model import ChatCompletionsModel
from deuz_workers.testing.model_server import ModelServer

REQUEST = ModelRequest("r1", (user("hi"),), timeout_ms=20_000)


async def test_two_hundred_calls_take_one_socket() -> None:
    """One call after another reuses the connection: the server has accepted a single one."""
    with ModelServer(["done"]) as server:
        model = ChatCompletionsModel("m", server.base_url)
        for _ in range(200):
            await model.call(REQUEST)
        assert (server.received, server.accepted, server.open_connections) == (200, 1, 1)
        await model.close()
        server.wait_until(lambda seen: seen.open_connections == 0)


async def test_calls_side_by_side_do_not_queue() -> None:
    """Two hundred calls wait at the same time, and all of them are answered."""
    arrived = asyncio.Event()
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def hold(request: object) -> str:
        if server.received == 200:
            loop.call_soon_threadsafe(arrived.set)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(released(), loop))

    async def released() -> str:
        await release.wait()
        return "done"

    with ModelServer(hold) as server:
        model = ChatCompletionsModel("m", server.base_url)
        pending = [asyncio.ensure_future(model.call(REQUEST)) for _ in range(200)]
        await arrived.wait()
        release.set()
        assert {(await call).message.text for call in pending} == {"done"}
        await model.close()


def test_every_loop_has_connections_of_its_own() -> None:
    """One model object through three loops, one after the other, without a word about a closed loop."""
    with ModelServer(["done"]) as server:
        model = ChatCompletionsModel("m", server.base_url)

        async def twice_and_close() -> None:
            await model.call(REQUEST)
            await model.call(REQUEST)
            await model.close()

        for _ in range(3):
            asyncio.run(twice_and_close())
        assert (server.received, server.accepted) == (6, 3)


async def test_a_closed_model_opens_again() -> None:
    """Closing gives connections back; it does not end the model, and closing twice is harmless."""
    with ModelServer(["done"]) as server:
        model = ChatCompletionsModel("m", server.base_url)
        for _ in range(2):
            await model.call(REQUEST)
            await model.close()
            await model.close()
        assert server.accepted == 2


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
async def test_a_forked_process_opens_its_own() -> None:
    """A child that inherits a used model makes connections of its own, and the parent goes on with the old one."""
    with ModelServer(["done"]) as server:
        model = ChatCompletionsModel("m", server.base_url)
        await model.call(REQUEST)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                asyncio.events._set_running_loop(None)
                loop = asyncio.new_event_loop()
                code = 0 if loop.run_until_complete(model.call(REQUEST)).message.text == "done" else 2
            except BaseException:  # noqa: BLE001 - the child must not come back into pytest
                traceback.print_exc()
            os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await model.call(REQUEST)
        assert (server.received, server.accepted) == (3, 2)
        await model.close()


async def test_what_is_sent_beside_the_body() -> None:
    """The key as a bearer token, further headers as given; neither shows in the model's repr."""
    with ModelServer(["done"]) as server:
        model = ChatCompletionsModel("m", server.base_url, api_key="sk-1", headers={"X-Team": "blue"})
        await model.call(REQUEST)
        await model.close()
        headers = server.requests[0].headers
        assert (headers["authorization"], headers["x-team"], headers["content-type"]) == (
            "Bearer sk-1",
            "blue",
            "application/json",
        )
        assert "sk-1" not in repr(model)


async def test_the_key_of_openai_goes_to_openai_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's key is not sent to another server, and its absence is found before anything is sent."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    with ModelServer(["done"]) as server:
        model = ChatCompletionsModel("m", server.base_url)
        await model.call(REQUEST)
        await model.close()
        assert "authorization" not in server.requests[0].headers
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ModelAuthenticationError, match="set OPENAI_API_KEY"):
        await ChatCompletionsModel("gpt").call(REQUEST)


@pytest.mark.parametrize("key", ["sk-é", "sk-1\r\nX: y"])
async def test_a_key_that_no_header_can_carry(key: str) -> None:
    """A typed error that does not repeat the key."""
    with pytest.raises(ModelAuthenticationError) as caught:
        await ChatCompletionsModel("m", "http://localhost:1/v1", api_key=key).call(REQUEST)
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "localhost:8000",
        "ftp://x/v1",
        "https://x/v1?key=hunter2",
        "https://user:hunter2@x/v1",
        "https://x/#hunter2",
        "http://[",
        "http://h:x/v1",
    ],
)
def test_a_base_url_that_is_none_or_carries_a_secret(base_url: str) -> None:
    """A typed error at construction that does not repeat it."""
    with pytest.raises(ConfigurationError) as caught:
        ChatCompletionsModel("m", base_url)
    assert "hunter2" not in str(caught.value)


def test_a_header_that_http_cannot_carry() -> None:
    """A typed error at construction names the header and not its value."""
    with pytest.raises(ConfigurationError, match="X-Key") as caught:
        ChatCompletionsModel("m", "http://localhost:1/v1", headers={"X-Key": "secret\n"})
    assert "secret" not in str(caught.value)
