"""Endpoints that are told what happens to runs: what they are sent, when again, and where nothing is sent."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pytest

from deuz_workers import (
    Agent,
    ConfigurationError,
    Deuz,
    EgressRefusedError,
    Limits,
    MockModel,
    SignedRequest,
    tool,
    verify_webhook,
)
from deuz_workers.app.courier import Courier
from deuz_workers.core.egress import egress_of
from deuz_workers.core.webhook import MOST_ATTEMPTS, PATIENCE_MS
from deuz_workers.errors import ModelUnavailableError
from deuz_workers.ports.webhooks import WebhookStore
from deuz_workers.providers.guarded import GuardedPosts
from deuz_workers.providers.script import call, calls
from tests.app.receiver import Received, Receiver
from tests.app.world import World
from tests.fake_clock import FakeClock

MASTER = "0123456789abcdef0123456789abcdef"
SOON_MS = 4 * 3_600_000
"""Longer than any wait of an endpoint that fails."""


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    "Pays."
    return f"paid {amount}"


def agents() -> list[Agent]:
    return [
        Agent("talker", model=MockModel(["xyzzy-secret"])),
        Agent("asker", model=MockModel([calls(call("pay", amount=3).with_id("p")), "done"]), tools=[pay]),
        Agent("failing", model=MockModel([ModelUnavailableError("away", billed="no")]), limits=Limits(max_retries=0)),
    ]


def process(world: World, **given: Any) -> Deuz:
    settings: dict[str, Any] = {"webhook_secret": MASTER, "egress_allow": ("127.0.0.1",), **given}
    return world.process(*agents(), **settings)


def courier(app: Deuz) -> Courier:
    made = app.webhooks.aio.courier()
    assert made is not None
    return made


async def tell(world: World, app: Deuz, *, in_ms: int = 0) -> int:
    """Passes until nothing new is found, `in_ms` from now by the database's clock."""
    if in_ms:
        await world.later(in_ms)
    return sum([await courier(app).tell() for _ in range(3)])


def types(receiver: Receiver) -> list[str]:
    return [json.loads(body)["type"] for _, body in receiver.received]


async def test_an_endpoint_is_told_of_waits_and_ends(world: World) -> None:
    """Signed, in order, each once, with ids and codes and without content; other scopes are not its."""
    app = process(world)
    with Receiver() as receiver:
        made = await app.webhooks.aio.add(receiver.url)
        first = await app.aio.run_embedded("asker", "xyzzy-secret", run_id="r")
        await app.aio.resume_embedded("r", approvals={first.pending_approvals[0].approval_id: True})
        await app.aio.run_embedded("failing", "xyzzy-secret", run_id="f")
        await app.aio.run_embedded("talker", "go", run_id="other", scope="blue")
        assert await tell(world, app, in_ms=5_000) == 4
        assert await tell(world, app) == 0
    assert types(receiver) == ["run.suspended", "run.resumed", "run.completed", "run.failed"]
    bodies = [json.loads(body) for _, body in receiver.received]
    assert [body["data"]["run_id"] for body in bodies] == ["r", "r", "r", "f"]
    assert bodies[3]["data"]["error"] == ModelUnavailableError("").code
    assert {body["data"]["scope"] for body in bodies} == {"default"}
    assert len(set(receiver.ids)) == 4
    for headers, body in receiver.received:
        now = int(headers["webhook-timestamp"])
        assert verify_webhook(headers, body, made.secret, now=now) == SignedRequest(body)
        assert b"xyzzy" not in body
        assert headers["host"].startswith("127.0.0.1:")
    assert app.webhooks.secret(made.webhook_id) == made.secret
    assert made.secret.removeprefix("whsec_") not in str(await app.webhooks.aio.list())


