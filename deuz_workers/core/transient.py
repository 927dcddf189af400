"""Causes of failure that may pass by waiting: what a failed run may be taken up again for (MDL-002 to MDL-006)."""

from __future__ import annotations

from typing import Literal

from deuz_workers.errors import (
    LedgerContendedError,
    ModelBreakerOpenError,
    ModelError,
    ModelRateLimitedError,
    ModelStreamBrokenError,
    ModelTimeoutError,
    ModelUnavailableError,
)

TransientKind = Literal[
    "no-connection",
    "timeout",
    "server-error",
    "rate-limit",
    "overload",
    "breaker-open",
    "broken-stream",
    "ledger-contention",
]
OVERLOADED = 529
"""What some providers answer instead of 503."""


def transient_kind(error: ModelError) -> TransientKind | None:
    """None: the same call would fail again, or nobody can say; a reply that cannot be used is such a case."""
    match error:
        case ModelRateLimitedError():
            return "rate-limit"
        case ModelTimeoutError():
            return "timeout"
        case ModelBreakerOpenError():
            return "breaker-open"
        case LedgerContendedError():
            return "ledger-contention"
        case ModelStreamBrokenError():
            return "broken-stream"
        case ModelUnavailableError():
            return _kind_of_outage(error.fields.get("status"))
        case _:
            return None


def _kind_of_outage(status: object) -> TransientKind | None:
    """`status` None: the provider did not answer at all."""
    if status is None:
        return "no-connection"
    if status == OVERLOADED:
        return "overload"
    return "server-error" if isinstance(status, int) and 500 <= status < 600 else None
