"""Webhooks over HTTP: added, listed, replayed and removed by whoever may touch the scope."""

from __future__ import annotations

from deuz_workers import Agent, MockModel
from tests.app.receiver import Receiver
from tests.app.world import World
from tests.gateway.serving import served

MASTER = "0123456789abcdef0123456789abcdef"


async def test_an_endpoint_is_added_listed_replayed_and_removed(world: World) -> None:
    """With a secret that is shown once it is added, and in no list."""
    app = world.process(Agent("x", model=MockModel(["done"])), webhook_secret=MASTER, egress_allow=("127.0.0.1",))
    async with served(app) as gate:
        with Receiver() as receiver:
            made = await gate.http.post("/v1/webhooks", json={"url": receiver.url, "events": ["run.completed"]})
            assert made.status_code == 201, made.text
            webhook_id, secret = made.json()["webhook_id"], made.json()["secret"]
            assert secret == app.webhooks.secret(webhook_id)
            await gate.report(await gate.start("x"))
            await world.later(5_000)
            courier = app.webhooks.aio.courier()
            assert courier is not None
            assert sum([await courier.tell() for _ in range(3)]) == 1
            [listed] = (await gate.http.get("/v1/webhooks")).json()["webhooks"]
            assert (listed["webhook_id"], listed["events"], listed["waiting"]) == (webhook_id, ["run.completed"], 0)
            assert secret not in str(listed)
            again = await gate.http.post(f"/v1/webhooks/{webhook_id}/replay", json={"since_ms": 3_600_000})
            assert again.json() == {"webhook_id": webhook_id, "deliveries": 1}
            assert await courier.tell() == 1
            assert receiver.ids[0] == receiver.ids[1]
        assert (await gate.http.post(f"/v1/webhooks/{webhook_id}/enable")).status_code == 200
        assert (await gate.http.delete(f"/v1/webhooks/{webhook_id}")).status_code == 200
        assert (await gate.http.delete(f"/v1/webhooks/{webhook_id}")).status_code == 404
        assert (await gate.http.get("/v1/webhooks")).json() == {"webhooks": []}


async def test_endpoints_of_another_scope_are_not_there(memory: World) -> None:
    """Whoever may not touch a scope learns nothing of its endpoints and changes none."""
    app = memory.process(Agent("x", model=MockModel(["done"])), webhook_secret=MASTER, egress_allow=("127.0.0.1",))
    async with served(app, drives=False) as gate:
        made = (await gate.http.post("/v1/webhooks", json={"url": "http://127.0.0.1:1/x"})).json()["webhook_id"]
        other = await gate.token("bob", "blue")
        assert (await gate.http.get("/v1/webhooks", headers=other)).json() == {"webhooks": []}
        for method, path in (
            ("DELETE", f"/v1/webhooks/{made}"),
            ("POST", f"/v1/webhooks/{made}/enable"),
            ("POST", f"/v1/webhooks/{made}/replay"),
        ):
            answer = await gate.http.request(method, path, headers=other)
            assert (answer.status_code, answer.json()["code"]) == (404, "no_webhook")
        assert len(await app.webhooks.aio.list()) == 1


async def test_what_must_not_be_added_is_refused(memory: World) -> None:
    """Private addresses, unknown events, long or no URLs; without a secret nothing at all."""
    app = memory.process(Agent("x", model=MockModel(["done"])), webhook_secret=MASTER)
    async with served(app, drives=False) as gate:
        for body, code in (
            ({"url": "https://10.0.0.1/"}, "egress_private"),
            ({"url": "http://example.com/"}, "egress_scheme"),
            ({"url": "https://127.0.0.1/", "events": ["run.imagined"]}, "invalid_request"),
            ({"url": ""}, "invalid_request"),
        ):
            answer = await gate.http.post("/v1/webhooks", json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
    bare = memory.process(Agent("x", model=MockModel(["done"])))
    async with served(bare, drives=False) as gate:
        answer = await gate.http.post("/v1/webhooks", json={"url": "https://example.com/"})
        assert (answer.status_code, answer.json()["code"]) == (422, "no_webhook_secret")
