"""Plain data that its maker knows again: a text that says it, and a signature that nobody else can make.

`<format>.<payload>.<mac>`, HMAC-SHA256 over the first two segments, both in URL-safe base64 without padding. The key is derived
from the secret for one purpose alone, so that no other signature made with the same secret passes for this one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any


class Seal:
    """Of one purpose. `form`: version of the payload's meaning, the first segment."""

    def __init__(self, secret: str, purpose: bytes, form: str) -> None:
        self._key = hmac.new(secret.encode("utf-8", "surrogatepass"), purpose, hashlib.sha256).digest()
        self._form = form

    def sign(self, payload: object) -> str:
        text = _pack(json.dumps(payload, separators=(",", ":")).encode())
        return f"{self._form}.{text}.{self._mac(text)}"

    def read(self, token: object) -> Any:
        """The payload of a token of ours, None for any other text. Never raises."""
        try:
            form, text, mac = str(token).split(".")
            if form != self._form or not hmac.compare_digest(self._mac(text).encode(), mac.encode()):
                return None
            return _unpack(text)
        except Exception:  # noqa: BLE001 - whatever it is, it is none of ours
            return None

    def _mac(self, text: str) -> str:
        return _pack(hmac.new(self._key, f"{self._form}.{text}".encode(), hashlib.sha256).digest())


def _pack(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _unpack(text: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
