"""Keeps the leases of this process alive, from a thread that no event loop and no tool can block.

One thread renews all leases of the process in one call, three times per TTL, over a connection of its own. It tells a
holder when its lease went to somebody else, and stops vouching for a step past its limit, so that a wedged one does not
live for ever. A provider that cannot be reached is no loss: it makes leases `suspected` after a TTL, and nothing else.

Events, in the log as a name and key-values:

========================  ====================================================================
``lease_lost``            `key`, `label`; told by the provider
``lease_limit_passed``    `key`, `label`; once per limit, the lease lapses from now on
``leases_unconfirmed``    `count`, `reason`; once per outage
``leases_confirmed``      `count`, `after_ms`; the end of the outage
``heartbeat_failed``      `error`; a defect, renewals go on
``loop_blocked`` ...      see :mod:`deuz_workers.engine.loop_watch`
========================  ====================================================================
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from deuz_workers.engine.hold import Callback, Hold
from deuz_workers.engine.loop_watch import LoopWatch
from deuz_workers.errors import ConfigurationError, LeaseStoreUnavailableError
from deuz_workers.ports.leases import Lease, LeaseProvider, LeaseRenewer
from deuz_workers.ports.runtime import Clock

BEATS_PER_TTL = 3
RETRIES_PER_TTL = 10
"""After a beat without an answer, so that a short outage ends well before the TTL does."""
WAITS_PER_TTL = 9
"""A beat on a new connection waits for the network up to three times, and must be over when the next one is due."""
LOOK_MS = 500
"""How often a watched event loop is looked at; every look wakes it."""
STOP_TIMEOUT_S = 5.0
"""For the thread to end; a beat that takes longer is left to its own timeout."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Here:
    """The heartbeat in one process. A forked child gets its own: locks, threads and connections do not cross a fork."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards the collections and `thread`; never held while waiting for the provider."""
    beating: threading.Lock = field(default_factory=threading.Lock)
    """One beat at a time, since a renewer is not for two threads. Guards the fields below `renewer`."""
    holds: dict[int, Hold] = field(default_factory=dict[int, Hold])
    watches: list[LoopWatch] = field(default_factory=list[LoopWatch])
    thread: threading.Thread | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    woken: threading.Event = field(default_factory=threading.Event)
    """The thread looks at what changed before its time."""
    renewer: LeaseRenewer | None = None
    silent_since_ms: int | None = None


