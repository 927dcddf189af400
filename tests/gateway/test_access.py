"""Who may use the gateway, and what they learn of what is not theirs."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest
from starlette.requests import Request

from deuz_workers.app.access_tokens import AccessTokens, digest_of
from deuz_workers.core.stream_ticket import StreamTicket, TicketSigner
from deuz_workers.errors import ConfigurationError
from deuz_workers.gateway import Principal
from tests.app.world import World
from tests.gateway.agents import asker, talker
from tests.gateway.serving import Served, reading, served

PATHS = (
    ("GET", ""),
    ("GET", "/events"),
    ("GET", "/stream"),
    ("POST", "/tickets"),
    ("POST", "/resume"),
    ("POST", "/cancel"),
    ("POST", "/approve"),
    ("POST", "/deny"),
    ("POST", "/answer"),
)
BODIES = {"/approve": {"approval_id": "x"}, "/deny": {"approval_id": "x"}, "/answer": {"item_id": "x"}}


async def ask(gate: Served, method: str, path: str, run_id: str, headers: dict[str, str]) -> httpx.Response:
    json = None if method == "GET" else BODIES.get(path, {})
    return await gate.http.request(method, f"/v1/runs/{run_id}{path}", json=json, headers=headers)


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_a_foreign_run_is_like_one_that_is_not_there(world: World, method: str, path: str) -> None:
    """Whatever is asked about it, the answer differs from that about no run by the id alone; nothing was done."""
    async with served(world.process(asker())) as gate:
        run_id = await gate.start("asker")
        before = await gate.report(run_id)
        bob = await gate.token("bob", "blue")
        foreign = await ask(gate, method, path, run_id, bob)
        missing = await ask(gate, method, path, "none", bob)
        assert foreign.status_code == missing.status_code == 404
        assert foreign.text.replace(run_id, "none") == missing.text
        assert await gate.report(run_id) == before


async def test_a_scope_that_is_not_theirs_is_forbidden(memory: World) -> None:
    """The same words for one that has runs and for one that has none; several scopes have to be told apart."""
    async with served(memory.process(talker()), drives=False) as gate:
        await gate.start("talker")
        bob = await gate.token("bob", "blue", "green")
        answers = [await gate.http.get("/v1/runs", params={"scope": scope}, headers=bob) for scope in ("default", "nobodys")]
        assert [answer.status_code for answer in answers] == [403, 403]
        assert answers[0].text.replace("default", "nobodys") == answers[1].text
        assert (await gate.http.get("/v1/runs", headers=bob)).json()["code"] == "scope_needed"
        assert (await gate.http.get("/v1/runs", params={"scope": "green"}, headers=bob)).json()["runs"] == []
        everything = await gate.token("root", "*")
        assert len((await gate.http.get("/v1/runs", params={"scope": "default"}, headers=everything)).json()["runs"]) == 1


async def test_all_scopes_is_no_scope(memory: World) -> None:
    """Or a ticket for one run of a scope with that name would be good for all scopes."""
    async with served(memory.process(talker()), drives=False) as gate:
        root = await gate.token("root", "*")
        body = {"agent": "talker", "prompt": "x"}
        answer = await gate.http.post("/v1/runs", params={"scope": "*"}, json=body, headers=root)
        assert (answer.status_code, answer.json()["code"]) == (422, "scope_needed")


async def test_a_cursor_of_others_shows_nothing_of_theirs(memory: World) -> None:
    """It only says where a page begins."""
    async with served(memory.process(talker()), drives=False) as gate:
        for _ in range(3):
            await gate.start("talker")
        cursor = (await gate.http.get("/v1/runs", params={"limit": 1})).json()["cursor"]
        bob = await gate.token("bob", "blue")
        assert (await gate.http.get("/v1/runs", params={"cursor": cursor}, headers=bob)).json()["runs"] == []


async def test_tokens_are_stored_as_digests_and_end(world: World) -> None:
    """A revoked, an expired and an unknown one are refused alike; the store has the token nowhere."""
    tokens = AccessTokens(world.store, world.process().ids)
    made = await tokens.create("ann", ["default"], timedelta(hours=1))
    assert made.token not in repr(await tokens.list())
    assert (await tokens.find(made.token)) == (await tokens.list())[0]
    assert await tokens.find(made.token + "x") is None
    assert await tokens.find(digest_of(made.token)) is None
    await world.later(2 * 3_600_000)
    assert await tokens.find(made.token) is None
    world.store.now = None
    assert await tokens.find(made.token) is not None
    assert await tokens.revoke(made.token_id)
    first = (await tokens.list())[0].revoked_at_ms
    assert await tokens.revoke(made.token_id)
    assert (await tokens.list())[0].revoked_at_ms == first
    assert await tokens.find(made.token) is None
    assert not await tokens.revoke("none")


@pytest.mark.parametrize(
    ("principal", "scopes", "expires"),
    [("", ["a"], None), ("ann", [], None), ("ann", ["a\n"], None), ("ann", ["a"], timedelta(0)), ("ann", ["a"], timedelta(-1))],
)
async def test_a_token_that_cannot_be_meant_is_not_made(
    memory: World, principal: str, scopes: list[str], expires: timedelta | None
) -> None:
    """Nothing is written."""
    tokens = AccessTokens(memory.store, memory.process().ids)
    with pytest.raises(ConfigurationError):
        await tokens.create(principal, scopes, expires)
    assert await tokens.list() == ()


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer nonsense", "Basic deuz_x_y", "deuz_x_y"])
async def test_without_a_good_token_there_is_nothing(memory: World, given: str) -> None:
    """401 with a challenge, for a run that is there and for one that is not."""
    async with served(memory.process(talker()), drives=False) as gate:
        run_id = await gate.start("talker")
        for path in ("/v1/runs", f"/v1/runs/{run_id}", "/v1/runs/none", f"/v1/runs/{run_id}/stream"):
            answer = await gate.http.get(path, headers={"authorization": given})
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
            assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_token_in_an_address_is_refused(memory: World) -> None:
    """Even a good one, and even beside a good header."""
    async with served(memory.process(talker()), drives=False) as gate:
        token = (await gate.token("ann", "default"))["authorization"].removeprefix("Bearer ")
        for name in ("token", "access_token"):
            answer = await gate.http.get("/v1/runs", params={name: token})
            assert (answer.status_code, answer.json()["code"]) == (400, "token_in_query")


async def test_a_ticket_opens_one_stream_for_a_minute(world: World) -> None:
    """Without a header; no other run, no other operation, not when it has expired, and not when it was altered."""
    async with served(world.process(talker())) as gate:
        run_id, other = await gate.start("talker"), await gate.start("talker")
        whole = await gate.raw(run_id)
        answer = await gate.http.post(f"/v1/runs/{run_id}/tickets")
        assert answer.status_code == 201
        ticket = answer.json()["ticket"]
        nobody = httpx.AsyncClient(base_url=gate.url)
        async with nobody:
            path = f"/v1/runs/{run_id}/stream"
            assert (await nobody.get(path, params={"ticket": ticket})).content == whole
            assert (await nobody.get(f"/v1/runs/{other}/stream", params={"ticket": ticket})).status_code == 401
            assert (await nobody.get(f"/v1/runs/{run_id}", params={"ticket": ticket})).status_code == 401
            assert (await nobody.get(path, params={"ticket": ticket[:-2] + "xx"})).status_code == 401
            assert (await nobody.get(path, params={"ticket": ticket, "scope": "blue"})).status_code == 403
            await world.later(61_000)
            assert (await nobody.get(path, params={"ticket": ticket})).status_code == 401


def test_a_ticket_is_bound_to_everything_it_says() -> None:
    """Another secret, another format or another moment reads nothing."""
    signer = TicketSigner("a" * 32)
    ticket = StreamTicket("blue", "r", "ann", 1_000)
    text = signer.sign(ticket)
    assert signer.read(text, now_ms=999) == ticket
    assert signer.read(text, now_ms=1_000) is None
    assert TicketSigner("b" * 32).read(text, now_ms=0) is None
    for wrong in ("", "t1", "t1..", text.replace("t1.", "t2.", 1), None, f"{text}.x", "t1.é.é"):
        assert signer.read(wrong, now_ms=0) is None


async def test_the_host_says_who_somebody_is(memory: World) -> None:
    """Its own function takes the place of tokens; what it raises tells nothing."""

    async def authenticate(request: Request) -> Principal | None:
        name = request.headers.get("x-user")
        if name == "broken":
            raise RuntimeError("secret reason")
        return None if name is None else Principal(name, ("blue",))

    async with served(memory.process(talker()), drives=False, authenticate=authenticate) as gate:
        token = await gate.token("ann", "default")
        assert (await gate.http.get("/v1/runs", headers=token)).status_code == 401
        started = await gate.http.post("/v1/runs", json={"agent": "talker", "prompt": "x"}, headers={"x-user": "eve"})
        assert started.json()["scope"] == "blue"
        broken = await gate.http.get("/v1/runs", headers={"x-user": "broken"})
        assert (broken.status_code, broken.json()["code"]) == (500, "internal")
        assert "secret" not in broken.text


async def test_pages_of_other_sites_are_let_in_where_they_are_named(memory: World) -> None:
    """Without settings no site is; the one that is named gets the headers, another one does not."""
    app = memory.process(talker())
    async with served(app, drives=False) as gate:
        answer = await gate.http.get("/healthz", headers={"origin": "https://a.example"})
        assert "access-control-allow-origin" not in answer.headers
    app = memory.process(talker())
    object.__setattr__(app, "_settings", app.settings.model_copy(update={"gateway_origins": ("https://a.example",)}))
    del app.__dict__["settings"]
    async with served(app, drives=False) as gate:
        named = await gate.http.get("/healthz", headers={"origin": "https://a.example"})
        assert named.headers["access-control-allow-origin"] == "https://a.example"
        other = await gate.http.get("/healthz", headers={"origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


async def test_health_and_numbers_need_no_token_and_name_nobody(memory: World) -> None:
    """What is counted names operations; the run, its tenant and whoever asked are nowhere."""
    async with served(memory.process(talker())) as gate:
        run_id = await gate.start("talker")
        assert list(reading(await gate.raw(run_id)))[-1].is_done
        async with httpx.AsyncClient(base_url=gate.url) as nobody:
            assert (await nobody.get("/healthz")).json() == {"status": "ok"}
            assert (await nobody.get("/readyz")).json() == {"status": "ok"}
            looked = await nobody.head("/healthz")
            assert (looked.status_code, looked.content) == (200, b"")
            await nobody.get("/v1/runs")
            text = (await nobody.get("/metrics")).text
            document = (await nobody.get("/openapi.json")).json()
        assert 'deuz_gateway_requests_total{operation="start_run",status="202"} 1.0' in text
        assert 'deuz_gateway_requests_total{operation="stream_run",status="200"} 1.0' in text
        assert "deuz_gateway_refused_total 1.0" in text
        assert "deuz_gateway_streams 0.0" in text
        for word in (run_id, "ann", "default"):
            assert word not in text
        assert document["openapi"] == "3.1.0"


async def test_a_gateway_whose_store_is_not_ready_says_so(postgres_dsn: str) -> None:
    """It serves, and is not ready: the database has no schema. What is asked of runs is 503, with nothing of the database."""
    from deuz_workers import Deuz, Settings
    from deuz_workers.gateway import gateway
    from tests.gateway.serving import serving

    app = Deuz(settings=Settings(database_url=postgres_dsn, redis_url=None, leases_url="memory://"))
    async with serving(gateway(app)) as url, httpx.AsyncClient(base_url=url, timeout=60) as nobody:
        assert (await nobody.get("/healthz")).status_code == 200
        ready = await nobody.get("/readyz")
        assert (ready.status_code, ready.json()["code"]) == (503, "migration_missing")
        runs = await nobody.get("/v1/runs", headers={"authorization": "Bearer deuz_x_y"})
        assert (runs.status_code, runs.headers["retry-after"]) == (503, "1")
        assert "127.0.0.1" not in runs.text
