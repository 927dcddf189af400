"""Ringing workers through the broker: the Celery task `deuz.step` with scope, run id and revision, and nothing else.

The revision gates nothing. Signed, it parks a run whose store went backwards (architecture D16).

Written with kombu alone, so that producers need no Celery application. Messages follow Celery's protocol, version 2
(Celery documentation, internals/protocol).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from deuz_workers.core.change import Bell
from deuz_workers.core.marks import Marks
from deuz_workers.core.names import run_lease_key
from deuz_workers.core.window import Look
from deuz_workers.engine.system_clock import SystemClock
from deuz_workers.ports.runtime import Clock, Ids

if TYPE_CHECKING:
    from kombu import Connection, Producer

    from deuz_workers.app.broker_connection import SteadyChannel

T = TypeVar("T")
STEP_TASK = "deuz.step"
CONNECT_TIMEOUT_S = 2
"""The sweep rings within a second anyway, so a broker that takes longer is not worth waiting for."""
AWAY_MS = 2_000
"""A broker that could not be reached is left alone for so long: steps wait for their bells, and must not wait for it each."""
PREFIX = "deuz."
MARK = "deuz_mark"
"""Header of a message: the bell's revision under the signature of the pool, where it has a secret."""
TELL_AGAIN_MS = 10_000
"""Doorbells that get lost while the broker is away are counted, and logged this often at most."""

log = logging.getLogger(__name__)


def broker_queue(queue: str) -> str:
    """Name at the broker of a queue of ours; the prefix keeps it apart from queues of other applications."""
    return f"{PREFIX}{queue}"


def local_queue(name: str) -> str:
    """Our name of a queue at the broker."""
    return name.removeprefix(PREFIX)


def broker_priority(priority: int) -> int:
    """Of a run's priority (-100 to 100, higher first) as kombu's Redis transport orders its lists: 0, 3 and 6, lowest first."""
    return 3 if priority == 0 else 0 if priority > 0 else 6


class SilentBell:
    """Rings nobody: runs are found by the sweep."""

    async def offer(self, bells: Sequence[Bell], *, spare: bool = False) -> tuple[Bell, ...]:
        """Nothing is left over: without a broker the sweep looks at once for what became due (`SqlStore.ring_ms`)."""
        return ()

    async def has_room(self, queue: str) -> bool:
        """Nobody rings."""
        return False

    async def look(self, queue: str, *, size: int | None = None, apart_ms: int = 0) -> Look | None:
        """None: there is no broker."""
        return None

    async def discard_queue(self, queue: str) -> None:
        """There is none."""


@dataclass(slots=True)
class _Process:
    thread: ThreadPoolExecutor
    connection: Connection | None = None
    producer: Producer | None = None
    away_until_ms: int = 0
    lost: int = 0
    told_ms: int | None = None
    has_scripts: bool = True


