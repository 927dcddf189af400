"""Requests to URLs that come from data: looked up once, judged, and sent to the very address that was judged."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from deuz_workers.core.egress import Address, Egress, Target
from deuz_workers.core.webhook import LONGEST_WAIT_MS
from deuz_workers.errors import EgressRefusedError, ModelError
from deuz_workers.providers.http import Answered, post_pinned

LookUp = Callable[[str, int], Awaitable[list[Address]]]
LOOK_UPS = 32
"""At the same time, per process. A name server that never answers keeps a thread for many seconds, whoever has given up."""


async def look_up(host: str, port: int) -> list[Address]:
    """By the resolver of the machine. Raises `EgressRefusedError` for a name that is unknown, or that can be none.

    In threads of its own: in those of the loop, which commits of long runs and connections to models need too, a few names
    whose servers do not answer would hold up everybody.
    """
    look = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        found = await asyncio.get_running_loop().run_in_executor(_threads(os.getpid()), look)
    except (OSError, UnicodeError):  # the latter of a label that is empty or too long
        raise EgressRefusedError(f"{host} is not known", code="egress_unknown_host") from None
    return list(dict.fromkeys(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))


@functools.cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Of one process: a fork has none of its parent's."""
    return ThreadPoolExecutor(LOOK_UPS, thread_name_prefix="deuz-look-up")


class GuardedPosts:
    """Sends to where `egress` lets data lead.

    A name is looked up once for each request, and no second look-up can lead elsewhere. Redirects are not followed. Proxies of
    the environment are not used, since they would look the name up again.
    """

    def __init__(self, egress: Egress, *, look_up: LookUp = look_up) -> None:
        self._egress = egress
        self._look_up = look_up

    async def pinned(self, url: str) -> tuple[Target, Address]:
        """Where a request to `url` goes. Raises `EgressRefusedError`."""
        target = self._egress.target(url)
        try:
            addresses: list[Address] = [ipaddress.ip_address(target.host)]
        except ValueError:
            addresses = await self._look_up(target.host, target.port)
        return target, self._egress.check(target, addresses)[0]

    async def post(self, url: str, *, headers: Mapping[str, str], body: bytes, timeout_ms: int) -> Answered:
        """What the server answered. Raises `EgressRefusedError`, and `ModelError` where it cannot be reached in time.

        `timeout_ms` is of the look-up, the connection and the answer together.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                target, address = await self.pinned(url)
                return await post_pinned(
                    target.at(address),
                    authority=target.authority,
                    name=target.host,
                    headers=headers,
                    body=body,
                    most_wait_ms=LONGEST_WAIT_MS,
                )
        except TimeoutError:
            raise ModelError(f"no answer within {timeout_ms} ms", code="timeout") from None
