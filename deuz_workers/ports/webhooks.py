"""Subscriptions to what happens to runs, and what is to be sent to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable
from uuid import UUID

Outcome = Literal["delivered", "given-up"]


@dataclass(frozen=True, slots=True)
class WebhookRow:
    webhook_id: str
    scope: str
    """Of the runs; `*` is all."""
    url: str
    events: tuple[str, ...]
    """Types of journal rows."""
    created_at_ms: int
    """Unix time by the store's clock."""
    failures: int
    """In a row."""
    disabled: str | None
    """Why nothing is sent: `failing`, `gone`; None: it is."""
    waiting: int
    """Deliveries that have not arrived."""
    given_up: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """One journal row for one endpoint. What it was told is known by `(rid, seq)`, however often it is told."""

    webhook_id: str
    url: str
    failures: int
    """Of the endpoint, in a row."""
    rid: UUID
    seq: int
    scope: str
    run_id: str
    agent: str
    kind: str
    body: str
    """Of the journal row."""
    attempts: int
    """Before this one."""
    at_ms: int
    """Of the journal row, Unix time by the store's clock."""
    now_ms: int


@runtime_checkable
class WebhookStore(Protocol):
    """Each operation is atomic. What cannot be reached raises `StoreUnavailableError`."""

    async def add_webhook(self, webhook_id: str, scope: str, url: str, events: Sequence[str]) -> None:
        """It is told of everything that happens from now on. The same id again changes nothing."""
        ...

    async def webhooks(self, scope: str | None) -> tuple[WebhookRow, ...]:
        """Those of the scope, oldest first; None: all."""
        ...

    async def remove_webhook(self, webhook_id: str, scope: str | None) -> bool:
        """It is gone with all its deliveries. False: there is none of that id, or it is of another scope."""
        ...

    async def enable_webhook(self, webhook_id: str, scope: str | None) -> bool:
        """Sent to again, also where it was disabled; what happened meanwhile is told first."""
        ...

    async def replay_webhook(
        self, webhook_id: str, scope: str | None, *, run_id: str | None, since_ms: int | None, outcome: Outcome | None
    ) -> int | None:
        """What was told is told again, in its order; how many. None: there is no such webhook."""
        ...

    async def collect_webhook_events(self, keep_ms: int) -> int:
        """Deliveries for journal rows that the cursors of endpoints have not passed; how many.

        Each row is a delivery once for each endpoint, in whatever order commits became visible. Those that ended twice
        `keep_ms` ago are forgotten; rows older than `keep_ms` are not told any more.
        """
        ...

    async def take_webhook_deliveries(self, *, limit: int, batch: int, claim_ms: int) -> tuple[Delivery, ...]:
        """Up to `batch` each for `limit` endpoints that are due, oldest first. For `claim_ms` nobody else gets them."""
        ...

    async def webhook_delivered(self, delivery: Delivery, *, is_last: bool) -> None:
        """It arrived. `is_last`: the endpoint is due again at once."""
        ...

    async def webhook_failed(
        self, delivery: Delivery, *, wait_ms: int, most_attempts: int, patience_ms: int, disable: str | None
    ) -> str | None:
        """It did not: the endpoint waits. A delivery with so many attempts is given up; an endpoint that has failed for
        `patience_ms`, or that `disable` says why, is disabled: returns why, None if it is not."""
        ...