class BrokerBell:
    """A `Doorbell` that publishes to the broker at `url`, from a thread of its own in every process.

    Never raises: a broker that cannot be reached is logged as `bell_lost`, and takes nothing.
    """

    def __init__(self, url: str, ids: Ids, clock: Clock, marks: Marks, window: int = 64) -> None:
        """`url` as Celery spells it. `marks` signs the revisions that the bells carry.

        `window`: doorbells that a queue holds at least before others are left to the sweep, which lets it hold more where they
        are taken fast (`core.window`). On Redis and Valkey the queue is looked at and added to in one act. Other brokers run
        no scripts: there the length is asked for first, and as many may be too much as ask in the same moment.
        """
        self._url = url
        self._window = window
        self._marks = marks
        self._ids = ids
        self._clock = clock
        self._processes: dict[int, _Process] = {}

    async def offer(self, bells: Sequence[Bell], *, spare: bool = False) -> tuple[Bell, ...]:
        """Publish as many as fit into the windows of their queues, the first ones; returns the others, all where the broker is
        away. `spare`: also on the places that are kept for the sweep.
        """
        left: list[Bell] = []
        for queue in dict.fromkeys(bell.queue for bell in bells):
            own = [bell for bell in bells if bell.queue == queue]
            taken = await self._work(partial(self._push, queue, own, spare), bells=len(own))
            left += own[taken or 0 :]
        return tuple(left)

    async def has_room(self, queue: str) -> bool:
        """A place of the queue's window is free that everybody may take; False where the broker is away."""
        look = await self.look(queue)
        return look is not None and look.room > 0

    async def look(self, queue: str, *, size: int | None = None, apart_ms: int = 0) -> Look | None:
        """What waits in `queue`; None: the broker cannot be reached.

        `size`: its window is to have. `apart_ms`: whoever asks is told once in so long that it may feed.
        """
        return await self._work(partial(self._look, queue, size, apart_ms))

    async def discard_queue(self, queue: str) -> None:
        """`queue` and what waits in it are gone from the broker, unless that cannot be reached."""
        await self._work(partial(self._delete, queue))

    def close(self) -> None:
        """Connection and thread of this process are gone."""
        process = self._processes.pop(os.getpid(), None)
        if process is not None:
            process.thread.submit(self._disconnect, process)
            process.thread.shutdown()

    def _process(self) -> _Process:
        mine = self._processes.get(os.getpid())
        if mine is None:
            mine = self._processes.setdefault(os.getpid(), _Process(ThreadPoolExecutor(1, "deuz-bell")))
        return mine

    async def _work(self, work: Callable[[_Process, Producer], T], bells: int = 0) -> T | None:
        """What `work` returns in the thread; None: the broker is away, and `bells` more are lost."""
        process = self._process()
        return await asyncio.get_running_loop().run_in_executor(process.thread, self._try, process, work, bells)

    def _try(self, process: _Process, work: Callable[[_Process, Producer], T], bells: int) -> T | None:
        if self._clock.monotonic_ms() < process.away_until_ms:
            process.lost += bells
            return None
        # An idle connection may have been closed by the server, which only a new one can tell from a broker that is away.
        for is_last in (False, True) if process.producer else (True,):
            try:
                return work(process, process.producer or self._connect(process))
            except Exception as error:  # noqa: BLE001 - every transport has errors of its own, and none may end a step
                self._disconnect(process)
                if is_last:
                    process.away_until_ms = self._clock.monotonic_ms() + AWAY_MS
                    if bells:
                        self._tell(process, bells, error)
        return None

    def _push(self, queue: str, bells: Sequence[Bell], spare: bool, process: _Process, producer: Producer) -> int:
        """How many of the bells are in the queue now, the first ones."""
        channel = self._scripted(process, producer)
        if channel is not None:
            with channel.gathering() as messages:
                for bell in bells:
                    self._send(producer, bell)
            try:
                return channel.push(broker_queue(queue), messages, self._window, spare=spare)[0]
            except channel.ResponseError as error:
                self._without_scripts(process, error)
        look = self._count(queue, producer)
        fit = bells[: look.room + (look.spare if spare else 0)]
        for bell in fit:
            self._send(producer, bell)
        return len(fit)

    def _look(self, queue: str, size: int | None, apart_ms: int, process: _Process, producer: Producer) -> Look:
        channel = self._scripted(process, producer)
        if channel is not None:
            try:
                return channel.look(broker_queue(queue), self._window, size, apart_ms)
            except channel.ResponseError as error:
                self._without_scripts(process, error)
        return self._count(queue, producer)

    def _count(self, queue: str, producer: Producer) -> Look:
        """Where no script says it; the window has always the same size there."""
        from kombu.exceptions import ChannelError

        channel: Any = producer.channel
        try:
            return Look(int(channel.queue_declare(queue=broker_queue(queue), passive=True).message_count), self._window)
        except ChannelError:  # nobody has made the queue yet
            return Look(0, self._window)

    def _scripted(self, process: _Process, producer: Producer) -> SteadyChannel | None:
        from deuz_workers.app.broker_connection import SteadyChannel

        channel: Any = producer.channel
        return channel if process.has_scripts and isinstance(channel, SteadyChannel) else None

    def _without_scripts(self, process: _Process, error: Exception) -> None:
        """A user of the server that may not run them; any other answer is raised."""
        from redis.exceptions import NoPermissionError

        if not isinstance(error, NoPermissionError) and "unknown command" not in str(error):
            raise error
        log.warning("bell_unscripted error=%s", type(error).__name__)
        process.has_scripts = False

    def _delete(self, queue: str, process: _Process, producer: Producer) -> None:
        from deuz_workers.app.broker_connection import SteadyChannel

        channel: Any = producer.channel
        if isinstance(channel, SteadyChannel):
            channel.discard(broker_queue(queue))
        else:
            channel.queue_delete(broker_queue(queue))

    def _send(self, producer: Producer, bell: Bell) -> None:
        task_id = self._ids.token()
        body: tuple[Any, ...] = (
            [bell.scope, bell.run_id, bell.revision],
            {},
            dict.fromkeys(("callbacks", "errbacks", "chain", "chord")),
        )
        headers: dict[str, Any] = {
            "lang": "py",
            "task": STEP_TASK,
            "id": task_id,
            "root_id": task_id,
            "parent_id": None,
            "group": None,
            "retries": 0,
            "eta": None,
            "expires": None,
            "timelimit": [None, None],
            "ignore_result": True,
            "argsrepr": "(...)",
            "kwargsrepr": "{}",
            "origin": "deuz",
            "agent": bell.agent,  # for people who watch the workers; nothing is decided by it
        }
        if bell.trace is not None:
            headers["traceparent"] = bell.trace  # for those who trace Celery; ours stands in the row
        if self._marks.secret is not None and bell.revision:
            headers[MARK] = self._marks.write(run_lease_key(bell.scope, bell.run_id), bell.revision)
        producer.publish(
            body,
            exchange="",
            routing_key=broker_queue(bell.queue),
            headers=headers,
            serializer="json",
            priority=broker_priority(bell.priority),
            correlation_id=task_id,
            retry=False,
        )

    def _tell(self, process: _Process, lost: int, error: Exception) -> None:
        process.lost += lost
        now_ms = self._clock.monotonic_ms()
        if process.told_ms is None or now_ms - process.told_ms >= TELL_AGAIN_MS:
            log.warning("bell_lost count=%d error=%s", process.lost, type(error).__name__)
            process.lost, process.told_ms = 0, now_ms

    def _connect(self, process: _Process) -> Producer:
        from deuz_workers.app.broker_connection import SteadyConnection

        options = {
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_timeout": CONNECT_TIMEOUT_S,
            "ack_emulation": False,
            # kombu waits two seconds between attempts by default; a refused connection is known at once
            "max_retries": 1,
            "interval_start": 0,
        }
        connection = SteadyConnection(self._url, connect_timeout=CONNECT_TIMEOUT_S, transport_options=options)
        process.connection = connection
        process.producer = connection.Producer()
        return process.producer

    def _disconnect(self, process: _Process) -> None:
        connection, process.connection, process.producer = process.connection, None, None
        if connection is not None:
            connection.release()


def bell_of(broker_url: str | None, ids: Ids, marks: Marks, window: int) -> BrokerBell | SilentBell:
    return SilentBell() if broker_url is None else BrokerBell(broker_url, ids, SystemClock(), marks, window)
