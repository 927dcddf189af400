"""What a refusal by OpenAI, or by a server that speaks like it, means: which error, whether it was paid for, whether it can
succeed later; pure, and the same for Chat Completions and Responses.

Vendor facts, read 2026-11 from https://platform.openai.com/docs/guides/error-codes: 429 is either `rate_limit_exceeded`, which
passes, or of the type `insufficient_quota` (codes such as `credit_balance_exhausted`, `project_spend_limit_exceeded`), which
does not pass by waiting; both are refused before the model runs, hence unbilled. Of a 5xx nobody knows: a 503, and the 529 of
some providers, mostly say that nothing was begun, but a gateway answers so too when it lost a server that had. A model that
does not exist, or that the key may not use, is a 404 with the code `model_not_found` (errors of that page, and openai-python
3.57, `NotFoundError`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from deuz_workers.errors import (
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

QUOTA_WORDS = ("insufficient_quota", "credit_balance", "spend_limit", "usage_limit", "billing")

OVERFLOW_CODES = frozenset({"context_length_exceeded", "context_window_exceeded", "exceed_context_size_error"})
OVERFLOW_TEXTS = (b"maximum context length", b"context window", b"context length", b"context size", b"prompt is too long")
"""Of servers whose error has no code of its own: vLLM, hosted gateways, llama.cpp."""

_CODE = re.compile(r"[a-z0-9_.]{1,60}")
"""What a vendor's code looks like. Keys have upper case or dashes, prompts have blanks: neither gets into an error by this."""


def status_failure(status: int, body: bytes, *, host: str, retry_after_ms: int | None) -> ModelError:
    """The error for an HTTP status other than 200.

    Of the body only the vendor's code is kept; its text may quote the prompt.
    """
    kind, code = _codes(body)
    where = f"{host} answered {status}" + (f" ({code})" if code else "")
    fields: dict[str, Any] = {"status": status}
    if code:
        fields["provider_code"] = code
    if status == 402 or (status == 429 and any(word in f"{kind} {code}" for word in QUOTA_WORDS)):
        return ModelRequestError(f"{where}: the account has no quota left; add credit", code="insufficient_quota", **fields)
    if status == 429:
        return ModelRateLimitedError(f"{where}: too many requests", retry_after_ms=retry_after_ms, **fields)
    if status in (401, 403):
        return ModelAuthenticationError(f"{where}: check the API key and the base URL", **fields)
    if status == 408:
        return ModelTimeoutError(where, retry_after_ms=retry_after_ms, **fields)
    if status in (400, 413, 422) and _says_too_long(code, body):
        return ModelContextOverflowError(f"{where}: the request is longer than what the model takes", **fields)
    if status == 404 and ("model" in code or kind == "not_found_error" or b"model" in body[:8_192].lower()):
        return ModelNotFoundError(f"{where}: it does not serve this model; check the model's name and the base URL", **fields)
    if status >= 500 or status == 409:
        return ModelUnavailableError(where, billed="unknown", retry_after_ms=retry_after_ms, **fields)
    if status < 400:
        return ModelRequestError(f"{where} instead of a reply; check the base URL", **fields)
    return ModelRequestError(f"{where}: it refused the request", **fields)


REFUSED_CODES = ("invalid_", "image_", "unsupported_", "empty_image", "failed_to_download_image", "data_residency")
"""How codes of a response begin that fails for what was in its request (openai-python 3.57, `response_error.py`, read 2026-11);
beside them stand those about a policy."""


def reported_failure(record: Mapping[str, Any]) -> ModelError:
    """The error that an event or body reports under status 200.

    Work had begun by then, so what was paid is unknown whatever it says.
    """
    kind, code = _codes_of(record)
    named = f" ({code or kind})" if code or kind else ""
    fields: dict[str, Any] = {"provider_code": code or kind} if code or kind else {}
    if code == "429" or "rate_limit" in f"{kind} {code}":
        return ModelRateLimitedError(f"the provider broke the reply off{named}", billed="unknown", **fields)
    if code in OVERFLOW_CODES:
        return ModelContextOverflowError(f"the request is longer than what the model takes{named}", billed="unknown", **fields)
    if code[:1] == "4" or "invalid_request" in kind or code.startswith(REFUSED_CODES) or "policy" in code:
        return ModelRequestError(f"the provider refused the request{named}", billed="unknown", **fields)
    return ModelStreamBrokenError(f"the provider broke the reply off{named}", **fields)


def _says_too_long(code: str, body: bytes) -> bool:
    """A refusal for the length of the request; nothing of the body is kept."""
    return code in OVERFLOW_CODES or any(text in body[:8_192].lower() for text in OVERFLOW_TEXTS)


def _codes(body: bytes) -> tuple[str, str]:
    try:
        record: object = json.loads(body)
    except (ValueError, RecursionError):
        return "", ""
    return _codes_of(cast(Mapping[str, Any], record)) if isinstance(record, dict) else ("", "")


def _codes_of(record: Mapping[str, Any]) -> tuple[str, str]:
    """Type and code of an error body, empty where missing or where they do not look like one."""
    inner = record.get("error")
    error = cast(Mapping[str, Any], inner) if isinstance(inner, dict) else record
    given = (error.get(name) for name in ("type", "code"))
    kind, code = (str(value) if isinstance(value, str | int) else "" for value in given)
    return (kind if _CODE.fullmatch(kind) else "", code if _CODE.fullmatch(code) else "")
