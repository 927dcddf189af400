"""The circuit breaker of a model: after failures in a row it is left alone for a while, then tried by one call (FOV-016)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deuz_workers.core.transient import TransientKind, transient_kind
from deuz_workers.errors import ModelError

OPENS_AFTER = 5
"""Failures in a row."""
OPEN_MS = 30_000
"""For so long no call is sent; then one is, and as long again nobody else's until it has an answer."""
COUNTED: frozenset[TransientKind] = frozenset(("no-connection", "timeout", "server-error", "overload", "broken-stream"))
"""What says that nobody is there. A 429 does not: somebody answered."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """Of one model. Times are of the clock of whoever keeps it, in milliseconds."""

    failures: int = 0
    open_until_ms: int = 0

    @property
    def is_open(self) -> bool:
        """Calls are kept back, but for one at a time that tries."""
        return self.failures >= OPENS_AFTER

    def after_failure(self, now_ms: int) -> Breaker:
        failures = min(self.failures + 1, OPENS_AFTER)
        return Breaker(failures, now_ms + OPEN_MS if failures >= OPENS_AFTER else 0)

    def asked(self, now_ms: int) -> tuple[int, Breaker]:
        """How long a call has to wait, in milliseconds, and the breaker after that was asked. 0: it is sent, as the one that
        tries where the breaker is open."""
        if not self.is_open:
            return 0, self
        if now_ms < self.open_until_ms:
            return self.open_until_ms - now_ms, self
        return 0, replace(self, open_until_ms=now_ms + OPEN_MS)

    def untried(self, granted_until_ms: int) -> Breaker:
        """The call that was to try, which made it `open_until_ms`, is not sent: the next one asked for tries.

        Nothing changes where it was opened anew meanwhile.
        """
        return replace(self, open_until_ms=0) if self.open_until_ms == granted_until_ms else self


CLOSED = Breaker()


def counts(kind: TransientKind | None, *, after_content: bool) -> bool:
    """A failure of this kind is one in the row; a reply that had begun ended it instead."""
    return kind in COUNTED and not after_content


def is_answer(failure: ModelError) -> bool:
    """Somebody is there and said no: the row ends as with a reply. Else calls that are refused (a rate, a request that is none)
    would be the ones that try, one every `OPEN_MS`, and the breaker of a provider that is back stayed open for everybody."""
    status = getattr(failure, "fields", {}).get("status")  # a class of somebody's own may leave out what ours are made with
    return isinstance(status, int) and 400 <= status < 500 and transient_kind(failure) in (None, "rate-limit")
