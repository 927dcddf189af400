"""Connections to real servers of the official library: over standard input and output, and streamable HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Literal

import pytest

from deuz_workers import (
    Agent,
    McpClient,
    McpConnectionLost,
    McpSampling,
    McpServer,
    McpUnavailableError,
    MockModel,
    ToolError,
    connect_mcp,
    create_execution_context,
    run_agent,
)
from deuz_workers.core.receipts import fold_receipts
from deuz_workers.providers.script import call, calls
from deuz_workers.store import open_store
from deuz_workers.tools.mcp import connection
from deuz_workers.tools.mcp.result import value_of
from tests.mcp.shop import ROOT, Shop, environment, is_alive, until

TOOLS = ["ask", "can", "die", "fail", "learn", "lookup", "say", "wait"]
Protocol = Literal["auto", "legacy"]


@pytest.fixture(params=["stdio-auto", "http-auto", "http-legacy"])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Shop]:
    """A server; over HTTP it is running. `auto`: the newest version that both know; `legacy`: the last with a handshake."""
    how, _, protocol = request.param.partition("-")
    made = Shop(tmp_path, how, protocol)
    if made.how == "http":
        await made.start()
    yield made
    made.stop()


async def opened(shop: Shop, **given: Any) -> McpClient:
    return await connect_mcp(shop.server(connect_timeout_ms=60_000, **{"protocol": shop.protocol, **given}))


async def test_tools_are_listed_and_called(shop: Shop) -> None:
    """As the server defines them; results come back as they are, whatever is null in them."""
    client = await opened(shop)
    tools = {tool["name"]: tool for tool in await client.list_tools()}
    assert (sorted(tools), client.name, client.is_open) == (TOOLS, "shop", True)
    assert tools["lookup"]["description"] == "Price of an item."
    assert tools["lookup"]["inputSchema"]["required"] == ["item"]
    looked = await client.call_tool("lookup", {"item": "hat"})
    assert value_of(looked) == {"item": "hat", "price": 3, "note": None}
    assert value_of(await client.call_tool("say", {"text": "hi"})) == "hi"
    with pytest.raises(ToolError, match="no such order"):
        value_of(await client.call_tool("fail", {}))
    with pytest.raises(ToolError):
        value_of(await client.call_tool("nothing", {}))
    many = await asyncio.gather(*(client.call_tool("say", {"text": str(n)}) for n in range(20)))
    assert [value_of(one) for one in many] == [str(n) for n in range(20)]
    await client.close()
    assert not client.is_open
    with pytest.raises(McpConnectionLost) as lost:
        await client.call_tool("say", {"text": "late"})
    assert (lost.value.was_sent, shop.calls["say"]) == (False, 21)


async def test_a_change_is_told(shop: Shop) -> None:
    """Whoever asked hears of it, until they leave."""
    client = await opened(shop)
    told, heard = asyncio.Event(), list[str]()
    leave = client.on_tools_changed(told.set)
    client.on_tools_changed(lambda: heard.append("changed"))()
    await until(lambda: client.tells_changes or shop.protocol == "legacy")  # this server promises nothing there, and tells
    told.clear()
    await client.call_tool("learn", {})
    async with asyncio.timeout(30):
        await told.wait()
    assert "refund" in [tool["name"] for tool in await client.list_tools()]
    assert heard == []
    leave()
    await client.close()


async def test_a_call_that_is_cancelled_leaves_the_connection(shop: Shop) -> None:
    """The next one is answered."""
    client = await opened(shop)
    waiting = asyncio.ensure_future(client.call_tool("wait", {}))
    await until(lambda: shop.calls["wait"] == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert value_of(await client.call_tool("say", {"text": "still here"})) == "still here"
    await client.close()


@pytest.mark.spec("FR-30")
async def test_a_server_that_dies_during_a_call(shop: Shop) -> None:
    """The call was sent, so nobody knows what it did; the connection is closed, and nothing else of the process is harmed."""
    client = await opened(shop)
    with pytest.raises((McpConnectionLost, ToolError)) as lost:
        await client.call_tool("die", {})
    if isinstance(lost.value, McpConnectionLost):
        assert lost.value.was_sent
    assert shop.calls["die"] == 1
    await client.close()


@pytest.mark.spec("FR-30")
async def test_a_session_that_the_server_forgot(tmp_path: Path) -> None:
    """It was started anew between two calls: the second certainly never began, and a new connection has it."""
    shop = Shop(tmp_path, "http")
    await shop.start()
    client = await opened(shop, protocol="legacy")
    assert value_of(await client.call_tool("say", {"text": "one"})) == "one"
    shop.stop()
    await shop.start()
    with pytest.raises(McpConnectionLost) as lost:
        await client.call_tool("say", {"text": "two"})
    assert (lost.value.was_sent, client.is_open, shop.calls["say"]) == (False, False, 1)
    again = await opened(shop, protocol="legacy")
    assert value_of(await again.call_tool("say", {"text": "two"})) == "two"
    await again.close()
    await client.close()
    shop.stop()


@pytest.mark.spec("FR-30")
@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_a_call_to_a_port_that_nobody_listens_at_never_began(tmp_path: Path, protocol: Protocol) -> None:
    """So it may be made again."""
    shop = Shop(tmp_path, "http", protocol)
    await shop.start()
    client = await opened(shop)
    assert value_of(await client.call_tool("say", {"text": "one"})) == "one"
    await until(lambda: client.tells_changes or shop.protocol == "legacy")
    shop.stop()
    with pytest.raises(McpConnectionLost) as lost:
        await client.call_tool("say", {"text": "hi"})
    assert (lost.value.was_sent, client.is_open) == (False, False)
    await client.close()


async def test_the_end_of_a_process_is_noticed(tmp_path: Path) -> None:
    """Without a call: the connection is closed, and the next call knows that it was not sent."""
    shop = Shop(tmp_path, "stdio")
    client = await opened(shop)
    shop.kill()
    await until(lambda: not client.is_open)
    with pytest.raises(McpConnectionLost) as lost:
        await client.call_tool("say", {"text": "hi"})
    assert not lost.value.was_sent
    await client.close()


@pytest.mark.spec("MCX-001")
@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_a_server_that_falls_silent_is_noticed(tmp_path: Path, protocol: Protocol) -> None:
    """It is asked now and then whether it is there, if its entry says so; while it answers, the connection stays."""
    shop = Shop(tmp_path, "stdio", protocol)
    client = await opened(shop, keep_alive_ms=300)
    assert value_of(await client.call_tool("say", {"text": "hi"})) == "hi"
    await asyncio.sleep(1)
    assert client.is_open
    os.kill(shop.pid, signal.SIGSTOP)
    await until(lambda: not client.is_open)
    await client.close()
    assert not is_alive(shop.pid)


async def test_a_process_ends_with_its_connection(tmp_path: Path) -> None:
    """It was started for it, and is gone when `close` returns."""
    shop = Shop(tmp_path, "stdio")
    client = await opened(shop)
    pid = shop.pid
    assert is_alive(pid)
    await client.close()
    assert not is_alive(pid)


@pytest.mark.parametrize("what", ["port", "program", "silence", "nonsense"])
async def test_a_server_that_cannot_be_reached(tmp_path: Path, what: str) -> None:
    """A typed error that names it and what is wrong, whichever way; nothing is left running."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        if what == "silence":
            silent.listen()
        entries = {
            "port": McpServer(url=f"http://127.0.0.1:{port}/mcp"),
            "silence": McpServer(url=f"http://127.0.0.1:{port}/mcp", connect_timeout_ms=200),
            "program": McpServer(command=str(tmp_path / "nothing")),
            "nonsense": McpServer(command="/bin/echo", args=("hello",)),
        }
        with pytest.raises(McpUnavailableError, match=r"MCP server '.*' (cannot be reached|did not answer)"):
            await connect_mcp(entries[what])
    left = [task for task in asyncio.all_tasks() if task.get_name() == "deuz-mcp" and not task.done()]
    assert left == []


