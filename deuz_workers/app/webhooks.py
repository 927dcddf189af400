"""Endpoints that are told what happens to runs: `app.webhooks`, and `app.webhooks.aio` for code on an event loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from deuz_workers.app.loop_thread import LOOP
from deuz_workers.app.names import check_id
from deuz_workers.core.egress import egress_of
from deuz_workers.core.webhook import WEBHOOK_EVENTS, secret_of
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.webhooks import Outcome, WebhookRow, WebhookStore

if TYPE_CHECKING:  # an HTTP client takes a tenth of a second to import
    from deuz_workers.app.courier import Courier
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.providers.guarded import GuardedPosts

MOST_URL_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class MadeWebhook:
    """`secret` is what its receiver checks signatures with (`verify_webhook`); it is stored nowhere."""

    webhook_id: str
    secret: str


class AsyncWebhooks:
    """Of one application. Workers of it tell, once a second, whoever is due."""

    def __init__(self, app: Deuz) -> None:
        self._app = app

    @property
    def _store(self) -> WebhookStore:
        store = self._app.store
        if not isinstance(store, WebhookStore):
            raise ConfigurationError(f"{type(store).__name__} keeps no webhooks; give it the methods of ports.webhooks")
        return store

    @property
    def _master(self) -> str:
        secret = self._app.settings.webhook_secret
        if secret is None:
            raise ConfigurationError(
                "webhooks are signed with secrets made from one of yours; set DEUZ_WEBHOOK_SECRET (32 characters or more), the "
                "same for all workers",
                code="no_webhook_secret",
            )
        return secret.get_secret_value()

    async def add(self, url: str, *, events: Iterable[str] = WEBHOOK_EVENTS, scope: str = "default") -> MadeWebhook:
        """It is told of these events of runs of the scope (`*`: all) from now on.

        Raises: ConfigurationError; EgressRefusedError where data may not lead to that URL. Nothing was written then.
        """
        master, chosen = self._master, tuple(dict.fromkeys(events))
        unknown = [event for event in chosen if event not in WEBHOOK_EVENTS]
        if unknown or not chosen:
            told = ", ".join(WEBHOOK_EVENTS)
            raise ConfigurationError(f"webhooks are told of {told}; not of {', '.join(unknown) or 'nothing'}")
        check_id("a scope", scope)
        if len(url) > MOST_URL_CHARS:
            raise ConfigurationError(f"the URL of a webhook has at most {MOST_URL_CHARS} characters, not {len(url)}")
        await self._posts.pinned(url)
        webhook_id = f"wh_{self._app.ids.token()[:16]}"
        await self._store.add_webhook(webhook_id, scope, url, chosen)
        return MadeWebhook(webhook_id, secret_of(master, webhook_id))

    async def list(self, scope: str | None = None) -> tuple[WebhookRow, ...]:
        """Those of the scope, oldest first; None: all."""
        return await self._store.webhooks(scope)

    def secret(self, webhook_id: str) -> str:
        """Of an endpoint, whether it is there or not. Raises ConfigurationError where no secret is set."""
        return secret_of(self._master, webhook_id)

    async def remove(self, webhook_id: str, *, scope: str | None = None) -> bool:
        """It is told nothing more. False: there is none of that id (in the scope)."""
        return await self._store.remove_webhook(webhook_id, scope)

    async def enable(self, webhook_id: str, *, scope: str | None = None) -> bool:
        """It is told again, of what it missed first. False: there is none of that id (in the scope)."""
        return await self._store.enable_webhook(webhook_id, scope)

    async def replay(
        self,
        webhook_id: str,
        *,
        run_id: str | None = None,
        since: timedelta | None = None,
        outcome: Outcome | None = None,
        scope: str | None = None,
    ) -> int:
        """What it was told, or what was given up (`outcome`), it is told again under the same ids; how much that is.

        `since`: of so long ago at most; 30 days are kept. Raises ConfigurationError where there is none of that id.
        """
        since_ms = None if since is None else await self._app.store.now_ms() - round(since / timedelta(milliseconds=1))
        count = await self._store.replay_webhook(webhook_id, scope, run_id=run_id, since_ms=since_ms, outcome=outcome)
        if count is None:
            raise ConfigurationError(f"there is no webhook {webhook_id!r}; deuz webhooks list shows them", code="no_webhook")
        return count

    @property
    def _posts(self) -> GuardedPosts:
        from deuz_workers.providers.guarded import GuardedPosts

        return GuardedPosts(egress_of(self._app.settings.egress_allow))

    def courier(self) -> Courier | None:
        """What a worker tells endpoints with; None where no secret is set, or the store keeps no webhooks."""
        app, settings = self._app, self._app.settings
        if settings.webhook_secret is None or not isinstance(app.store, WebhookStore):
            return None
        from deuz_workers.app.courier import Courier

        given = (settings.webhook_secret, settings.webhook_secret_before)
        masters = [secret.get_secret_value() for secret in given if secret is not None]
        times = {"interval_ms": settings.sweep_interval_ms, "claim_ms": 2 * settings.lease_ttl_ms}
        return Courier(app.store, app.leases, self._posts, masters, app.clock, app.ids, **times)


class Webhooks:
    """The same for code without an event loop."""

    def __init__(self, aio: AsyncWebhooks) -> None:
        self.aio = aio

    def add(self, url: str, *, events: Iterable[str] = WEBHOOK_EVENTS, scope: str = "default") -> MadeWebhook:
        """See `AsyncWebhooks.add`."""
        return LOOP.run(self.aio.add(url, events=events, scope=scope))

    def list(self, scope: str | None = None) -> tuple[WebhookRow, ...]:
        """Those of the scope, oldest first; None: all."""
        return LOOP.run(self.aio.list(scope))

    def secret(self, webhook_id: str) -> str:
        """See `AsyncWebhooks.secret`."""
        return self.aio.secret(webhook_id)

    def remove(self, webhook_id: str, *, scope: str | None = None) -> bool:
        """See `AsyncWebhooks.remove`."""
        return LOOP.run(self.aio.remove(webhook_id, scope=scope))

    def enable(self, webhook_id: str, *, scope: str | None = None) -> bool:
        """See `AsyncWebhooks.enable`."""
        return LOOP.run(self.aio.enable(webhook_id, scope=scope))

    def replay(self, webhook_id: str, **chosen: str | timedelta | None) -> int:
        """See `AsyncWebhooks.replay`."""
        return LOOP.run(self.aio.replay(webhook_id, **chosen))  # pyright: ignore[reportArgumentType]
