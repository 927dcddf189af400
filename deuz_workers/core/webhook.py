"""What endpoints are told about runs, as Standard Webhooks.

Source: github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md, version 1.0.0, read 2026-11.

Headers `webhook-id`, `webhook-timestamp` (Unix time in seconds) and `webhook-signature` (`v1,` and base64 of HMAC-SHA256 over
``id.timestamp.body``, several apart by spaces while a secret is changed). A secret is `whsec_` and base64 of 24 to 64 bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from deuz_workers.core.codec import decode
from deuz_workers.core.redaction import redact_all
from deuz_workers.errors import CodecError

WEBHOOK_EVENTS = ("run.suspended", "run.resumed", "run.completed", "run.stopped", "run.failed")
"""What can be told: all of them come with a change of the status of a run, which is what is looked for."""
SECRET_PREFIX = "whsec_"  # noqa: S105 - how they begin
ID_HEADER, TIME_HEADER, SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"

FIRST_WAIT_MS = 5_000
LONGEST_WAIT_MS = 3 * 3_600_000
MOST_ATTEMPTS = 20
"""Of one delivery, over some 35 hours; then it is given up and the next one follows."""
PATIENCE_MS = 5 * 86_400_000
"""An endpoint that failed for so long without a success is disabled."""
KEEP_MS = 30 * 86_400_000
"""What was told can be told again for so long, and what could not be told for so long is not told any more."""


def secret_of(master: str, webhook_id: str) -> str:
    """The secret of one endpoint: nothing that signs is stored, and whoever has one knows nothing of another."""
    derived = hmac.new(master.encode(), f"deuz-webhook:{webhook_id}".encode(), hashlib.sha256).digest()
    return SECRET_PREFIX + base64.b64encode(derived).decode()


def delivery_id(webhook_id: str, rid: UUID, seq: int) -> str:
    """The same whenever and by whomever it is told, so that receivers know what they have seen."""
    return f"msg_{webhook_id.removeprefix('wh_')}_{rid.hex}_{seq}"


def payload_of(record_body: str, *, at_ms: int, **about: object) -> str:
    """The body of a request: `type`, `timestamp`, `data`. Without content, as journals are; texts of the row pass a filter for
    secrets. `about` does not: receivers look runs up by these names, also by one that looks like a key."""
    try:
        record = decode(record_body)
    except CodecError:
        record = {}
    known = cast("Mapping[str, Any]", record) if isinstance(record, Mapping) else {}
    row = cast("dict[str, object]", redact_all({name: value for name, value in known.items() if name != "type"}))
    data = {**about, **row}
    told = {"type": known.get("type", "run.unreadable"), "timestamp": moment(at_ms), "data": data}
    return json.dumps(told, separators=(",", ":"), default=str)


def moment(at_ms: int) -> str:
    """ISO 8601, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def signature_headers(secrets: Iterable[str], message_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """Headers of a request, signed with each of the secrets. Raises `ValueError` for one that is none."""
    signed = " ".join(f"v1,{_mac(key_of(secret), message_id, str(at_s), body)}" for secret in secrets)
    return {ID_HEADER: message_id, TIME_HEADER: str(at_s), SIGNATURE_HEADER: signed}


def key_of(secret: str) -> bytes:
    """Raises `ValueError`."""
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("a secret of webhooks is whsec_ and base64") from None


def _mac(key: bytes, message_id: str, at: str, body: bytes) -> str:
    signed = hmac.new(key, f"{message_id}.{at}.".encode() + body, hashlib.sha256).digest()
    return base64.b64encode(signed).decode()


def fits(secret: str, message_id: str, at: str, body: bytes, mac: str) -> bool:
    """Whoever made `mac` had the secret. Compared in constant time."""
    return hmac.compare_digest(_mac(key_of(secret), message_id, at, body).encode(), mac.encode())


def wait_ms(failures: int, asked_ms: int | None) -> int:
    """Until an endpoint that failed so often in a row is tried again; `asked_ms`: what it asked for."""
    own = min(FIRST_WAIT_MS * 2 ** min(failures, 20), LONGEST_WAIT_MS)
    return max(own, min(asked_ms or 0, LONGEST_WAIT_MS))
