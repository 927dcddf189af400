"""Ringing workers through the broker: the Celery task `deuz.step` with scope, run id and revision, and nothing else.

The revision gates nothing. Signed, it parks a run whose store went backwards (architecture D16).

Written with kombu alone, so that producers need no Celery application. Messages follow Celery's protocol, version 2
(Celery documentation, internals/protocol).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deuz_workers.core.change import Bell
from deuz_workers.core.marks import Marks
from deuz_workers.core.names import run_lease_key
from deuz_workers.engine.system_clock import SystemClock
from deuz_workers.ports.runtime import Clock, Ids

if TYPE_CHECKING:
    from kombu import Connection, Producer

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

    async def ring(self, bells: Sequence[Bell]) -> None:
        """Nothing happens."""

    async def offer(self, bells: Sequence[Bell]) -> tuple[Bell, ...]:
        """Nothing is left over: without a broker the sweep looks at once for what became due (`SqlStore.ring_ms`)."""
        return ()

    async def has_room(self, queue: str) -> bool:
        """Nobody rings."""
        return False

    async def waiting(self, queue: str) -> int | None:
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


class BrokerBell:
    """A `Doorbell` that publishes to the broker at `url`, from a thread of its own in every process.

    Never raises: a broker that cannot be reached is logged as `bell_lost`, and the sweep rings again.
    """

    def __init__(self, url: str, ids: Ids, clock: Clock, marks: Marks, window: int = 64) -> None:
        """`url` as Celery spells it. `marks` signs the revisions that the bells carry.

        `window`: doorbells that a queue holds before others are left to the sweep, which lets it hold more where they are
        taken fast (`core.window`). Between two that ask at once there is no order, so it is met but for their number.
        """
        self._url = url
        self._window = window
        self._marks = marks
        self._ids = ids
        self._clock = clock
        self._processes: dict[int, _Process] = {}

    async def ring(self, bells: Sequence[Bell]) -> None:
        """Publish one message per bell; returns when the broker has them or they are given up."""
        if bells:
            process = self._process()
            await asyncio.get_running_loop().run_in_executor(process.thread, self._publish, process, tuple(bells))

    async def offer(self, bells: Sequence[Bell]) -> tuple[Bell, ...]:
        """Publish as many as fit into the windows of their queues; returns the others, all where the broker is away."""
        room = {queue: self._window - await self._depth(queue) for queue in {bell.queue for bell in bells}}
        rung: list[Bell] = []
        left: list[Bell] = []
        for bell in bells:
            (rung if room[bell.queue] > 0 else left).append(bell)
            room[bell.queue] -= 1
        await self.ring(rung)
        return tuple(left)

    async def has_room(self, queue: str) -> bool:
        """The queue is shorter than its window; False where the broker is away."""
        return await self._depth(queue) < self._window

    async def _depth(self, queue: str) -> int:
        waiting = await self.waiting(queue)
        return self._window if waiting is None else waiting

    async def waiting(self, queue: str) -> int | None:
        """Doorbells that nobody has taken from `queue` yet; None: the broker cannot be reached."""
        process = self._process()
        return await asyncio.get_running_loop().run_in_executor(process.thread, self._count, process, queue)

    async def discard_queue(self, queue: str) -> None:
        """`queue` and what waits in it are gone from the broker, unless that cannot be reached."""
        process = self._process()
        await asyncio.get_running_loop().run_in_executor(process.thread, self._delete, process, queue)

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

    def _publish(self, process: _Process, bells: Sequence[Bell]) -> None:
        if self._clock.monotonic_ms() < process.away_until_ms:
            process.lost += len(bells)
            return
        # An idle connection may have been closed by the server, which only a new one can tell from a broker that is away.
        for is_last in (False, True) if process.producer else (True,):
            try:
                producer = process.producer or self._connect(process)
                for bell in bells:
                    self._send(producer, bell)
            except Exception as error:  # noqa: BLE001 - every transport has errors of its own, and none may end a step
                self._disconnect(process)
                if is_last:
                    process.away_until_ms = self._clock.monotonic_ms() + AWAY_MS
                    self._tell(process, len(bells), error)
            else:
                return

    def _count(self, process: _Process, queue: str) -> int | None:
        from kombu.exceptions import ChannelError

        if self._clock.monotonic_ms() < process.away_until_ms:
            return None
        for _ in range(2):  # the second time on a new connection
            try:
                producer = process.producer or self._connect(process)
                channel: Any = producer.channel
                return int(channel.queue_declare(queue=broker_queue(queue), passive=True).message_count)
            except ChannelError:  # nobody has made the queue yet
                return 0
            except Exception:  # noqa: BLE001 - see `_publish`
                self._disconnect(process)
        process.away_until_ms = self._clock.monotonic_ms() + AWAY_MS
        return None

    def _delete(self, process: _Process, queue: str) -> None:
        try:
            channel: Any = (process.producer or self._connect(process)).channel
            channel.queue_delete(broker_queue(queue))
        except Exception:  # noqa: BLE001 - see `_publish`
            self._disconnect(process)

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
