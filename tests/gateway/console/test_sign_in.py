"""Who may look at the console, and what of it stands in a browser."""

from __future__ import annotations

import httpx
import pytest
from starlette.requests import Request

from deuz_workers.app.access_tokens import AccessTokens
from deuz_workers.core.console_session import TTL_MS, ConsoleSession, FormSigner, SessionSigner
from deuz_workers.gateway import Principal, gateway
from tests.app.world import World
from tests.gateway.agents import asker, talker
from tests.gateway.console.markup import text_of
from tests.gateway.console.people import form_of, person, stranger
from tests.gateway.serving import served, serving

PAGES = ("/console/runs", "/console/waiting", "/console/runs/x", "/console/runs/x/stream")


def bearer(header: dict[str, str]) -> str:
    return header["authorization"].removeprefix("Bearer ")


async def test_a_token_turns_into_a_cookie_that_is_not_the_token(memory: World) -> None:
    """Strict, out of reach of scripts, for the console alone; the page that was wanted is shown."""
    async with served(memory.process(talker()), drives=False) as gate, stranger(gate.url) as ann:
        run_id = await gate.start("talker")
        wanted = await ann.http.get(f"/console/runs/{run_id}")
        assert wanted.status_code == 303
        token = bearer(await gate.token("ann", "default"))
        page = await ann.look(wanted.headers["location"])
        text_of(page)
        answer = await ann.send(page, "/sign-in", token=token)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/console/runs/{run_id}")
        cookie = next(one for one in answer.headers.get_list("set-cookie") if one.startswith("deuz_session="))
        assert {"HttpOnly", "SameSite=strict", "Path=/console"} <= set(cookie.split("; "))
        assert "Secure" not in cookie
        assert token not in cookie
        assert "talker" in text_of(await ann.look(answer.headers["location"]))


async def test_over_https_the_cookie_is_for_https_alone(memory: World) -> None:
    """A proxy on this machine says which it was."""
    async with served(memory.process(talker()), drives=False) as gate, stranger(gate.url) as ann:
        ann.http.headers["x-forwarded-proto"] = "https"
        page = await ann.http.get("/console/sign-in")
        visit = page.cookies.get("deuz_visit", "")
        fields = {"token": bearer(await gate.token("ann", "default")), "csrf": form_of(page.text, "/sign-in")[1]["csrf"]}
        answer = await ann.http.post("/console/sign-in", data=fields, headers={"cookie": f"deuz_visit={visit}"})
        assert answer.status_code == 303
        assert all("Secure" in cookie for cookie in answer.headers.get_list("set-cookie"))


async def test_nobody_sees_a_page_without_signing_in(memory: World) -> None:
    """Pages lead to the form, the stream is refused; a wrong token is, and leaves no session."""
    async with served(memory.process(talker()), drives=False) as gate, stranger(gate.url) as eve:
        for path in PAGES[:3]:
            answer = await eve.http.get(path)
            assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, "/console/sign-in")
        await eve.look(PAGES[3], 401)
        answer = await eve.sign_in("deuz_x_y")
        assert answer.status_code == 403
        assert "not good" in text_of(answer.text)
        assert "deuz_session" not in answer.cookies
        eve.http.cookies.set("deuz_session", "s1.e30.x")
        assert (await eve.http.get("/console/runs")).status_code == 303
        root = await eve.http.get("/")
        assert (root.status_code, root.headers["location"]) == (303, "/console")


async def test_a_session_ends_with_its_token(world: World) -> None:
    """When the token is revoked, and after a working day; nobody is asked to wait for either."""
    app = world.process(talker())
    tokens = AccessTokens(world.store, app.ids)
    async with served(app, drives=False) as gate, stranger(gate.url) as ann, stranger(gate.url) as bob:
        made, other = await tokens.create("ann", ["default"]), await tokens.create("bob", ["default"])
        for who, token in ((ann, made), (bob, other)):
            assert (await who.sign_in(token.token)).status_code == 303
            await who.look("/console/runs")
        await tokens.revoke(made.token_id)
        assert (await ann.http.get("/console/runs")).status_code == 303
        await bob.look("/console/runs")
        await world.later(TTL_MS + 1)
        assert (await bob.http.get("/console/runs")).status_code == 303


async def test_any_process_with_the_secret_knows_the_session(world: World) -> None:
    """Nothing of it is in the process that made it; one with another secret knows nobody."""
    same = "s" * 32
    apps = [world.process(asker(), gateway_secret=secret) for secret in (same, same, "t" * 32)]
    async with (
        served(apps[0]) as gate,
        serving(gateway(apps[1])) as second,
        serving(gateway(apps[2])) as third,
        person(gate, "ann") as ann,
    ):
        run_id = await gate.start("asker")
        await gate.report(run_id)
        page = await ann.look(f"/console/runs/{run_id}")
        address, fields = form_of(page, "/approve")
        elsewhere = await ann.http.post(second + address, data=fields)
        assert elsewhere.status_code == 303, elsewhere.text
        assert "Approved." in text_of(await ann.look(second + elsewhere.headers["location"]))
        assert (await ann.http.get(f"{third}/console/runs")).status_code == 303


