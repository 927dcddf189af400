"""Live parts over Redis or Valkey: one capped, expiring stream per run that somebody reads.

Nothing here is in the path of a step. Executors append to a list in memory; a thread of the process sends what has gathered,
at most 20 times a second and in one entry per run, and only of runs of which a reader has said that it reads them. A server
that is away, slow or full costs parts, which are dropped and counted.

Events, in the log as a name and key-values: ``live_unreachable`` (`error`; once per outage), ``live_back`` (`dropped`; parts
that were put meanwhile), ``live_overflow`` (`run`, `dropped`), ``live_odd_key`` (`run`; its key holds no stream). What parts
say is in no log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from deuz_workers.core.live import LivePart, encode_parts, joined
from deuz_workers.core.names import run_lease_key
from deuz_workers.ports.runtime import Clock

Name = tuple[str, str]
"""Scope and run id."""

INTERVAL_S = 0.05
"""Between two sendings: at most 20 entries a second and run, from one process."""
CALL_TIMEOUT_S = 2.0
AWAY_MS = 1_000
"""A server that gave no answer is left alone for so long."""
CLOSE_S = 1.0
"""For the last entries of a process that ends."""

MOST_ENTRIES = 256
"""Per run, older ones are trimmed: ten seconds and more for a reader that lost its connection."""
KEEP_MS = 60_000
"""After its last entry a stream is gone: it holds content, and nobody needs it any more."""
MAX_ENTRY_CHARS = 64_000
"""What is more waits for the next entry; so one run takes at most 16 MB of the server."""
MAX_VALUE_BYTES = 16_000
"""Raw results above it are read from the store by whoever shows them."""
MOST_CHARS = 1_000_000
"""Per run, of what waits to be sent."""
MOST_RUNS = 5_000
"""Of which something waits, per process."""
PART_CHARS = 200
"""What a part that is no text counts for; raw results are there anyway, in the store's memory of the run."""

NOTHING_KNOWN = (RedisError, OSError, TimeoutError)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Backlog:
    """What waits of one run."""

    parts: list[LivePart] = field(default_factory=list[LivePart])
    chars: int = 0
    dropped: int = 0

    def add(self, part: LivePart) -> None:
        chars = len(str(part.data.get("text", ""))) + PART_CHARS
        if self.chars + chars > MOST_CHARS:
            self.dropped += 1
            return
        self.parts.append(part)
        self.chars += chars


@dataclass(slots=True, eq=False)
class _Process:
    """The sender of one process; a forked child makes its own."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards `waiting`, `lost` and `thread`; never held while waiting for the server."""
    waiting: dict[Name, _Backlog] = field(default_factory=dict[Name, _Backlog])
    lost: int = 0
    """Parts that were dropped since the server was reached last."""
    woken: threading.Event = field(default_factory=threading.Event)
    ending: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    client: redis.Redis | None = None
    odd: set[Name] = field(default_factory=set[Name])
    """Runs whose keys hold something else than a stream."""
    is_away: bool = False
    away_until_ms: int = 0


def holds_something_else(error: ResponseError) -> bool:
    """The key of one run is of another type: a fact about that key, and none about the server."""
    return str(error).startswith("WRONGTYPE")


