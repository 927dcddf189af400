"""Is a request that reached us from outside signed by whom it says? For webhooks of ours, GitHub's, Slack's, and an HMAC.

Takes headers and the body as received, in bytes, and the time; nothing is read from anywhere.

Vendor facts, read 2026-11: docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries,
docs.slack.dev/authentication/verifying-requests-from-slack.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from deuz_workers.core.webhook import ID_HEADER, SIGNATURE_HEADER, TIME_HEADER, fits

Refusal = Literal[
    "missing-signature",
    "malformed-signature",
    "bad-signature",
    "missing-timestamp",
    "malformed-timestamp",
    "stale-timestamp",
    "body-used",
]
TOLERANCE_S = 300


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """`body` is what was signed: read this, and not the request again."""

    body: bytes


@dataclass(frozen=True, slots=True)
class UnsignedRequest:
    reason: Refusal


Checked = SignedRequest | UnsignedRequest
Verifier = Callable[[Mapping[str, str], bytes], Checked]
"""From headers, whose names may have any case, and the body."""


def verify_webhook(
    headers: Mapping[str, str], body: bytes, secret: str | Iterable[str], *, now: float, tolerance_seconds: int = TOLERANCE_S
) -> Checked:
    """A webhook of ours, or of whoever follows Standard Webhooks. `secret`: several while it changes. `now`: Unix time.

    Raises `ValueError` for a secret that is none.
    """
    sent = _lower(headers)
    signature, message_id = sent.get(SIGNATURE_HEADER), sent.get(ID_HEADER)
    if not signature or not message_id:
        return UnsignedRequest("missing-signature")
    if refusal := _time_refused(sent.get(TIME_HEADER), now, tolerance_seconds):
        return UnsignedRequest(refusal)
    macs = [part.partition(",")[2] for part in signature.split() if part.startswith("v1,")]
    if not macs or any(_decoded(mac, "base64") is None for mac in macs):
        return UnsignedRequest("malformed-signature")
    secrets = (secret,) if isinstance(secret, str) else tuple(secret)
    at = sent[TIME_HEADER]
    # all pairs are compared, so that the time tells nothing about which one fits
    good = [fits(one, message_id, at, body, mac) for one in secrets for mac in macs]
    return SignedRequest(body) if any(good) else UnsignedRequest("bad-signature")


def verify_github_webhook(headers: Mapping[str, str], body: bytes, secret: str) -> Checked:
    """`X-Hub-Signature-256`: `sha256=` and the hex digest of the body."""
    return verify_hmac_signature(headers, body, secret, header="x-hub-signature-256", prefix="sha256=")


def verify_slack_request(
    headers: Mapping[str, str], body: bytes, secret: str, *, now: float, tolerance_seconds: int = TOLERANCE_S
) -> Checked:
    """`X-Slack-Signature`, over ``v0:timestamp:body``, and `X-Slack-Request-Timestamp`, at most so far from `now`."""
    at = _lower(headers).get("x-slack-request-timestamp")
    if refusal := _time_refused(at, now, tolerance_seconds):
        return UnsignedRequest(refusal)
    signed = f"v0:{at}:".encode() + body
    found = verify_hmac_signature(headers, signed, secret, header="x-slack-signature", prefix="v0=")
    return SignedRequest(body) if isinstance(found, SignedRequest) else found


def verify_hmac_signature(
    headers: Mapping[str, str],
    body: bytes,
    secret: str | bytes,
    *,
    header: str,
    algorithm: Literal["sha1", "sha256", "sha512"] = "sha256",
    encoding: Literal["hex", "base64"] = "hex",
    prefix: str = "",
) -> Checked:
    """The header is `prefix` and the digest of the body in this encoding."""
    sent = _lower(headers).get(header.lower())
    if not sent:
        return UnsignedRequest("missing-signature")
    given = _decoded(sent.removeprefix(prefix), encoding) if sent.startswith(prefix) else None
    if given is None:
        return UnsignedRequest("malformed-signature")
    key = secret.encode() if isinstance(secret, str) else secret
    expected = hmac.new(key, body, getattr(hashlib, algorithm)).digest()
    return SignedRequest(body) if hmac.compare_digest(expected, given) else UnsignedRequest("bad-signature")


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _time_refused(at: str | None, now: float, tolerance_s: int) -> Refusal | None:
    if not at:
        return "missing-timestamp"
    if not (at.isascii() and at.isdigit() and len(at) <= 12):
        return "malformed-timestamp"
    return "stale-timestamp" if abs(now - int(at)) > tolerance_s else None


def _decoded(text: str, encoding: Literal["hex", "base64"]) -> bytes | None:
    try:
        if encoding == "hex":
            return binascii.unhexlify(text) if text else None
        return base64.b64decode(text, validate=True) if text else None
    except (binascii.Error, ValueError):
        return None