@pytest.mark.spec("MCX-003")
async def test_what_is_not_configured_is_not_declared(tmp_path: Path) -> None:
    """A server sees the capabilities of the functions that its entry has, and no others."""

    async def answer(*given: Any) -> Any:
        raise AssertionError

    shop = Shop(tmp_path, "stdio")
    for given, able in (({}, ""), ({"elicitation": answer}, "elicitation"), ({"roots": answer}, "roots")):
        client = await opened(shop, **given)
        assert value_of(await client.call_tool("can", {})) == able
        await client.close()


@pytest.mark.spec("MCS-005")
async def test_a_server_asks_a_model(tmp_path: Path) -> None:
    """Within the context that its entry names; a refusal is an error for the server."""
    store = f"sqlite:///{tmp_path}/runs.db"
    shop = Shop(tmp_path, "stdio")
    asked = {"question": "How much?", "tokens": 100}
    sampling = McpSampling(MockModel(["forty-two"]), create_execution_context(), store)
    client = await opened(shop, protocol="legacy", sampling=sampling)
    assert value_of(await client.call_tool("ask", asked)) == "mock:scripted: forty-two"
    await client.close()
    sampling = McpSampling(MockModel(["forty-two"]), create_execution_context(allowed_models=["other"]), store)
    client = await opened(shop, protocol="legacy", sampling=sampling)
    with pytest.raises(ToolError, match="does not allow the model"):
        await client.call_tool("ask", asked)
    await client.close()


