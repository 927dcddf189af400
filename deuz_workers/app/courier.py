"""Telling endpoints what happened to runs: from rows to requests, at least once, each in the order of its rows.

A process that dies between a request and the row that says so leaves the delivery as it was: when its claim is over somebody
tells it again, under the same id. One endpoint that does not answer holds up nobody but itself.

Events, in the log as a name and key-values: ``webhook_failed`` (`webhook`, `error`, `failures`), ``webhook_given_up``
(`webhook`, `run`, `seq`), ``webhook_disabled`` (`webhook`, `why`), ``webhooks_unreachable`` (`error`, once per outage),
``webhooks_broke`` (`error`, `at`; a defect).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from deuz_workers.core.failure import place_of
from deuz_workers.core.webhook import (
    KEEP_MS,
    MOST_ATTEMPTS,
    PATIENCE_MS,
    delivery_id,
    payload_of,
    secret_of,
    signature_headers,
    wait_ms,
)
from deuz_workers.errors import DeuzError
from deuz_workers.ports.leases import Lease, LeaseProvider
from deuz_workers.ports.runtime import Clock, Ids
from deuz_workers.ports.webhooks import Delivery, WebhookStore

if TYPE_CHECKING:
    from deuz_workers.providers.http import Answered

TIMEOUT_MS = 10_000
"""Of one request, and a third of the time that an endpoint belongs to whoever tells it, if that is less."""
ENDPOINTS = 16
"""Told at the same time."""
BATCH = 20
"""Deliveries in a row for one endpoint, before others that are due have their turn."""
PASS_KEY = "webhooks"  # noqa: S105 - of a lease
GONE = 410

log = logging.getLogger(__name__)


class Posts(Protocol):
    async def post(self, url: str, *, headers: Mapping[str, str], body: bytes, timeout_ms: int) -> Answered:
        """Raises `DeuzError` where nothing was answered."""
        ...


class Courier:
    """Of one process. `masters`: secrets that those of endpoints are made from; requests are signed with each."""

    def __init__(
        self,
        store: WebhookStore,
        leases: LeaseProvider,
        posts: Posts,
        masters: Sequence[str],
        clock: Clock,
        ids: Ids,
        *,
        interval_ms: int,
        claim_ms: int,
    ) -> None:
        """`claim_ms`: an endpoint belongs to whoever tells it for so long; what was left behind is told again after it."""
        self._store = store
        self._leases = leases
        self._posts = posts
        self._masters = tuple(masters)
        self._clock = clock
        self._ids = ids
        self._interval_ms = interval_ms
        self._claim_ms = claim_ms
        self._timeout_ms = min(TIMEOUT_MS, claim_ms // 3)
        self._is_away = False

    async def run(self) -> None:
        """A pass whenever the interval is over and no other process was faster, until this is cancelled."""
        while True:
            began_ms = self._clock.monotonic_ms()
            try:
                claim = await self._leases.acquire(PASS_KEY, self._ids.token(), self._interval_ms, force=True)
                if isinstance(claim, Lease):
                    await self.tell()
            except DeuzError as error:
                if not self._is_away:
                    log.warning("webhooks_unreachable error=%s", error.code)
                self._is_away = True
            except Exception as error:  # noqa: BLE001 - the process goes on without this pass, the next one comes anyway
                log.error("webhooks_broke error=%s at=%s", type(error).__name__, place_of(error))
            else:
                self._is_away = False
            took_ms = self._clock.monotonic_ms() - began_ms
            await self._clock.sleep_ms(max(0, self._interval_ms - took_ms))

    async def tell(self) -> int:
        """One pass: find what happened, tell what is due; how many deliveries arrived. Raises what the store raises.

        After an interval it is over whatever is left, so that somebody who is far behind keeps nobody from being found.
        """
        began_ms = self._clock.monotonic_ms()
        await self._store.collect_webhook_events(KEEP_MS)
        arrived = 0
        while due := await self._store.take_webhook_deliveries(limit=ENDPOINTS, batch=BATCH, claim_ms=self._claim_ms):
            told = await asyncio.gather(
                *(self._endpoint(tuple(own)) for _, own in groupby(due, lambda delivery: delivery.webhook_id))
            )
            arrived += sum(told)
            if self._clock.monotonic_ms() - began_ms >= self._interval_ms:
                break
            if not all(told):
                break  # some that failed are among them; what is due now is found by the next pass
        return arrived

    async def _endpoint(self, deliveries: Sequence[Delivery]) -> int:
        """One after the other, up to the first that does not arrive; how many did."""
        began_ms = self._clock.monotonic_ms()
        for place, delivery in enumerate(deliveries):
            is_last = place == len(deliveries) - 1
            # others wait for the end of its turn, and what is left of the claim has to be enough for a request and its row
            most_ms = min(self._interval_ms, self._claim_ms - 2 * self._timeout_ms)
            is_last = is_last or self._clock.monotonic_ms() - began_ms > most_ms
            if not await self._deliver(delivery, is_last=is_last):
                return place
            if is_last:
                return place + 1
        return len(deliveries)

    async def _deliver(self, delivery: Delivery, *, is_last: bool) -> bool:
        body = payload_of(
            delivery.body,
            at_ms=delivery.at_ms,
            scope=delivery.scope,
            run_id=delivery.run_id,
            agent=delivery.agent,
            kind=delivery.kind,
            seq=delivery.seq,
        ).encode()
        message_id = delivery_id(delivery.webhook_id, delivery.rid, delivery.seq)
        secrets = [secret_of(master, delivery.webhook_id) for master in self._masters]
        headers = signature_headers(secrets, message_id, self._clock.unix_ms() // 1000, body)
        headers |= {"content-type": "application/json", "user-agent": "deuz_workers-webhooks"}
        try:
            answered = await self._posts.post(delivery.url, headers=headers, body=body, timeout_ms=self._timeout_ms)
        except DeuzError as error:
            await self._failed(delivery, error.code, None, None)
            return False
        if 200 <= answered.status < 300:
            await self._store.webhook_delivered(delivery, is_last=is_last)
            return True
        gone = "gone" if answered.status == GONE else None
        await self._failed(delivery, str(answered.status), answered.retry_after_ms, gone)
        return False

    async def _failed(self, delivery: Delivery, why: str, asked_ms: int | None, disable: str | None) -> None:
        log.info("webhook_failed webhook=%s error=%s failures=%d", delivery.webhook_id, why, delivery.failures + 1)
        disabled = await self._store.webhook_failed(
            delivery,
            wait_ms=wait_ms(delivery.failures, asked_ms),
            most_attempts=MOST_ATTEMPTS,
            patience_ms=PATIENCE_MS,
            disable=disable,
        )
        if delivery.attempts + 1 >= MOST_ATTEMPTS:
            log.warning("webhook_given_up webhook=%s run=%s seq=%d", delivery.webhook_id, delivery.run_id, delivery.seq)
        if disabled is not None:
            log.warning("webhook_disabled webhook=%s why=%s", delivery.webhook_id, disabled)
