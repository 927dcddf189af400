"""A worker whose consuming thread does not come back: it waits for an answer that never comes, or was blocked by a library.

No doorbell is taken then, and no signal ends it. What is in flight comes to its end, and the process leaves.

Event: ``worker_stuck`` (`silent_ms`, `steps`).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import Final

from deuz_workers.app.runtime import Runtime
from deuz_workers.workers.drain import DrainFlag, Urgency
from deuz_workers.workers.pulse import Pulse

EXIT_CODE: Final = 75
"""EX_TEMPFAIL of sysexits.h: another one may fare better."""
LOOK_S = 1.0
LATE_MS = 10_000
"""By which the consuming thread may be late without harm: it closes broken connections, and sends where nobody answers."""

log = logging.getLogger(__name__)


class StuckWatch:
    """Looks from a thread of its own, in every process that executes steps.

    A drain that somebody asked for is none of its business: that may take as long as its tools do.
    """

    def __init__(
        self, runtime: Runtime, flag: DrainFlag, pulse: Pulse, *, silence_ms: int, is_child: bool, steps_block: bool
    ) -> None:
        """`is_child`: a prefork child, whose parent consumes. `steps_block`: the consuming thread executes steps itself."""
        self._runtime = runtime
        self._flag = flag
        self._pulse = pulse
        self._silence_ms = silence_ms + LATE_MS
        self._parent = os.getppid() if is_child else None
        self._steps_block = steps_block
        self._busy_ms = runtime.gear.clock.monotonic_ms()
        self._ended = threading.Event()

    @property
    def is_leaving(self) -> bool:
        return self._pulse.is_leaving

    def start(self) -> None:
        """Looks from now on, until `stop`."""
        threading.Thread(target=self._run, name="deuz-stuck", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        pulse, now_ms = self._pulse, self._runtime.gear.clock.monotonic_ms()
        if self._flag.urgency != Urgency.NONE and not pulse.is_leaving:
            return
        steps = self._runtime.engine.running_steps
        if self._steps_block and steps:
            self._busy_ms = now_ms
        silent_ms = min(pulse.silent_ms(now_ms), now_ms - self._busy_ms)
        if silent_ms < self._silence_ms:
            return
        if not pulse.is_leaving:
            log.error("worker_stuck silent_ms=%d steps=%d", silent_ms, steps)
            pulse.leave()
            self._flag.ask(Urgency.DRAIN)
        if not steps:
            logging.shutdown()
            if self._parent is not None and os.getppid() == self._parent:
                os.kill(self._parent, signal.SIGKILL)
            os._exit(EXIT_CODE)