@pytest.mark.spec("MCO-002")
async def test_a_result_that_misses_its_declared_schema_is_a_failed_call(tmp_path: Path) -> None:
    """Structured content that is not there, or is not what the server declares: a receipt `failed`, which the model reads, and
    a connection that goes on."""
    entry = McpServer(command=sys.executable, args=("-m", "tests.mcp.careless"), cwd=str(ROOT), env=environment())
    model = MockModel([calls(call("missing"), call("misfit"), call("good")), "done"])
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    result = await run_agent(Agent("x", model=model, mcp=[entry]), "go", run_id="r", store=store)
    loaded = await store.load("default", "r")
    assert loaded is not None
    stages = {receipt.tool: receipt.stage for receipt in fold_receipts(loaded.receipts).values()}
    parts = {part.name: part for message in result.messages for part in message.tool_results}
    assert (result.status, stages) == ("completed", {"missing": "failed", "misfit": "failed", "good": "completed"})
    assert [parts[name].is_error for name in ("missing", "misfit", "good")] == [True, True, False]
    assert all("cannot be used" in parts[name].text for name in ("missing", "misfit"))
    await store.close()


async def test_a_list_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many pages."""
    monkeypatch.setattr(connection, "MOST_PAGES", 0)
    client = await opened(Shop(tmp_path, "stdio"))
    with pytest.raises(McpUnavailableError, match="without an end"):
        await client.list_tools()
    await client.close()


IMPORTED = """
import asyncio, sys, threading
from deuz_workers import McpServer, McpUnavailableError, connect_mcp

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "mcp.client":
            seen.append(threading.current_thread() is threading.main_thread())

async def main():
    try:
        await connect_mcp(McpServer(command="/there/is/none"))
    except McpUnavailableError:
        seen.append("unavailable")

seen = []
sys.meta_path.insert(0, Watch())
asyncio.run(main())
print(seen)
"""


async def test_the_library_is_imported_beside_the_loop() -> None:
    """It takes long, and a worker has other steps to go on with."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", IMPORTED, cwd=Path(__file__).parents[2], stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.decode().strip() == "[False, 'unavailable']"
