"""Circuit breakers that a pool shares over Redis or Valkey: who failed for one worker is not called by the others either.

No call of a healthy model waits for the server: what this process saw of it is looked at again in the background, once a
second while the model is called. A process that had no call for some seconds asks first, and so does one that knows of
failures. A server that is away is left alone for a second at a time; until it is back, each process keeps count for itself.

Events, in the log: ``breakers_unreachable`` (`error`; once per outage), ``breaker_opened`` (`model`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from deuz_workers.breakers.memory import MemoryBreakers
from deuz_workers.core.breaker import OPEN_MS, OPENS_AFTER
from deuz_workers.ports.runtime import Clock

FRESH_MS = 1_000
"""What was seen is not looked at again for so long."""
STALE_MS = 5_000
"""Older, it says nothing: the server is asked before a call."""
CALL_TIMEOUT_S = 1.0
AWAY_MS = 1_000
KEEP_MS = 600_000
"""A row of failures that nobody added to for so long is forgotten."""

NOTHING_KNOWN = (RedisError, OSError, TimeoutError)

log = logging.getLogger(__name__)

_NOW = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000) "
FAILED = (
    _NOW
    + """
local failures = math.min(redis.call('HINCRBY', KEYS[1], 'failures', 1), tonumber(ARGV[1]))
redis.call('HSET', KEYS[1], 'failures', failures)
redis.call('HDEL', KEYS[1], 'trying')
if failures >= tonumber(ARGV[1]) then redis.call('HSET', KEYS[1], 'open_until_ms', now + ARGV[2]) end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return failures
"""
)
"""`Breaker.after_failure`, by the server's clock."""
ASKED = (
    _NOW
    + """
local failures = tonumber(redis.call('HGET', KEYS[1], 'failures') or '0')
if failures < tonumber(ARGV[1]) then return {0, failures, 0} end
local open_until = tonumber(redis.call('HGET', KEYS[1], 'open_until_ms') or '0')
if now < open_until then return {open_until - now, failures, 0} end
local trying = redis.call('HINCRBY', KEYS[1], 'tries', 1)
redis.call('HSET', KEYS[1], 'open_until_ms', now + ARGV[2], 'trying', trying)
return {0, failures, trying}
"""
)
"""`Breaker.asked`, by the server's clock: of all processes one call tries. Third, its number; 0: it is none that tries."""
UNTRIED = """
if redis.call('HGET', KEYS[1], 'trying') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'open_until_ms', 0)
redis.call('HDEL', KEYS[1], 'trying')
return 1
"""
"""`Breaker.untried`."""


@dataclass(slots=True)
class _View:
    """What a process saw of one model."""

    seen_ms: int
    fails: bool
    is_looked_at: bool = False
    trying: int = 0
    """Number of the call of this process that was let pass as the one that tries; else 0."""


