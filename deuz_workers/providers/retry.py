"""When a failed model call is sent again by the client itself, and how long it waits before.

Only a call that is known to be unbilled is repeated here: refused connections, 429. Everything that may have been paid for (a
stream cut in the middle, a 5xx, a timeout) goes to the caller, whose next attempt has a reservation of its own;
a repetition inside the client would spend twice what was set aside once. So does a long wait: the caller waits without
occupying a worker.
"""

from __future__ import annotations

from dataclasses import dataclass

from deuz_workers.errors import ModelError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    max_retries: int = 2
    """Repetitions after the first try."""
    first_wait_ms: int = 500
    """Upper end of the first wait; doubled for every further one."""
    longest_backoff_ms: int = 8_000
    longest_wait_ms: int = 30_000
    """What a provider may ask for and still be waited for here."""

    def wait_ms(self, error: ModelError, retries: int, left_ms: float | None, chance: float) -> int | None:
        """How long to wait before the next try, in milliseconds; None: give the error to the caller.

        Args: `retries`, how many there have been. `left_ms`, of the request's timeout, None for no limit. `chance`, a random
        number from 0 to 1: full jitter, so that callers refused together do not come back together.
        """
        if error.retry != "later" or error.billed != "no" or retries >= self.max_retries:
            return None
        backoff_ms = chance * min(self.longest_backoff_ms, self.first_wait_ms * 2**retries)
        asked_ms = error.retry_after_ms
        if asked_ms is not None and asked_ms > self.longest_wait_ms:
            return None
        # Never earlier than asked for; spread behind that moment.
        wait_ms = round(backoff_ms if asked_ms is None else asked_ms + backoff_ms / 4)
        return None if left_ms is not None and wait_ms >= left_ms else wait_ms
