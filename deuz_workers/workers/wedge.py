"""A process whose step will not end (architecture D8).

Past its limit a step's lease lapses and its run goes on elsewhere, but its slot here stays taken, and where it blocks the event
loop, so do all others. The process lets the rest end and leaves; a supervisor, or Celery for a prefork child, starts another.

Event: ``worker_wedged`` (`labels` of the steps that did not end, `blocked`: whether they keep the loop).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading

from deuz_workers.app.runtime import Runtime

LOOK_S = 1.0
"""How often it is looked at, and how long a loop may take to tick before it counts as blocked."""
EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h."""

log = logging.getLogger(__name__)


class WedgeWatch:
    """Looks from a thread of its own, which no step can block. Made on the loop that it watches."""

    def __init__(self, runtime: Runtime, *, grace_ms: int, is_child: bool) -> None:
        """`grace_ms`: for the steps that can still end. `is_child`: a prefork child, which ends without its parent."""
        self._runtime = runtime
        self._grace_ms = grace_ms
        self._is_child = is_child
        self._loop = asyncio.get_running_loop()
        self._since_ms: int | None = None

    def start(self) -> None:
        """Looks from now on, until the loop is closed."""
        threading.Thread(target=self._run, name="deuz-wedge", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while not self._loop.is_closed():
            pause.wait(LOOK_S)
            self._look()

    def _look(self) -> None:
        holds = self._runtime.heartbeat.holds
        wedged = [hold for hold in holds if hold.is_past_limit]
        if not wedged:
            return
        now_ms = self._runtime.gear.clock.monotonic_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
            if not self._is_child:
                os.kill(os.getpid(), signal.SIGTERM)  # take nothing more, as if a person had asked for it
        blocked = not self._ticks()
        if blocked or len(wedged) == len(holds) or now_ms - self._since_ms >= self._grace_ms:
            log.error("worker_wedged labels=%s blocked=%s", ";".join(hold.label for hold in wedged), blocked)
            logging.shutdown()
            os._exit(EXIT_CODE)

    def _ticks(self) -> bool:
        ticked = threading.Event()
        try:
            self._loop.call_soon_threadsafe(ticked.set)
        except RuntimeError:  # closed meanwhile: nothing to wait for
            return True
        return ticked.wait(LOOK_S)
