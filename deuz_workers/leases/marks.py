"""The highest revision that holders of a lease reported, in a text that a lease server cannot forge."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marks:
    """Writes and reads marks: a revision in decimal digits, a colon, a signature for this very lease.

    Without `secret` none is written and none is believed, because a revision that somebody forged could park a run.
    """

    secret: bytes | None

    def write(self, key: str, revision: int) -> str:
        """The mark for the lease `key`; ``0`` without a secret."""
        return "0" if self.secret is None else f"{revision}:{_signature(self.secret, key, revision)}"

    def read(self, key: str, mark: str) -> int:
        """The revision in a mark; 0 where it is not signed by this pool."""
        digits, _, signature = mark.partition(":")
        if self.secret is None or not digits.isdecimal() or not digits.isascii():
            return 0
        genuine = _signature(self.secret, key, int(digits))
        return int(digits) if hmac.compare_digest(signature.encode(), genuine.encode()) else 0


def _signature(secret: bytes, key: str, revision: int) -> str:
    return hmac.new(secret, f"lease\n{key}\n{revision}".encode(), hashlib.sha256).hexdigest()[:32]
