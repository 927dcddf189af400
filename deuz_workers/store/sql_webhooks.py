"""Webhooks over SQL; `SqlStore` is this too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from deuz_workers.ports.webhooks import Delivery, Outcome, WebhookRow, WebhookStore
from deuz_workers.store.dialect import Row


class SqlWebhooks(WebhookStore, Protocol):
    """The part of a SQL store that knows them."""

    async def _fetch(
        self, operation: str, params: Mapping[str, object], connection: Any = None
    ) -> Sequence[Row]: ...  # of the store

    async def add_webhook(self, webhook_id: str, scope: str, url: str, events: Sequence[str]) -> None:
        given = {"webhook_id": webhook_id, "scope": scope, "url": url, "events": list(events)}
        await self._fetch("add_webhook", given)

    async def webhooks(self, scope: str | None) -> tuple[WebhookRow, ...]:
        return tuple(map(_webhook_of, await self._fetch("webhooks", {"scope": scope})))

    async def remove_webhook(self, webhook_id: str, scope: str | None) -> bool:
        if not await self._fetch("remove_webhook", {"webhook_id": webhook_id, "scope": scope}):
            return False
        await self._fetch("remove_webhook_deliveries", {"webhook_id": webhook_id})
        return True

    async def enable_webhook(self, webhook_id: str, scope: str | None) -> bool:
        return bool(await self._fetch("enable_webhook", {"webhook_id": webhook_id, "scope": scope}))

    async def replay_webhook(
        self, webhook_id: str, scope: str | None, *, run_id: str | None, since_ms: int | None, outcome: Outcome | None
    ) -> int | None:
        asked = {"webhook_id": webhook_id, "scope": scope, "run_id": run_id, "since_ms": since_ms, "outcome": outcome}
        [row] = await self._fetch("replay_webhook", asked)
        return row["count"] if row["found"] else None

    async def collect_webhook_events(self, keep_ms: int) -> int:
        return (await self._fetch("collect_webhook_events", {"keep_ms": keep_ms}))[0]["count"]

    async def take_webhook_deliveries(self, *, limit: int, batch: int, claim_ms: int) -> tuple[Delivery, ...]:
        asked = {"limit": limit, "batch": batch, "claim_ms": claim_ms}
        return tuple(Delivery(**row) for row in await self._fetch("take_webhook_deliveries", asked))

    async def webhook_delivered(self, delivery: Delivery, *, is_last: bool) -> None:
        await self._fetch("webhook_delivered", {**_name(delivery), "is_last": is_last})

    async def webhook_failed(
        self, delivery: Delivery, *, wait_ms: int, most_attempts: int, patience_ms: int, disable: str | None
    ) -> str | None:
        given = {"wait_ms": wait_ms, "most_attempts": most_attempts, "patience_ms": patience_ms, "disable": disable}
        rows = await self._fetch("webhook_failed", {**_name(delivery), **given})
        return rows[0]["disabled"] if rows else None


def _name(delivery: Delivery) -> dict[str, object]:
    return {"webhook_id": delivery.webhook_id, "rid": delivery.rid, "seq": delivery.seq}


def _webhook_of(row: Row) -> WebhookRow:
    events = cast("list[str]", json.loads(row["events"]) if isinstance(row["events"], str) else row["events"])
    about: dict[str, Any] = {**row, "events": tuple(events)}
    return WebhookRow(**about)