@dataclass(slots=True, eq=False)
class _Process:
    """Of one process; a forked child makes its own."""

    memory: MemoryBreakers
    client: redis.Redis | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards making the client."""
    views: dict[str, _View] = field(default_factory=dict[str, _View])
    away_until_ms: int | None = None


class RedisBreakers:
    """Implements `Breakers`. Nothing is connected before the first call."""

    def __init__(self, url: str, clock: Clock, *, prefix: str = "deuz:") -> None:
        """`url` as redis-py spells it."""
        self._url = url
        self._clock = clock
        self._prefix = prefix
        self._processes: dict[int, _Process] = {}

    def __repr__(self) -> str:
        return "RedisBreakers(...)"  # the URL may hold a password

    async def wait_ms(self, model: str) -> int:
        mine, now_ms = self._mine(), self._clock.monotonic_ms()
        view = mine.views.get(model)
        if view is not None and not view.fails and now_ms - view.seen_ms < STALE_MS:
            if now_ms - view.seen_ms >= FRESH_MS and not view.is_looked_at:
                view.is_looked_at = True
                asyncio.get_running_loop().run_in_executor(None, self._look, mine, model, view)
            return 0
        answer = await asyncio.to_thread(self._evaluate, mine, ASKED, model, OPENS_AFTER, OPEN_MS)
        if answer is None:
            return await mine.memory.wait_ms(model)
        wait_ms, failures, trying = int(answer[0]), int(answer[1]), int(answer[2])
        if not failures:
            mine.memory.heard(model)
        if view is not None and wait_ms:
            trying = view.trying  # of the call that tries, which may be this process's own
        mine.views[model] = _View(self._clock.monotonic_ms(), failures > 0, trying=trying)
        return wait_ms

    async def untried(self, model: str) -> None:
        mine = self._mine()
        await mine.memory.untried(model)
        view = mine.views.get(model)
        if view is not None and view.trying:
            trying, view.trying = view.trying, 0
            await asyncio.to_thread(self._evaluate, mine, UNTRIED, model, trying)

    async def failed(self, model: str) -> None:
        mine = self._mine()
        await mine.memory.failed(model)
        failures = await asyncio.to_thread(self._evaluate, mine, FAILED, model, OPENS_AFTER, OPEN_MS, KEEP_MS)
        mine.views[model] = _View(self._clock.monotonic_ms(), fails=True)
        if failures == OPENS_AFTER:
            log.warning("breaker_opened model=%s", model)

    def heard(self, model: str) -> None:
        mine = self._mine()
        mine.memory.heard(model)
        view = mine.views.get(model)
        if view is None or not view.fails:
            return
        view.fails, view.trying = False, 0
        threading.Thread(target=self._reset, args=(mine, model), name="deuz-breaker", daemon=True).start()

    async def close(self) -> None:
        mine = self._processes.pop(os.getpid(), None)
        if mine is not None and mine.client is not None:
            with contextlib.suppress(*NOTHING_KNOWN):
                await asyncio.to_thread(mine.client.close)

    def _mine(self) -> _Process:
        pid = os.getpid()
        return self._processes.get(pid) or self._processes.setdefault(pid, _Process(MemoryBreakers(self._clock)))

    def _look(self, mine: _Process, model: str, view: _View) -> None:
        """See how the model stands, without being the call that tries."""
        found = self._send(mine, "HGET", self._key(model), "failures")
        view.seen_ms, view.is_looked_at = self._clock.monotonic_ms(), False
        if isinstance(found, str) and found.isdigit():
            view.fails = int(found) > 0

    def _reset(self, mine: _Process, model: str) -> None:
        self._send(mine, "DEL", self._key(model))

    def _evaluate(self, mine: _Process, script: str, model: str, *arguments: int) -> Any:
        return self._send(mine, "EVAL", script, 1, self._key(model), *arguments)

    def _key(self, model: str) -> str:
        return f"{self._prefix}breaker:{quote(model, safe=':')}"

    def _send(self, mine: _Process, *command: Any) -> Any:
        """The answer; None where there is none."""
        if mine.away_until_ms is not None and self._clock.monotonic_ms() < mine.away_until_ms:
            return None
        try:
            answer: Any = self._connected(mine).execute_command(*command)
        except NOTHING_KNOWN as error:
            if isinstance(error, ResponseError) and "WRONGTYPE" in str(error):
                return None  # of this model alone; the server is there for the others
            if mine.away_until_ms is None:
                log.warning("breakers_unreachable error=%s", type(error).__name__)
            mine.away_until_ms = self._clock.monotonic_ms() + AWAY_MS
            return None
        mine.away_until_ms = None
        return answer

    def _connected(self, mine: _Process) -> redis.Redis:
        with mine.lock:
            if mine.client is None:
                mine.client = redis.Redis.from_url(
                    self._url,
                    socket_timeout=CALL_TIMEOUT_S,
                    socket_connect_timeout=CALL_TIMEOUT_S,
                    retry=Retry(NoBackoff(), 0),
                    protocol=2,
                    decode_responses=True,
                )
            return mine.client
