"""Tools of servers: names, results, entries, the pool."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from deuz_workers import ConfigurationError, McpPool, McpReconnect, McpServer, McpUnavailableError, ToolError
from deuz_workers.ports.mcp import McpClient
from deuz_workers.testing.mcp_client import MemoryMcpServer
from deuz_workers.tools.mcp.mount import Mount
from deuz_workers.tools.mcp.names import namespaces, tool_name
from deuz_workers.tools.mcp.result import value_of
from tests.fake_clock import FakeClock

URL = "http://127.0.0.1:1/mcp"


@pytest.mark.spec("MCN-003")
@pytest.mark.parametrize(
    ("given", "servers", "expected"),
    [
        ([None], ["shop"], [None]),
        (["pay"], ["shop"], ["pay"]),
        ([None, None], ["my shop.v2", None], ["my_shop_v2", "mcp1"]),
        ([None, "pay", None], [None, "shop", "shop"], ["mcp0", "pay", "shop"]),
    ],
)
def test_namespaces(given: list[str | None], servers: list[str | None], expected: list[str | None]) -> None:
    """The one that is named; of several without, the server's name or the place; of a single one, none."""
    assert namespaces(given, servers) == expected


@pytest.mark.spec("MCN-003")
def test_names_of_tools() -> None:
    """The namespace stands before; what providers refuse becomes `_`, and a long name keeps apart from others like it."""
    assert (tool_name(None, "charge"), tool_name("pay", "charge"), tool_name("pay", "a.b c")) == (
        "charge",
        "pay_charge",
        "pay_a_b_c",
    )
    one, other = tool_name("pay", "x" * 80 + "1"), tool_name("pay", "x" * 80 + "2")
    assert (len(one), len(other), one == other) == (64, 64, False)


@pytest.mark.spec("MCX-004")
@pytest.mark.parametrize(
    ("result", "value"),
    [
        ({"content": [{"type": "text", "text": "{}"}], "structuredContent": {"a": None}}, {"a": None}),
        ({"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}, "one\ntwo"),
        ({"content": []}, ""),
        (
            {"content": [{"type": "image", "data": "AA==", "mimeType": "image/png"}]},
            [{"type": "image", "data": "AA==", "mimeType": "image/png"}],
        ),
    ],
)
def test_what_a_result_is(result: dict[str, Any], value: object) -> None:
    """Structured content as it is, else the texts, else the content."""
    assert value_of(result) == value


@pytest.mark.spec("MCX-004")
def test_an_error_result_raises() -> None:
    """With its text, or that there was none; structured content does not hide it."""
    with pytest.raises(ToolError, match="no such order"):
        value_of({"content": [{"type": "text", "text": "no such order"}], "isError": True, "structuredContent": {}})
    with pytest.raises(ToolError, match="did not say why"):
        value_of({"content": [], "isError": True})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"url": URL, "command": "x"},
        {"url": "ftp://x"},
        {"url": URL, "namespace": "a b"},
        {"url": URL, "replay": "always"},
        {"url": URL, "replay": {"a": "never"}},
        {"url": URL, "needs_approval": "charge"},
        {"url": URL, "timeout_ms": 0},
    ],
)
def test_an_entry_that_cannot_be_meant_is_refused(given: dict[str, Any]) -> None:
    """Where it is written, before anything connects."""
    with pytest.raises(ConfigurationError):
        McpServer(**given)


@pytest.mark.spec("CONV-713")
def test_without_the_library_an_entry_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says what to install; a live client needs no library."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'deuz-workers\[mcp\]'"):
        McpServer(url=URL)
    assert McpServer(client=MemoryMcpServer("shop").client()).label == "shop"


def test_a_label_shows_no_secret() -> None:
    """Neither the user part nor query and fragment of a URL, nor headers."""
    server = McpServer(url="https://me:secret@host/mcp?key=secret", headers={"Authorization": "secret"})
    assert (server.label, "secret" in repr(server).replace("me:secret@host/mcp?key=secret", "")) == ("https://host/mcp", False)
    for url in ("https://me:se@cret@host/mcp", "https://host/mcp#secret", "https://host/mcp#a?secret"):
        assert McpServer(url=url).label == "https://host/mcp"