class LiveKeys:
    """What the keys of a run are called. `prefix` begins them."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def stream(self, name: Name) -> str:
        return f"{self._prefix}live:{run_lease_key(*name)}"

    def wish(self, name: Name) -> str:
        """There while somebody reads the run."""
        return f"{self._prefix}live-wish:{run_lease_key(*name)}"


class RedisLive:
    """A `LiveSink`. Nothing is connected before the first part; the thread starts with it."""

    def __init__(self, url: str, clock: Clock, *, prefix: str = "deuz:") -> None:
        """`url` as redis-py spells it."""
        self._url = url
        self._clock = clock
        self._keys = LiveKeys(prefix)
        self._processes: dict[int, _Process] = {}

    def __repr__(self) -> str:
        return "RedisLive(...)"  # the URL may hold a password

    def wants(self, scope: str, run_id: str) -> bool:
        """A reader may be anywhere, and is asked for when something is sent."""
        return True

    def put(self, scope: str, run_id: str, *parts: LivePart) -> None:
        mine = self._processes.get(os.getpid()) or self._processes.setdefault(os.getpid(), _Process())
        with mine.lock:
            backlog = mine.waiting.get((scope, run_id))
            if backlog is None:
                if len(mine.waiting) >= MOST_RUNS:
                    mine.lost += len(parts)
                    return
                backlog = mine.waiting[scope, run_id] = _Backlog()
            for part in parts:
                backlog.add(part)
            if mine.thread is None:
                mine.thread = threading.Thread(target=self._serve, args=(mine,), name="deuz-live", daemon=True)
                mine.thread.start()
        if not mine.woken.is_set():
            mine.woken.set()

    def close(self) -> None:
        """What waited is sent if the server takes it within a second, and the thread of this process has ended."""
        mine = self._processes.pop(os.getpid(), None)
        if mine is None:
            return
        mine.ending.set()
        mine.woken.set()
        if mine.thread is not None:
            mine.thread.join(CLOSE_S)

    def _serve(self, mine: _Process) -> None:
        is_last = False
        while not is_last:
            mine.woken.wait()
            is_last = mine.ending.is_set()
            mine.woken.clear()
            with mine.lock:
                taken, mine.waiting = mine.waiting, {}
            try:
                self._send(mine, taken, is_last)
            except Exception as error:  # noqa: BLE001 - a defect here costs these parts and not all later ones
                log.error("live_failed error=%s", type(error).__name__)
            mine.ending.wait(INTERVAL_S)
        if mine.client is not None:
            with contextlib.suppress(*NOTHING_KNOWN):
                mine.client.close()

    def _send(self, mine: _Process, taken: dict[Name, _Backlog], is_last: bool) -> None:
        names = list(taken)
        if not names:
            return
        if self._clock.monotonic_ms() < mine.away_until_ms:
            self._lose(mine, taken)
            return
        try:
            client = mine.client = mine.client or self._connect()
            wishes: Any = client.mget([self._keys.wish(name) for name in names])
            wanted = {name: taken[name] for name, wish in zip(names, wishes, strict=True) if wish is not None}
            if wanted:
                self._add(mine, client, wanted, is_last)
        except NOTHING_KNOWN as error:
            self._lose(mine, taken)
            if not mine.is_away:
                log.warning("live_unreachable error=%s", type(error).__name__)
            mine.is_away = True
            mine.away_until_ms = self._clock.monotonic_ms() + AWAY_MS
            if mine.client is not None:
                mine.client.close()
                mine.client = None
            return
        if mine.is_away:
            with mine.lock:
                dropped, mine.lost = mine.lost, 0
            log.warning("live_back dropped=%d", dropped)
            mine.is_away = False

    def _add(self, mine: _Process, client: redis.Redis, wanted: dict[Name, _Backlog], is_last: bool) -> None:
        pipeline = client.pipeline(transaction=False)
        sent: list[tuple[Name, int]] = []
        for name, backlog in wanted.items():
            parts = list(joined(backlog.parts))
            if backlog.dropped:
                log.warning("live_overflow run=%s dropped=%d", name[1], backlog.dropped)
                parts.append(LivePart("dropped", data={"count": backlog.dropped}))
            key, texts = self._keys.stream(name), encode_parts(parts, max_value_bytes=MAX_VALUE_BYTES)
            fits = len(texts) if is_last else _fitting(texts)
            self._put_back(mine, name, parts[fits:])
            fields = [field for at, text in enumerate(texts[:fits]) for field in (str(at), text)]
            pipeline.execute_command("XADD", key, "MAXLEN", MOST_ENTRIES, "*", *fields)
            pipeline.pexpire(key, KEEP_MS)
            sent.append((name, fits))
        answers = pipeline.execute(raise_on_error=False)
        self._count_refused(mine, sent, answers[::2])

    def _count_refused(self, mine: _Process, sent: Sequence[tuple[Name, int]], answers: Sequence[Any]) -> None:
        """What it refused of a run whose key holds something else than a stream is lost alone; raises whatever else it said."""
        for (name, count), answer in zip(sent, answers, strict=True):
            if not isinstance(answer, ResponseError):
                mine.odd.discard(name)
                continue
            if not holds_something_else(answer):
                raise answer
            if name not in mine.odd:
                log.warning("live_odd_key run=%s", name[1])
            mine.odd.add(name)
            with mine.lock:
                mine.lost += count

    def _put_back(self, mine: _Process, name: Name, parts: Sequence[LivePart]) -> None:
        """Ahead of what has come since, for the next entry."""
        if not parts:
            return
        with mine.lock:
            newer = mine.waiting.pop(name, _Backlog())
            mine.waiting[name] = backlog = _Backlog(dropped=newer.dropped)
            for part in (*parts, *newer.parts):
                backlog.add(part)
        mine.woken.set()

    def _lose(self, mine: _Process, taken: dict[Name, _Backlog]) -> None:
        with mine.lock:
            mine.lost += sum(len(backlog.parts) + backlog.dropped for backlog in taken.values())

    def _connect(self) -> redis.Redis:
        return redis.Redis.from_url(
            self._url,
            max_connections=1,
            socket_timeout=CALL_TIMEOUT_S,
            socket_connect_timeout=CALL_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=True,
        )


def _fitting(texts: Sequence[str]) -> int:
    """How many of them one entry takes: one at least."""
    chars = 0
    for at, text in enumerate(texts):
        chars += len(text)
        if chars > MAX_ENTRY_CHARS and at:
            return at
    return len(texts)
