"""Requests to URLs that come from data, over real sockets: judged by address, and sent to the address that was judged."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme

from deuz_workers.core.egress import Address, egress_of
from deuz_workers.errors import EgressRefusedError, ModelError
from deuz_workers.providers import http
from deuz_workers.providers.guarded import GuardedPosts, LookUp, look_up

LOOPBACK = ipaddress.ip_address("127.0.0.1")


@asynccontextmanager
async def https_server(names: list[str], seen: list[str], answer: bytes) -> AsyncGenerator[tuple[int, trustme.CA]]:
    """Its port, and the authority that its certificate for `names` is from; `seen` gets each request's head."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1], authority


def trusting(authority: trustme.CA) -> Callable[[], ssl.SSLContext]:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return lambda: context


def answers(*rounds: list[str]) -> LookUp:
    """A resolver that says something else each time."""
    left = list(rounds)

    async def resolve(host: str, port: int) -> list[Address]:
        return [ipaddress.ip_address(address) for address in (left.pop(0) if len(left) > 1 else left[0])]

    return resolve


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


async def send(posts: GuardedPosts, url: str) -> http.Answered:
    return await posts.post(url, headers={"x-mine": "1"}, body=b"{}", timeout_ms=5_000)


async def test_the_connection_goes_to_the_address_that_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked up once, with the name in `Host` and for the certificate; a second answer of the resolver is never asked for."""
    seen: list[str] = []
    async with https_server(["hook.example"], seen, OK) as (port, authority):
        monkeypatch.setattr(http, "_tls", trusting(authority))
        posts = GuardedPosts(egress_of(["127.0.0.0/8"]), look_up=answers(["127.0.0.1"], ["169.254.169.254"]))
        answered = await send(posts, f"https://hook.example:{port}/in?x=1")
        assert answered.status == 200
        assert seen[0].startswith("POST /in?x=1 HTTP/1.1\r\n")
        assert f"host: hook.example:{port}\r\n" in seen[0].lower()
        with pytest.raises(EgressRefusedError):  # judged again with every request
            await send(posts, f"https://hook.example:{port}/in")
        assert len(seen) == 1


async def test_a_certificate_for_another_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is not enough: whoever sits there has to be who the name says."""
    seen: list[str] = []
    async with https_server(["other.example"], seen, OK) as (port, authority):
        monkeypatch.setattr(http, "_tls", trusting(authority))
        posts = GuardedPosts(egress_of(["127.0.0.1"]), look_up=answers(["127.0.0.1"]))
        with pytest.raises(ModelError):
            await send(posts, f"https://hook.example:{port}/in")
        assert seen == []


async def test_a_redirect_is_an_answer_and_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it leads."""
    seen: list[str] = []
    moved = b"HTTP/1.1 307 Moved\r\nlocation: https://127.0.0.1/x\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n"
    async with https_server(["hook.example"], seen, moved) as (port, authority):
        monkeypatch.setattr(http, "_tls", trusting(authority))
        posts = GuardedPosts(egress_of(["127.0.0.1"]), look_up=answers(["127.0.0.1"]))
        assert await send(posts, f"https://hook.example:{port}/in") == http.Answered(307, 3_000)
        assert len(seen) == 1


async def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """One would look the name up by itself."""
    seen: list[str] = []
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with https_server(["hook.example"], seen, OK) as (port, authority):
        monkeypatch.setattr(http, "_tls", trusting(authority))
        posts = GuardedPosts(egress_of(["127.0.0.1"]), look_up=answers(["127.0.0.1"]))
        assert (await send(posts, f"https://hook.example:{port}/in")).status == 200


async def test_names_are_looked_up_by_the_machine() -> None:
    """`localhost` is what it is, and refused; a name that nobody knows says so."""
    assert LOOPBACK in await look_up("localhost", 443)
    posts = GuardedPosts(egress_of(()))
    with pytest.raises(EgressRefusedError, match="inside a network"):
        await posts.pinned("https://localhost/x")
    with pytest.raises(EgressRefusedError, match="not known"):
        await posts.pinned("https://nobody.invalid/x")


async def test_a_server_that_is_silent_ends_within_the_limit() -> None:
    """Look-up, connection and answer together."""
    with socket.create_server(("127.0.0.1", 0)) as server:  # the system accepts, and nobody ever answers
        port = server.getsockname()[1]
        posts = GuardedPosts(egress_of(["127.0.0.1"]))
        with pytest.raises(ModelError, match="no answer within 50 ms"):
            await posts.post(f"http://127.0.0.1:{port}/", headers={}, body=b"", timeout_ms=50)


@pytest.mark.parametrize("host", ["a..b", ".foo.example", f"{'a' * 64}.example"])
async def test_a_name_that_can_be_none_is_not_known(host: str) -> None:
    """With a label that is empty or too long the codec of names refuses it, and not the resolver."""
    with pytest.raises(EgressRefusedError, match="not known"):
        await GuardedPosts(egress_of(())).pinned(f"https://{host}/x")


async def test_names_whose_servers_are_silent_hold_up_no_thread_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many: commits of long runs and connections to models need those."""
    answered = threading.Event()

    def silent(*_: Any, **__: Any) -> list[Any]:
        answered.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    looks = [asyncio.create_task(look_up(f"{n}.example", 443)) for n in range(40)]
    await asyncio.sleep(0)  # all of them have been asked for
    try:
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(lambda: "saved") == "saved"
    finally:
        answered.set()
    assert await asyncio.gather(*looks) == [[]] * 40
