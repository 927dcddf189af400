"""Announcements of builds on Redis or Valkey: what can be run by whom, for as long as somebody says so."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from deuz_workers.core.build import Build
from deuz_workers.leases.redis import client_url

SCRIPT = Path(__file__).with_name("builds.lua").read_text(encoding="utf-8")
CALL_TIMEOUT_S = 2.0
MAX_CONNECTIONS = 2
"""Per process; a call takes a fifth of a millisecond."""
KEEP_MS = 3_600_000
"""Doorbells that a build left behind are thrown away when nobody of it has been there for so long."""

log = logging.getLogger(__name__)


class RedisBuilds:
    """A `Builds`, and the announcements of one process. Belongs to the event loop that uses it first.

    No call raises when the server is away: nothing is announced or found then, which `builds_unreachable` says once per outage.
    """

    def __init__(self, url: str, build: Build, process: str, *, prefix: str = "deuz:") -> None:
        """`url` of any kind that leases on Redis take. `process` is new for every process. Nothing is connected yet."""
        self._build = build
        self._process = process
        self._prefix = prefix
        self._is_away = False
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            client_url(url),
            max_connections=MAX_CONNECTIONS,
            timeout=CALL_TIMEOUT_S,
            socket_timeout=CALL_TIMEOUT_S,
            socket_connect_timeout=CALL_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=True,
        )
        self._client = redis.asyncio.Redis(connection_pool=pool)
        self._script = self._client.register_script(SCRIPT)

    async def announce(self, queues: Sequence[str], ttl_ms: int) -> bool:
        """This process takes from `queues` and can run what its build can, for `ttl_ms` from now.

        True if at one of them it is the first of its build that is alive.
        """
        is_first = False
        for queue in queues:
            answer = await self._ask("announce", self._build.queue(queue), self._process, ttl_ms, queue, *self._build.members)
            is_first = is_first or answer == [1]
        return is_first

    async def withdraw(self, queues: Sequence[str]) -> None:
        """This process takes from `queues` no longer; others of its build do."""
        for queue in queues:
            await self._ask("withdraw", self._build.queue(queue), self._process)

    async def find(self, queue: str, member: str) -> str | None:
        answer = await self._ask("find", queue, member)
        return answer[0] if answer and answer[0] not in ("", self._build.queue(queue)) else None

    async def forgotten(self) -> list[str]:
        """Queues of builds that nobody has announced for an hour; each is told to one caller."""
        return list(await self._ask("forgotten", KEEP_MS) or ())

    async def close(self) -> None:
        """The connections are closed."""
        await self._client.aclose()
        await self._client.connection_pool.aclose()

    async def _ask(self, *arguments: str | int) -> list[Any] | None:
        """The answer of the script; None when there is none."""
        try:
            answer: list[Any] = await self._script(args=[self._prefix, *arguments])
        except (RedisError, OSError, TimeoutError) as error:
            if not self._is_away:
                log.warning("builds_unreachable error=%s", type(error).__name__)
            self._is_away = True
            return None
        self._is_away = False
        return answer
