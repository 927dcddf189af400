"""What a failed call of `generateContent` means: which error, whether it was paid for, whether it can succeed later; pure.

Vendor facts, read 2026-11 from https://ai.google.dev/gemini-api/docs/troubleshooting and
https://cloud.google.com/apis/design/errors: the body is `{"error": {"code", "status", "message", "details"}}`; details may
hold `google.rpc.RetryInfo` with a `retryDelay` (`"34.07s"`) and `google.rpc.ErrorInfo` with a `reason`; a stream that fails at
its beginning answers a list with that object. 400 `INVALID_ARGUMENT` (a wrong key too, reason `API_KEY_INVALID`) and
`FAILED_PRECONDITION`, 403, 404, 429 `RESOURCE_EXHAUSTED`, 500 `INTERNAL`, 503 `UNAVAILABLE` (overloaded), 504
`DEADLINE_EXCEEDED`. Refused before the model runs, hence unbilled, is what is below 500; of a 5xx nobody knows, since a gateway
answers so too when it lost a server that had begun.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deuz_workers.core.limits import MAX_RETRY_AFTER_MS
from deuz_workers.errors import (
    Billed,
    ModelAuthenticationError,
    ModelContextOverflowError,
    ModelError,
    ModelNotFoundError,
    ModelRateLimitedError,
    ModelRequestError,
    ModelStreamBrokenError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from deuz_workers.providers.json_body import listed, mapping

OVERFLOW_TEXTS = ("exceeds the maximum number of tokens", "context length", "context window")
"""Of a 400 about the length, which has no reason of its own."""

BAD_KEY_REASONS = frozenset({"API_KEY_INVALID", "API_KEY_SERVICE_BLOCKED", "ACCESS_TOKEN_EXPIRED", "API_KEY_EXPIRED"})

_CODE = re.compile(r"[A-Z][A-Z0-9_]{1,59}")
"""What a status or reason looks like. Keys have lower case, prompts have blanks: neither gets into an error by this."""
_DELAY = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")


@dataclass(frozen=True, slots=True)
class _Report:
    code: int | None
    status: str
    reason: str
    is_too_long: bool
    retry_after_ms: int | None

    @property
    def named(self) -> str:
        return self.reason or self.status


def status_failure(status: int, body: bytes, *, host: str, retry_after_ms: int | None) -> ModelError:
    """The error for an HTTP status other than 200.

    Of the body only the vendor's codes are kept; its text may quote the prompt.
    """
    report = _read(_parsed(body))
    where = f"{host} answered {status}" + (f" ({report.named})" if report.named else "")
    return _failure(status, report, where, report.retry_after_ms if retry_after_ms is None else retry_after_ms, "no")


def reported_failure(record: Mapping[str, Any]) -> ModelError:
    """The error that an event or body reports under status 200: work had begun, so what was paid is unknown."""
    report = _read(record)
    where = "the provider broke the reply off" + (f" ({report.named})" if report.named else "")
    if report.code is None or report.code == 500:
        fields: dict[str, Any] = {"provider_code": report.named} if report.named else {}
        return ModelStreamBrokenError(where, **fields)
    return _failure(report.code, report, where, report.retry_after_ms, "unknown")


def _failure(status: int, report: _Report, where: str, retry_after_ms: int | None, refused: Billed) -> ModelError:
    """`refused`: what a refusal before any work cost."""
    fields: dict[str, Any] = {"status": status} | ({"provider_code": report.named} if report.named else {})
    if status == 429:
        return ModelRateLimitedError(f"{where}: too many requests", retry_after_ms=retry_after_ms, billed=refused, **fields)
    if status in (401, 403) or report.reason in BAD_KEY_REASONS:
        return ModelAuthenticationError(f"{where}: check the API key and the base URL", billed=refused, **fields)
    if status == 402:
        return ModelRequestError(f"{where}: add credit", code="insufficient_quota", billed=refused, **fields)
    if status == 408:
        return ModelTimeoutError(where, retry_after_ms=retry_after_ms, **fields)
    if status in (400, 413) and report.is_too_long:
        return ModelContextOverflowError(f"{where}: the request is longer than what the model takes", billed=refused, **fields)
    if status >= 500 or status in (409, 499):
        return ModelUnavailableError(where, billed="unknown", retry_after_ms=retry_after_ms, **fields)
    if status == 404 and report.status == "NOT_FOUND":
        return ModelNotFoundError(f"{where}: it does not serve this model; check the name", billed=refused, **fields)
    if status < 400:
        return ModelRequestError(f"{where} instead of a response; check the base URL", billed=refused, **fields)
    return ModelRequestError(f"{where}: it refused the request", billed=refused, **fields)


def _parsed(body: bytes) -> Mapping[str, Any]:
    try:
        record: object = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    first = listed(record)
    return mapping(first[0] if first else record) or {}


def _read(record: Mapping[str, Any]) -> _Report:
    error = mapping(record.get("error")) or {}
    details = [one for detail in listed(error.get("details")) if (one := mapping(detail)) is not None]
    delays = [_delay_ms(detail["retryDelay"]) for detail in details if "retryDelay" in detail]
    reasons = [_plain(detail["reason"]) for detail in details if "reason" in detail]
    message, code = error.get("message"), error.get("code")
    says = message[:8_192].lower() if isinstance(message, str) else ""
    return _Report(
        code if type(code) is int else None,
        _plain(error.get("status")),
        next((reason for reason in reasons if reason), ""),
        any(text in says for text in OVERFLOW_TEXTS),
        next((delay for delay in delays if delay is not None), None),
    )


def _delay_ms(given: object) -> int | None:
    found = _DELAY.fullmatch(given) if isinstance(given, str) else None
    return None if found is None else round(min(float(found[1]) * 1_000, MAX_RETRY_AFTER_MS))


def _plain(given: object) -> str:
    return given if isinstance(given, str) and _CODE.fullmatch(given) else ""
