"""What a failed call of the Messages API means: which error, whether it was paid for, whether it can succeed later; pure.

Vendor facts, read 2026-11 from https://platform.claude.com/docs/en/api/errors and the `anthropic` package 2.14.0: the body is
`{"type": "error", "error": {"type", "message", "details": {"error_code"}}, "request_id"}`; 400 `invalid_request_error`, also
for an exceeded spend limit and an empty balance; 401, 403; 402 `billing_error`; 404 `not_found_error`; 413
`request_too_large`; 429 `rate_limit_error`, with `retry-after` unless the month's limit is reached; 500 `api_error`; 504
`timeout_error`; 529 `overloaded_error`. Refused before the model runs, hence unbilled, is what is below 500; of a 5xx nobody
knows, since a gateway answers so too when it lost a server that had begun. In the middle of a stream the same object is an
`error` event.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from deuz_workers.errors import (
    ModelAuthenticationError,
    ModelContextOverflowError,
    ModelError,
    ModelNotFoundError,
    ModelRateLimitedError,
    ModelRequestError,
    ModelResponseError,
    ModelStreamBrokenError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from deuz_workers.providers.json_body import mapping, parse_object

QUOTA_CODES = ("spend_limit", "billing_error", "credit_balance")
QUOTA_TEXTS = (b"credit balance is too low", b"api usage limits")
"""Of a 400 about money, which has no code of its own."""

OVERFLOW_TEXTS = (b"prompt is too long", b"exceed context limit", b"context window")
"""Of a 400 about the length, which has no code of its own."""

_CODE = re.compile(r"[a-z0-9_.]{1,60}")
"""What a vendor's code looks like. Keys have upper case or dashes, prompts have blanks: neither gets into an error by this."""


def status_failure(status: int, body: bytes, *, host: str, retry_after_ms: int | None) -> ModelError:
    """The error for an HTTP status other than 200.

    Of the body only the vendor's code is kept; its text may quote the prompt.
    """
    kind, code = _codes(body)
    named = code or kind
    where = f"{host} answered {status}" + (f" ({named})" if named else "")
    fields: dict[str, Any] = {"status": status} | ({"provider_code": named} if named else {})
    says = body[:8_192].lower()
    if status == 402 or (status in (400, 429) and _is_about_money(kind, code, says)):
        return ModelRequestError(f"{where}: the account has no quota left; add credit", code="insufficient_quota", **fields)
    if status == 429:
        return ModelRateLimitedError(f"{where}: too many requests", retry_after_ms=retry_after_ms, **fields)
    if status in (401, 403):
        return ModelAuthenticationError(f"{where}: check the API key and the base URL", **fields)
    if status == 408:
        return ModelTimeoutError(where, retry_after_ms=retry_after_ms, **fields)
    if kind == "request_too_large" or (status == 400 and any(text in says for text in OVERFLOW_TEXTS)):
        return ModelContextOverflowError(f"{where}: the request is longer than what the model takes", **fields)
    if status >= 500 or status == 409:
        return ModelUnavailableError(where, billed="unknown", retry_after_ms=retry_after_ms, **fields)
    if status == 404 and kind == "not_found_error":
        return ModelNotFoundError(f"{where}: it does not serve this model; check the name", **fields)
    if status < 400:
        return ModelRequestError(f"{where} instead of a message; check the base URL", **fields)
    return ModelRequestError(f"{where}: it refused the request", **fields)


def reported_failure(record: Mapping[str, Any]) -> ModelError:
    """The error that an event or body reports under status 200: work had begun, so what was paid is unknown."""
    kind, code = _codes_of(record)
    named = f" ({code or kind})" if code or kind else ""
    fields: dict[str, Any] = {"provider_code": code or kind} if code or kind else {}
    broke_off, refused = f"the provider broke the reply off{named}", f"the provider refused the request{named}"
    match kind:
        case "rate_limit_error":
            return ModelRateLimitedError(broke_off, billed="unknown", **fields)
        case "overloaded_error":
            return ModelUnavailableError(broke_off, status=529, **fields)
        case "timeout_error":
            return ModelTimeoutError(broke_off, **fields)
        case "authentication_error" | "permission_error":
            return ModelAuthenticationError(f"{refused}: check the API key", billed="unknown", **fields)
        case "request_too_large":
            return ModelContextOverflowError(
                f"the request is longer than what the model takes{named}", billed="unknown", **fields
            )
        case "not_found_error":
            return ModelNotFoundError(refused, billed="unknown", **fields)
        case "invalid_request_error" | "billing_error":
            return ModelRequestError(refused, billed="unknown", **fields)
        case _:
            return ModelStreamBrokenError(broke_off, **fields)


def _is_about_money(kind: str, code: str, says: bytes) -> bool:
    return any(word in f"{kind} {code}" for word in QUOTA_CODES) or any(text in says for text in QUOTA_TEXTS)


def _codes(body: bytes) -> tuple[str, str]:
    try:
        return _codes_of(parse_object(body))
    except ModelResponseError:
        return "", ""


def _codes_of(record: Mapping[str, Any]) -> tuple[str, str]:
    """Type and finer code of an error body, empty where missing or where they do not look like one."""
    error = mapping(record.get("error")) or {}
    details = mapping(error.get("details")) or {}
    return _plain(error.get("type")), _plain(details.get("error_code"))


def _plain(given: object) -> str:
    return given if isinstance(given, str) and _CODE.fullmatch(given) else ""
