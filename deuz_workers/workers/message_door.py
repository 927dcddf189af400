"""What messages with content have in common: whom they are believed from, and how their write waits for the store.

Event: ``enqueue_waiting``, ``answer_waiting`` (`id`, `error`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from deuz_workers.app.producer_key import ProducerKey
from deuz_workers.app.settings import Settings
from deuz_workers.core.signature import FIELD, read_signature
from deuz_workers.errors import EnqueueRefusedError, StoreUnavailableError
from deuz_workers.workers.drain import Urgency
from deuz_workers.workers.host import Host

T = TypeVar("T")

ANSWER_TASK, RECONCILE_TASK = "deuz.answer", "deuz.reconcile"
DEFAULT_SCOPE = "default"
"""Of `AsyncClient.enqueue`."""
CLOCK_SKEW_S = 300
"""By which the clock of a producer may be ahead."""
_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/+-]{0,199}")
"""One word that cannot be taken for anything else in a line of a log."""
AGAIN_MS = 1_000
"""Between attempts to write while the store is away."""

log = logging.getLogger(__name__)


def shown_id(key: object) -> str:
    """The id of a message as logs and errors show it: its sender chose it, and it may hold anything."""
    text = str(key)
    is_plain = _PLAIN_ID.fullmatch(text) is not None
    return text if is_plain else f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


async def until_stored(host: Host, what: str, key: str, write: Callable[[], Awaitable[T]]) -> T:
    """What `write` returns, for the message `key`, tried again while the store is away; `what` begins the event that says so.

    Raises what `write` raises; `StoreUnavailableError` only when the worker drains.
    """
    told = False
    while True:
        try:
            return await write()
        except StoreUnavailableError as error:
            if host.flag.urgency > Urgency.NONE:
                raise
            if not told:
                log.warning("%s_waiting id=%s error=%s", what, shown_id(key), error.code)
            told = True
        await asyncio.sleep(AGAIN_MS / 1000)


def believe(settings: Settings, now_s: int, key: str, order: Mapping[str, Any], task: str) -> ProducerKey:
    """The key of whoever signed this order for this task under this id, not long ago. Raises `EnqueueRefusedError`."""
    door = task.rpartition(".")[2]
    if not any(door in one.doors for one in settings.producer_keys):
        way = "; enqueue = 'unsigned' (DEUZ_ENQUEUE) believes all" if door == "enqueue" else ""
        raise EnqueueRefusedError(
            f"no producer key for this door is set here (setting producer_keys, DEUZ_PRODUCER_KEYS: doors), so no message is "
            f"believed{way}",
            code="door_shut",
        )
    signature = read_signature(order.get(FIELD))
    if signature is None:
        raise EnqueueRefusedError("the message is not signed; see sign_order", code="unsigned")
    producer = next((one for one in settings.producer_keys if one.id == signature.key_id), None)
    secret = "" if producer is None else producer.secret.get_secret_value()
    if producer is None or not signature.fits(order, task_id=key, secret=secret, task=task):
        raise EnqueueRefusedError(
            "the signature is of no producer key that is set here (DEUZ_PRODUCER_KEYS), or of another message", code="signature"
        )
    if not -CLOCK_SKEW_S <= now_s - signature.issued_at <= settings.enqueue_max_age_s:
        raise EnqueueRefusedError(
            "the signature is too old (DEUZ_ENQUEUE_MAX_AGE_S), or its time is to come; sign the order again",
            code="signature_age",
        )
    if door not in producer.doors:
        raise EnqueueRefusedError(
            f"this producer key is not for the door {door!r} (DEUZ_PRODUCER_KEYS: doors)", code="not_allowed"
        )
    return producer
