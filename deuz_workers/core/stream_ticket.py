"""Tickets for readers that cannot send a header, as a browser's `EventSource`: good for a minute, for one run and one reader.

`t1.<payload>.<mac>`, HMAC-SHA256 over the first two segments, both in URL-safe base64 without padding, under a key that is
derived from the secret for this purpose alone.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any

FORMAT = "t1"
PURPOSE = b"deuz stream ticket"
TTL_MS = 60_000


@dataclass(frozen=True, slots=True)
class StreamTicket:
    """What a ticket says. `expires_at_ms`: Unix time in milliseconds."""

    scope: str
    run_id: str
    principal: str
    expires_at_ms: int


class TicketSigner:
    """Makes and checks tickets."""

    def __init__(self, secret: str) -> None:
        self._key = hmac.new(secret.encode("utf-8", "surrogatepass"), PURPOSE, hashlib.sha256).digest()

    def sign(self, ticket: StreamTicket) -> str:
        payload = [ticket.scope, ticket.run_id, ticket.principal, ticket.expires_at_ms]
        text = _pack(json.dumps(payload, separators=(",", ":")).encode())
        return f"{FORMAT}.{text}.{self._mac(text)}"

    def read(self, token: object, *, now_ms: int) -> StreamTicket | None:
        """What a good ticket says, None for any other. Never raises."""
        try:
            form, text, mac = str(token).split(".")
            if form != FORMAT or not hmac.compare_digest(self._mac(text).encode(), mac.encode()):
                return None
            scope, run_id, principal, expires_at_ms = _unpack(text)
        except Exception:  # noqa: BLE001 - whatever it is, it is no ticket
            return None
        return StreamTicket(scope, run_id, principal, expires_at_ms) if now_ms < expires_at_ms else None

    def _mac(self, text: str) -> str:
        return _pack(hmac.new(self._key, f"{FORMAT}.{text}".encode(), hashlib.sha256).digest())


def _pack(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _unpack(text: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