@pytest.mark.spec("MCC-005", "MCI-002")
def test_the_key_is_what_a_connection_is_made_of() -> None:
    """Namespace, replay and approvals are no part of it; everything else is, objects by identity."""
    plain = McpServer(url=URL, headers={"a": "1", "b": "2"})
    same = McpServer(url=URL, headers={"b": "2", "a": "1"}, namespace="n", replay="idempotent", needs_approval=True)
    assert plain.pool_key == same.pool_key
    auth = object()
    others = [
        McpServer(url=URL),
        McpServer(url=URL, headers={"a": "1", "b": "2"}, auth=auth),
        McpServer(url=URL, headers={"a": "1", "b": "2"}, auth=object()),
        McpServer(url=URL, headers={"a": "1", "b": "2"}, protocol="legacy"),
        McpServer(command="x"),
        McpServer(command="x", args=("y",)),
        McpServer(command="x", env={"A": "1"}),
    ]
    assert len({plain.pool_key, *(other.pool_key for other in others)}) == 1 + len(others)
    assert McpServer(url=URL, auth=auth).pool_key == McpServer(url=URL, auth=auth).pool_key


@pytest.mark.spec("MCC-005")
async def test_those_who_ask_at_once_share_one_attempt() -> None:
    """Twenty cold requests are one connect, and one more gets the same connection."""
    shop = MemoryMcpServer("shop")

    async def slowly(server: McpServer) -> McpClient:
        await asyncio.sleep(0)
        return shop.client()

    pool = McpPool(slowly)
    entry = McpServer(url=URL)
    clients = await asyncio.gather(*(pool.borrow(entry) for _ in range(20)))
    assert (shop.counts["connect"], {id(client) for client in clients}) == (1, {id(await pool.borrow(entry))})
    await pool.close()
    assert (shop.counts["close"], pool.open_connections) == (1, 0)


@pytest.mark.spec("MCC-005")
async def test_what_failed_or_closed_is_not_kept() -> None:
    """The next request connects anew."""
    shop = MemoryMcpServer("shop")
    pool, entry = McpPool(shop.connect), McpServer(url=URL)
    shop.is_away = True
    with pytest.raises(McpUnavailableError):
        await pool.borrow(entry)
    shop.is_away = False
    first = await pool.borrow(entry)
    await first.close()
    assert await pool.borrow(entry) is not first
    assert shop.counts["connect"] == 2
    await pool.close()


async def test_one_who_gives_up_takes_nothing_from_the_others() -> None:
    """The attempt goes on for those who still wait."""
    shop, may = MemoryMcpServer("shop"), asyncio.Event()

    async def later(server: McpServer) -> McpClient:
        await may.wait()
        return shop.client()

    pool, entry = McpPool(later), McpServer(url=URL)
    one, other = (asyncio.ensure_future(pool.borrow(entry)) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    may.set()
    assert (await other).is_open
    assert one.cancelled()
    await pool.close()


async def test_a_live_client_is_handed_back() -> None:
    """The pool neither keeps nor closes it."""
    client = MemoryMcpServer("shop").client()
    pool = McpPool()
    assert await pool.borrow(McpServer(client=client)) is client
    await pool.close()
    assert client.is_open


class Waits(FakeClock):
    """Notes what is slept instead of sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[int] = []

    async def sleep_ms(self, ms: int) -> None:
        self.slept.append(ms)


@pytest.mark.spec("MCX-001")
@pytest.mark.parametrize(
    ("reconnect", "away_for", "slept", "reached"),
    [
        (None, 1, [], False),
        (McpReconnect(), 3, [500, 1_000, 2_000], True),
        (McpReconnect(), 9, [500, 1_000, 2_000, 4_000, 8_000], False),
        (McpReconnect(attempts=3, first_ms=20_000), 3, [20_000, 30_000, 30_000], True),
    ],
)
async def test_a_connection_is_made_again_after_ever_longer_waits(
    reconnect: McpReconnect | None, away_for: int, slept: list[int], reached: bool
) -> None:
    """Five times at most, 0.5 s to 30 s; not at all unless its entry says so."""
    shop, clock, left = MemoryMcpServer("shop"), Waits(), [0]
    shop.add("charge", lambda: "charged")

    async def connect(server: McpServer) -> McpClient:
        if left[0]:
            left[0] -= 1
            raise McpUnavailableError("away")
        return shop.client()

    mount = Mount(McpServer(url=URL, reconnect=reconnect), McpPool(connect), clock)
    await mount.read()
    shop.restart()
    left[0] = away_for
    if reached:
        assert await mount.call("charge", {}, False) == {"content": [{"type": "text", "text": "charged"}]}
    else:
        with pytest.raises(ToolError, match="cannot be reached, so charge was not called"):
            await mount.call("charge", {}, False)
    assert (clock.slept, shop.calls["charge"]) == (slept, int(reached))