class Heartbeat:
    """Renews what it is given with `hold` until `drop`. Callbacks are called from its thread and must return at once.

    `ttl_ms` of every lease held. The thread starts with `start` or the first `hold` in a process. With ``threaded=False``
    there is none, and whoever drives a virtual clock calls `beat` three times per TTL, or `beat_in_time` again and again.
    """

    def __init__(self, leases: LeaseProvider, ttl_ms: int, clock: Clock, *, threaded: bool = True) -> None:
        self._leases = leases
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._threaded = threaded
        self._processes: dict[int, _Here] = {}

    def start(self) -> None:
        """The thread of this process runs; nothing happens if it did."""
        here = self._here()
        with here.lock:
            if not self._threaded or here.thread is not None:
                return
            here.stopping = threading.Event()  # its own, so that one which is slow to end cannot come back to life
            here.thread = threading.Thread(target=self._run, args=(here, here.stopping), name="deuz-heartbeat", daemon=True)
            here.thread.start()

    def stop(self) -> None:
        """The thread of this process has ended and its connection is closed; leases still held are not renewed any more."""
        here = self._here()
        with here.lock:
            thread, here.thread = here.thread, None
            here.stopping.set()
            here.woken.set()
        if thread is not None:
            thread.join(STOP_TIMEOUT_S)
        with here.beating:
            if here.renewer is not None:
                here.renewer.close()
                here.renewer = None

    def hold(self, lease: Lease, *, limit_ms: int, on_lost: Callback, on_cancel: Callback, label: str) -> Hold:
        """Vouch for `lease` from now on, for `limit_ms` or until `Hold.extend`.

        `on_lost` is called once, when the provider says that the lease went to somebody else. `on_cancel` is called once
        per cancel signal, each of which only points at a row: a forged one must not silence the next. Either may still come
        while `drop` returns. Raises ConfigurationError for a lease whose TTL is shorter than the heartbeat's.
        """
        if lease.ttl_ms < self._ttl_ms:
            raise ConfigurationError(
                f"lease {lease.key} has a TTL of {lease.ttl_ms} ms, too short for a heartbeat made for {self._ttl_ms} ms; "
                "claim it with the heartbeat's TTL"
            )
        hold = Hold(lease, self._clock, limit_ms=limit_ms, on_lost=on_lost, on_cancel=on_cancel, label=label)
        here = self._here()
        with here.lock:
            here.holds[id(hold)] = hold
        self.start()
        return hold

    def drop(self, hold: Hold) -> None:
        """Vouch for it no longer; call it before the release. Nothing happens if it was dropped already."""
        here = self._here()
        with here.lock:
            here.holds.pop(id(hold), None)

    @property
    def holds(self) -> Sequence[Hold]:
        """What is held in this process."""
        here = self._here()
        with here.lock:
            return list(here.holds.values())

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Log when `loop` has not ticked for a second, with the labels of what is held; until it is closed."""
        here = self._here()
        with here.lock:
            here.watches.append(LoopWatch(loop, self._clock, lambda: [hold.label for hold in self.holds]))
        here.woken.set()
        self.start()

    def beat(self) -> bool:
        """Renew every lease within its limit, once, and call back; False when the provider gave no answer."""
        here = self._here()
        with here.beating:
            vouched = [hold for hold in self.holds if hold.state != "lost" and not self._is_past_limit(hold)]
            if not vouched:
                return True
            sent_ms = self._clock.monotonic_ms()
            if here.renewer is None:
                here.renewer = self._leases.renewer(timeout_ms=max(1, self._ttl_ms // WAITS_PER_TTL))
            try:
                answers = here.renewer.renew([hold.to_renew for hold in vouched])
            except LeaseStoreUnavailableError as error:
                if here.silent_since_ms is None:
                    here.silent_since_ms = sent_ms
                    log.warning("leases_unconfirmed count=%d reason=%s", len(vouched), error.message)
                return False
            if here.silent_since_ms is not None:
                log.warning("leases_confirmed count=%d after_ms=%d", len(vouched), sent_ms - here.silent_since_ms)
                here.silent_since_ms = None
            # one that was dropped meanwhile may have been released before its renewal came: its answer means nothing
            told = [
                (hold, hold.told(answer, sent_ms))
                for hold, answer in zip(vouched, answers, strict=True)
                if id(hold) in here.holds
            ]
        for hold, callback in told:
            if callback is not None:
                self._call(hold, callback)
        return True

    def beat_in_time(self) -> int:
        """Beat once, never raises an `Exception`; milliseconds from its beginning until the next beat is due."""
        try:
            answered = self.beat()
        except Exception as error:  # noqa: BLE001 - a thread that ended would lose every lease of the process
            log.error("heartbeat_failed error=%s", type(error).__name__)
            answered = False
        return self._ttl_ms // (BEATS_PER_TTL if answered else RETRIES_PER_TTL)

    def _is_past_limit(self, hold: Hold) -> bool:
        if hold.limit_just_passed():
            log.warning("lease_limit_passed key=%s label=%s", hold.lease.key, hold.label)
        return hold.is_past_limit

    def _call(self, hold: Hold, callback: Callback) -> None:
        if hold.state == "lost":
            log.warning("lease_lost key=%s label=%s", hold.lease.key, hold.label)
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - one holder's defect must not cost the others their leases
            log.error("heartbeat_failed error=%s", type(error).__name__)

    def _run(self, here: _Here, stopping: threading.Event) -> None:
        next_beat_ms = self._clock.monotonic_ms() + self._ttl_ms // BEATS_PER_TTL
        while True:
            wait_ms = next_beat_ms - self._clock.monotonic_ms()
            if here.watches:
                wait_ms = min(wait_ms, LOOK_MS)
            here.woken.wait(max(0, wait_ms) / 1000)
            here.woken.clear()  # before the look below: a stop that comes now is seen by it, or wakes the next wait
            if stopping.is_set():
                return
            for watch in [watch for watch in here.watches if not watch.look()]:
                here.watches.remove(watch)
            started_ms = self._clock.monotonic_ms()
            if started_ms >= next_beat_ms:
                next_beat_ms = started_ms + self.beat_in_time()

    def _here(self) -> _Here:
        return self._processes.get(os.getpid()) or self._processes.setdefault(os.getpid(), _Here())
