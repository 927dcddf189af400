"""What `deuz doctor` says of one thing that it looked at: how it stands, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from deuz_workers.core.addresses import without_account
from deuz_workers.errors import DeuzError, LeaseStoreUnavailableError, StoreUnavailableError

Level = Literal["ok", "warning", "broken"]
SKEW_MS = 1_000
"""Clocks that differ by more make times in logs misleading; nothing is decided by comparing them."""
URLS = {
    "store": "database_url (DEUZ_DATABASE_URL)",
    "redis": "redis_url and leases_url (DEUZ_REDIS_URL, DEUZ_LEASES_URL)",
    "leases": "leases_url (DEUZ_LEASES_URL, else DEUZ_DATABASE_URL)",
    "broker": "broker_url (DEUZ_BROKER_URL, else DEUZ_REDIS_URL)",
}
AWAY = (StoreUnavailableError, LeaseStoreUnavailableError)
CHECK_S = 10.0
"""A server that has not answered by then is out of reach."""


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    subject: str
    said: str
    fix: str = ""


def skew(whose: str, skew_ms: int) -> Finding:
    if abs(skew_ms) > SKEW_MS:
        return Finding(
            "warning", "clock", f"{whose} is {skew_ms:+} ms from this machine", "run NTP on both; times in logs will not match"
        )
    return Finding("ok", "clock", f"{whose} is {skew_ms:+} ms from this machine")


def away(subject: str, url: str, error: BaseException) -> Finding:
    """A server that cannot be used: where it was looked for, and why not."""
    return Finding("broken", subject, f"{without_account(url)}: {_reason(error)}", reach(subject))


def _reason(error: BaseException) -> str:
    """The kind of the error and its text, as far as that names no account."""
    text = " ".join(str(error).split())
    return type(error).__name__ if not text or "://" in text or "@" in text else f"{type(error).__name__}, {text}"


def unchecked(subject: str, error: Exception) -> Finding:
    match error:
        case DeuzError(code="migration_missing"):
            return Finding("broken", subject, error.message, "run: deuz db migrate")
        case DeuzError(code="schema_too_new"):
            return Finding("broken", subject, error.message, "upgrade deuz_workers")
        case DeuzError():
            return Finding("broken", subject, error.message, reach(subject) if isinstance(error, AWAY) else "")
        case TimeoutError():
            return Finding("broken", subject, f"no answer within {CHECK_S:.0f} s", reach(subject))
        case _:  # a library's own error; its text may hold the URL
            return Finding("broken", subject, f"no answer: {type(error).__name__}", reach(subject))


def reach(subject: str) -> str:
    return f"check {URLS.get(subject, 'its URL')} and that the server runs and can be reached from here"
