"""What the gateway does with endpoints that are told what happens to runs of the caller's scope."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from deuz_workers.core.webhook import WEBHOOK_EVENTS
from deuz_workers.gateway.bodies import Body, Id, Ms, Text, in_ms
from deuz_workers.gateway.operation import Call, Operation
from deuz_workers.gateway.problems import RequestError
from deuz_workers.ports.webhooks import WebhookRow

Event = Literal["run.suspended", "run.resumed", "run.completed", "run.stopped", "run.failed"]


class AddWebhook(Body):
    url: Text = Field(min_length=1, max_length=2_000)
    events: list[Event] = Field(default_factory=lambda: [*WEBHOOK_EVENTS], min_length=1, max_length=20)


class ReplayWebhook(Body):
    """Of one run, of so long ago, or only what was given up."""

    run_id: Id | None = None
    since_ms: Ms | None = None
    given_up: bool = False


class WebhookRecord(BaseModel):
    webhook_id: str
    scope: str
    url: str
    events: list[str]
    created_at_ms: int
    failures: int = Field(description="In a row.")
    disabled: str | None
    waiting: int
    given_up: int


class WebhooksPage(BaseModel):
    webhooks: list[WebhookRecord]


class WebhookAdded(BaseModel):
    webhook_id: str
    secret: str = Field(description="What its receiver checks signatures with.")


class WebhookChanged(BaseModel):
    webhook_id: str


class WebhookReplayed(BaseModel):
    webhook_id: str
    deliveries: int


async def add(call: Call) -> BaseModel:
    body: AddWebhook = call.body
    made = await call.gateway.app.webhooks.aio.add(body.url, events=body.events, scope=call.scope)
    return WebhookAdded(webhook_id=made.webhook_id, secret=made.secret)


async def listed(call: Call) -> BaseModel:
    return WebhooksPage(webhooks=[_record(row) for row in await call.gateway.app.webhooks.aio.list(call.scope)])


async def remove(call: Call) -> BaseModel:
    webhook_id = call.path["webhook_id"]
    if not await call.gateway.app.webhooks.aio.remove(webhook_id, scope=call.scope):
        raise _not_found()
    return WebhookChanged(webhook_id=webhook_id)


async def enable(call: Call) -> BaseModel:
    webhook_id = call.path["webhook_id"]
    if not await call.gateway.app.webhooks.aio.enable(webhook_id, scope=call.scope):
        raise _not_found()
    return WebhookChanged(webhook_id=webhook_id)


async def replay(call: Call) -> BaseModel:
    body: ReplayWebhook = call.body
    webhook_id, webhooks = call.path["webhook_id"], call.gateway.app.webhooks.aio
    if webhook_id not in {row.webhook_id for row in await webhooks.list(call.scope)}:
        raise _not_found()
    outcome = "given-up" if body.given_up else None
    count = await webhooks.replay(webhook_id, run_id=body.run_id, since=in_ms(body.since_ms), outcome=outcome, scope=call.scope)
    return WebhookReplayed(webhook_id=webhook_id, deliveries=count)


def _record(row: WebhookRow) -> WebhookRecord:
    return WebhookRecord(
        webhook_id=row.webhook_id,
        scope=row.scope,
        url=row.url,
        events=list(row.events),
        created_at_ms=row.created_at_ms,
        failures=row.failures,
        disabled=row.disabled,
        waiting=row.waiting,
        given_up=row.given_up,
    )


def _not_found() -> RequestError:
    return RequestError("there is no such webhook in this scope", 404, code="no_webhook")


_ONE = "/v1/webhooks/{webhook_id}"

OPERATIONS = (
    Operation("POST", "/v1/webhooks", "add_webhook", "Tell an endpoint of runs", add, WebhookAdded, 201, AddWebhook),
    Operation("GET", "/v1/webhooks", "list_webhooks", "Endpoints of the scope", listed, WebhooksPage),
    Operation("DELETE", _ONE, "remove_webhook", "Tell it nothing more", remove, WebhookChanged),
    Operation("POST", f"{_ONE}/enable", "enable_webhook", "Tell it again", enable, WebhookChanged),
    Operation(
        "POST",
        f"{_ONE}/replay",
        "replay_webhook",
        "Tell it the same again",
        replay,
        WebhookReplayed,
        body=ReplayWebhook,
    ),
)