async def test_a_form_of_another_site_does_nothing(memory: World) -> None:
    """Without the token of the form, with somebody else's, and when the browser says where it comes from."""
    async with served(memory.process(asker())) as gate, person(gate, "ann") as ann, person(gate, "bob") as bob:
        run_id = await gate.start("asker")
        before = await gate.report(run_id)
        address, fields = form_of(await ann.look(f"/console/runs/{run_id}"), "/approve")
        _, others = form_of(await bob.look(f"/console/runs/{run_id}"), "/approve")
        for data, headers in (
            ({**fields, "csrf": ""}, {}),
            ({**fields, "csrf": others["csrf"]}, {}),
            ({name: value for name, value in fields.items() if name != "csrf"}, {}),
            (fields, {"sec-fetch-site": "cross-site"}),
            (fields, {"sec-fetch-site": "same-site"}),
        ):
            answer = await ann.http.post(address, data=data, headers=headers)
            assert answer.status_code == 403
            assert "form_refused" in text_of(answer.text)
        assert (await ann.http.post("/console/sign-out", data={"x": "y"})).status_code == 403
        assert (await ann.http.post("/console/sign-in", data={"token": "x"})).status_code == 403
        assert (await ann.http.post(address, json=dict(fields))).status_code == 415
        assert await gate.report(run_id) == before
        assert (await ann.http.post(address, data=fields, headers={"sec-fetch-site": "same-origin"})).status_code == 303


async def test_signing_out_forgets_the_session(memory: World) -> None:
    """The browser is told so, and knows nobody afterwards."""
    async with served(memory.process(talker()), drives=False) as gate, person(gate) as ann:
        answer = await ann.send(await ann.look("/console/runs"), "/sign-out")
        assert answer.status_code == 303
        assert (await ann.http.get("/console/runs")).status_code == 303
        assert "deuz_session" not in ann.http.cookies


@pytest.mark.parametrize(
    "next_", ["https://evil.example/console", "//evil.example", "/consolex", "/v1/runs", "/console\\@e", "/console/\u0661"]
)
async def test_signing_in_leads_to_our_own_pages(memory: World, next_: str) -> None:
    """Whatever the address says where to go then."""
    async with served(memory.process(talker()), drives=False) as gate, stranger(gate.url) as ann:
        page = await ann.look("/console/sign-in", params={"next": next_})
        assert form_of(page, "/sign-in")[1]["next"] == "/console/runs"
        answer = await ann.sign_in(bearer(await gate.token("ann", "default")), next=next_)
        assert answer.headers["location"] == "/console/runs"


async def test_a_link_from_another_site_is_followed_in_two_steps(memory: World) -> None:
    """The browser keeps the strict cookie back at first; the page between has it ask again, from here."""
    async with served(memory.process(talker()), drives=False) as gate, stranger(gate.url) as ann:
        page = await ann.look("/console/runs", headers={"sec-fetch-site": "cross-site"})
        text_of(page)
        assert '<meta http-equiv="refresh" content="0">' in page


async def test_the_host_says_who_looks(memory: World) -> None:
    """There is no form to sign in then; forms are bound to who somebody is."""

    async def authenticate(request: Request) -> Principal | None:
        name = request.headers.get("x-user")
        return None if name is None else Principal(name, ("default",))

    async with served(memory.process(asker()), authenticate=authenticate) as gate, stranger(gate.url) as ann:
        assert "usually" in text_of(await ann.look("/console/runs", 401))
        await ann.look("/console/sign-in", 401)
        ann.http.headers["x-user"] = "ann"
        gate.http.headers["x-user"] = "ann"
        await ann.look("/console/sign-in", 404)
        run_id = await gate.start("asker")
        await gate.report(run_id)
        page = await ann.look(f"/console/runs/{run_id}")
        ann.http.headers["x-user"] = "eve"
        assert (await ann.send(page, "/approve")).status_code == 403
        ann.http.headers["x-user"] = "ann"
        assert (await ann.send(page, "/approve")).status_code == 303


async def test_tokens_in_addresses_are_refused_here_too(memory: World) -> None:
    """Even a good one."""
    async with served(memory.process(talker()), drives=False) as gate, stranger(gate.url) as ann:
        token = bearer(await gate.token("ann", "default"))
        answer = await ann.http.get("/console/sign-in", params={"token": token})
        assert answer.status_code == 400
        assert token not in answer.text


async def test_without_the_console_there_are_operations_alone(memory: World) -> None:
    """A setting leaves it out."""
    app = memory.process(talker(), gateway_console=False)
    async with served(app, drives=False) as gate:
        for path in ("/", "/console", "/console/runs", "/console/sign-in"):
            answer = await gate.http.get(path)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert (await gate.http.get("/v1/runs")).status_code == 200


def test_a_session_is_what_it_says_and_nothing_else() -> None:
    """Another secret, another moment, an altered one and a ticket read nothing; tokens of forms are of one subject."""
    signer, session = SessionSigner("a" * 32), ConsoleSession("d" * 64, "n", 1_000)
    cookie = signer.sign(session)
    assert signer.read(cookie, now_ms=999) == session
    assert signer.read(cookie, now_ms=1_000) is None
    assert SessionSigner("b" * 32).read(cookie, now_ms=0) is None
    for wrong in ("", "s1", "s1..", cookie.replace("s1.", "t1.", 1), None, f"{cookie}.x", "s1.é.é", "s1.W10.x"):
        assert signer.read(wrong, now_ms=0) is None
    forms = FormSigner("a" * 32)
    assert forms.fits(forms.token("one"), "one")
    for wrong in (forms.token("two"), FormSigner("b" * 32).token("one"), "", "é\ud800", None, 7):
        assert not forms.fits(wrong, "one")


async def test_a_strangers_form_token_is_of_their_own_visit(memory: World) -> None:
    """So that nobody can sign somebody else in: the field alone is not enough."""
    async with served(memory.process(talker()), drives=False) as gate, stranger(gate.url) as eve:
        _, fields = form_of(await eve.look("/console/sign-in"), "/sign-in")
        token = bearer(await gate.token("eve", "default"))
        async with httpx.AsyncClient(base_url=gate.url) as victim:
            answer = await victim.post("/console/sign-in", data={**fields, "token": token})
            assert (answer.status_code, "deuz_session" in answer.cookies) == (403, False)