async def test_what_fails_is_told_again_under_its_id_and_in_order(world: World) -> None:
    """A refusal, a broken connection and a redirect are failures; nothing overtakes, and the endpoint has a rest."""
    app = process(world)
    answers: list[int | None] = [500, None, 302, 204]
    with Receiver(lambda received: answers.pop(0) if answers else 204) as receiver:
        receiver.headers["location"] = "http://127.0.0.1:1/elsewhere"
        [made] = [await app.webhooks.aio.add(receiver.url, events=["run.completed"])]
        for name in ("a", "b"):
            await app.aio.run_embedded("talker", "go", run_id=name)
        assert await tell(world, app, in_ms=5_000) == 0
        assert await tell(world, app) == 0
        assert len(receiver.received) == 1
        [row] = await app.webhooks.aio.list()
        assert (row.failures, row.waiting) == (1, 2)
        arrived = 0
        for _ in range(3):
            arrived += await tell(world, app, in_ms=SOON_MS)
    assert arrived == 2
    assert len(receiver.received) == 5
    assert receiver.ids[:4] == [receiver.ids[0]] * 4
    assert receiver.ids[4] != receiver.ids[0]
    [row] = await app.webhooks.aio.list()
    assert (row.failures, row.waiting, row.webhook_id) == (0, 0, made.webhook_id)


async def test_an_endpoint_that_does_not_answer_holds_up_no_other(memory: World) -> None:
    """Each has its own place and rest."""
    app = process(memory)
    with Receiver(lambda received: 503) as bad, Receiver() as good:
        bad.headers["retry-after"] = "600"
        for receiver in (bad, good):
            await app.webhooks.aio.add(receiver.url, events=["run.completed"])
        for name in ("a", "b", "c"):
            await app.aio.run_embedded("talker", "go", run_id=name)
        assert await tell(memory, app, in_ms=5_000) == 3
        assert await tell(memory, app, in_ms=500_000) == 0
        assert len(bad.received) == 1  # it asked for ten minutes
        await tell(memory, app, in_ms=101_000)
        assert len(bad.received) == 2
    assert len(good.received) == 3


async def test_an_endpoint_that_is_slow_and_far_behind_keeps_nobody_from_being_found(memory: World) -> None:
    """It takes all that it is told, seconds each: a pass ends meanwhile, and the next one looks for what has happened since."""
    app, clock = process(memory), FakeClock()
    posts = GuardedPosts(egress_of(["127.0.0.1"]))
    assert isinstance(app.store, WebhookStore)
    slowly = Courier(
        app.store,
        app.leases,
        posts,
        [MASTER],
        clock,
        app.ids,
        interval_ms=1_000,
        claim_ms=60_000,
    )

    def after_a_while(received: Received) -> int:
        clock.advance(4_000)
        return 204

    with Receiver(after_a_while) as slow, Receiver() as other:
        await app.webhooks.aio.add(slow.url, events=["run.completed"])
        await app.webhooks.aio.add(other.url, events=["run.failed"])
        for run_id in "abcdef":
            await app.aio.run_embedded("talker", "go", run_id=run_id)
        await memory.later(5_000)
        assert await slowly.tell() == 2
        await app.aio.run_embedded("failing", "go", run_id="g")
        await memory.later(10_000)
        assert await slowly.tell() == 3
        assert len(other.received) == 1
        assert [await slowly.tell() for _ in range(2)] == [2, 0]
        assert len(slow.received) == 6


async def test_what_cannot_be_told_is_given_up_and_can_be_replayed(memory: World, caplog: pytest.LogCaptureFixture) -> None:
    """After its attempts the next one follows; a replay has the same id."""
    app = process(memory)
    refused = "a"
    with Receiver(lambda received: 400 if f'"run_id":"{refused}"'.encode() in received[1] else 204) as receiver:
        made = await app.webhooks.aio.add(receiver.url, events=["run.completed"])
        for name in ("a", "b"):
            await app.aio.run_embedded("talker", "go", run_id=name)
        start = await memory.store.now_ms()
        with caplog.at_level(logging.INFO):
            for attempt in range(MOST_ATTEMPTS):
                memory.store.now = start + 5_000 + attempt * SOON_MS
                await courier(app).tell()
        assert len(receiver.received) == MOST_ATTEMPTS
        assert f"webhook_given_up webhook={made.webhook_id} run=a seq=" in caplog.text
        memory.store.now = start + (MOST_ATTEMPTS + 1) * SOON_MS
        assert await courier(app).tell() == 1
        [row] = await app.webhooks.aio.list()
        assert row.given_up == 1
        refused = "nobody"
        assert await app.webhooks.aio.replay(made.webhook_id, outcome="given-up") == 1
        assert await courier(app).tell() == 1
        assert receiver.ids[-1] == receiver.ids[0]
        assert await app.webhooks.aio.replay(made.webhook_id, run_id="b", since=timedelta(days=30)) == 1
        with pytest.raises(ConfigurationError, match="no webhook"):
            await app.webhooks.aio.replay("wh_none")


