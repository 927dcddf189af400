"""Signed orders: what a producer without database access puts into a `deuz.enqueue` message so that workers believe it.

This file needs nothing but the standard library and imports nothing of this package: a producer in another code base may take
it along as it is.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORMAT = "v1"
ENQUEUE = "deuz.enqueue"
FIELD = "signature"
"""The argument of the message that carries it."""


def sign_order(
    order: Mapping[str, Any], *, task_id: str, key_id: str, secret: str, issued_at: int, task: str = ENQUEUE
) -> dict[str, Any]:
    """Arguments for `send_task("deuz.enqueue", kwargs=..., task_id=task_id)`: `order` and its signature.

    `task`: another one that takes signed orders, `deuz.answer` or `deuz.reconcile`; an order for one is none for another.

    `task_id` is the idempotency key and is signed too, so nobody can start the order again under another one. `issued_at`:
    Unix time in seconds; workers refuse a signature that is older than they are told to accept. HMAC-SHA256.
    Raises TypeError or ValueError for what is not plain JSON (a datetime is given as ISO 8601 text).
    """
    if ":" in key_id:
        raise ValueError(f"the id of a producer key has no colon: {key_id!r}")
    plain = json.loads(json.dumps({name: value for name, value in order.items() if name != FIELD}, allow_nan=False))
    mac = _mac(plain, task, task_id, key_id, secret, issued_at)
    return {**plain, FIELD: f"{FORMAT}:{key_id}:{issued_at}:{mac}"}


@dataclass(frozen=True, slots=True)
class OrderSignature:
    """A signature as it came; nothing is known of its truth before `fits`."""

    key_id: str
    issued_at: int
    mac: str

    def fits(self, order: Mapping[str, Any], *, task_id: str, secret: str, task: str = ENQUEUE) -> bool:
        """Whoever made it had `secret` and meant this order under this task id."""
        try:
            expected = _mac(order, task, task_id, self.key_id, secret, self.issued_at)
        except (TypeError, ValueError, RecursionError):
            return False
        return hmac.compare_digest(expected.encode(), self.mac.encode())


def read_signature(value: object) -> OrderSignature | None:
    """What `sign_order` wrote; None for anything else."""
    parts = value.split(":") if isinstance(value, str) else []
    if len(parts) != 4 or parts[0] != FORMAT or not (parts[2].isascii() and parts[2].isdigit() and len(parts[2]) <= 12):
        return None
    return OrderSignature(parts[1], int(parts[2]), parts[3])


def _mac(order: Mapping[str, Any], task: str, task_id: str, key_id: str, secret: str, issued_at: int) -> str:
    """Over one JSON text, in which no two different orders look alike."""
    plain = {name: value for name, value in order.items() if name != FIELD}
    signed = [FORMAT, task, key_id, issued_at, task_id, plain]
    text = json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
