"""The highest revision that somebody saw of a run, in a text that neither a lease server nor a broker can forge.

Leases and doorbells carry it (architecture D16). It never says what may be written: a revision that is believed can only park
a run whose store went backwards.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Literal

MAX_DIGITS = 18
"""What fits into a bigint; a longer text is none of ours."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Writes and reads marks: a revision in decimal digits, a colon, a signature for this very lease key.

    Without `secret` none is written and none is believed, because a revision that somebody forged could park a run. `of`: what
    carries them, so that a mark of one kind is none of the other.
    """

    secret: bytes | None
    of: Literal["lease", "bell"] = "lease"

    def write(self, key: str, revision: int) -> str:
        """The mark for the lease `key`; ``0`` without a secret."""
        return "0" if self.secret is None else f"{revision}:{_signature(self.secret, self.of, key, revision)}"

    def read(self, key: str, mark: str) -> int:
        """The revision in a mark; 0 where it is not signed by this pool."""
        digits, _, signature = mark.partition(":")
        if self.secret is None or not digits.isdecimal() or not digits.isascii() or len(digits) > MAX_DIGITS:
            return 0
        genuine = _signature(self.secret, self.of, key, int(digits))
        return int(digits) if hmac.compare_digest(signature.encode(), genuine.encode()) else 0


def _signature(secret: bytes, of: str, key: str, revision: int) -> str:
    return hmac.new(secret, f"{of}\n{key}\n{revision}".encode(), hashlib.sha256).hexdigest()[:32]