async def test_an_endpoint_is_left_alone_for_as_long_as_it_asks(memory: World) -> None:
    """Two hours are not one, which is the most that a model may ask for."""
    app = process(memory)
    status, minute_ms = 429, 60_000
    with Receiver(lambda received: status) as receiver:
        receiver.headers["retry-after"] = "7200"
        await app.webhooks.aio.add(receiver.url, events=["run.completed"])
        await app.aio.run_embedded("talker", "go", run_id="a")
        assert await tell(memory, app, in_ms=5_000) == 0
        status = 204
        assert await tell(memory, app, in_ms=115 * minute_ms) == 0
        assert await tell(memory, app, in_ms=121 * minute_ms) == 1
    assert len(receiver.received) == 2


async def test_an_endpoint_that_is_gone_is_disabled(memory: World) -> None:
    """By 410 at once, by failures after days; enabled again it is told what it missed."""
    app = process(memory)
    status = 410
    with Receiver(lambda received: status) as receiver:
        made = await app.webhooks.aio.add(receiver.url, events=["run.completed"])
        await app.aio.run_embedded("talker", "go", run_id="a")
        await tell(memory, app, in_ms=5_000)
        assert [row.disabled for row in await app.webhooks.aio.list()] == ["gone"]
        await app.aio.run_embedded("talker", "go", run_id="b")
        status = 204
        assert await tell(memory, app, in_ms=10_000) == 0
        assert await app.webhooks.aio.enable(made.webhook_id)
        assert await tell(memory, app) == 2
        status = 500
        await app.aio.run_embedded("talker", "go", run_id="c")
        await tell(memory, app, in_ms=5_000)
        await tell(memory, app, in_ms=PATIENCE_MS + 60_000)
        assert [row.disabled for row in await app.webhooks.aio.list()] == ["failing"]
    assert await app.webhooks.aio.remove(made.webhook_id)
    assert not await app.webhooks.aio.remove(made.webhook_id)


async def test_nothing_is_added_that_data_must_not_lead_to(memory: World) -> None:
    """Private addresses, plain http, unknown events and scopes; without a secret nothing at all."""
    app = process(memory, egress_allow=())
    for url in ("https://127.0.0.1/x", "http://example.com/", "https://10.0.0.1/", "https://localhost/"):
        with pytest.raises(EgressRefusedError):
            await app.webhooks.aio.add(url)
    allowed = process(memory)
    for events in ([], ["run.imagined"]):
        with pytest.raises(ConfigurationError):
            await allowed.webhooks.aio.add("http://127.0.0.1/x", events=events)
    bare = process(memory, webhook_secret=None)
    with pytest.raises(ConfigurationError, match="DEUZ_WEBHOOK_SECRET"):
        await bare.webhooks.aio.add("http://127.0.0.1/x")
    assert bare.webhooks.aio.courier() is None
    assert await app.webhooks.aio.list() == ()


async def test_an_address_that_became_private_is_not_told(memory: World) -> None:
    """The setting is looked at with every request, not when the endpoint was added."""
    with Receiver() as receiver:
        await process(memory).webhooks.aio.add(receiver.url)
        narrower = process(memory, egress_allow=())
        await narrower.aio.run_embedded("talker", "go", run_id="a")
        assert await tell(memory, narrower, in_ms=5_000) == 0
        assert receiver.received == []
        [row] = await narrower.webhooks.aio.list()
        assert (row.failures, row.waiting) == (1, 1)


async def test_a_step_asks_nothing_more_of_the_store(memory: World) -> None:
    """A run with endpoints makes the same operations as one without."""
    app = process(memory)
    counts: list[list[str]] = []
    fetch = memory.store.dialect.fetch
    for name in ("a", "b"):
        seen: list[str] = []

        async def counted(operation: str, params: Any, *, connection: Any = None, seen: list[str] = seen) -> Any:
            seen.append(operation)
            return await fetch(operation, params, connection=connection)

        memory.store.dialect.fetch = counted
        await app.aio.run_embedded("talker", "go", run_id=name)
        memory.store.dialect.fetch = fetch
        counts.append(sorted(operation for operation in seen if operation != "sweep"))
        if name == "a":
            await app.webhooks.aio.add("http://127.0.0.1:1/x")
    assert counts[0] == counts[1]
