"""What people say with forms, and what is made of it."""

from __future__ import annotations

import re

import pytest

from deuz_workers import Agent, Approval, MockModel, tool
from deuz_workers.providers.script import call, calls
from tests.app.world import World
from tests.gateway.agents import asker, talker
from tests.gateway.console.markup import text_of
from tests.gateway.console.people import Person, person
from tests.gateway.serving import Served, reading, served
from tests.gateway.serving import text_of as written


async def waiting(gate: Served, agent: str = "asker") -> str:
    run_id = await gate.start(agent)
    assert (await gate.report(run_id))["status"] == "suspended"
    return run_id


async def refused(ann: Person, run_id: str, action: str, **fields: str) -> str:
    """The run's own page, with what was wrong above it."""
    answer = await ann.send(await ann.look(f"/console/runs/{run_id}"), action, **fields)
    assert answer.status_code in (409, 422), answer.text
    alert = re.search(r'role="alert"[^>]*>(.*?)</p>', answer.text, re.DOTALL)
    assert alert is not None
    text_of(answer.text)
    return alert[1]


async def test_both_questions_are_answered_and_the_run_goes_on(world: World) -> None:
    """Under the name of whoever is signed in; what follows is shown from its beginning."""
    async with served(world.process(asker())) as gate, person(gate, "ann") as ann:
        run_id = await waiting(gate)
        page = await ann.look(f"/console/runs/{run_id}")
        approved = await ann.send(page, "/approve", reason="fine")
        assert approved.status_code == 303
        page = await ann.look(approved.headers["location"])
        assert "Approved." in text_of(page)
        assert "Approve pay?" not in text_of(page)
        answered = await ann.send(page, "/answer", output='{"name": "bob"}', **{"as": "json"})
        assert answered.status_code == 303
        stream = await ann.http.get(f"/console/runs/{run_id}/stream")
        assert list(written(reading(stream.content)).values()) == ["thanks to both"]
        text = text_of(await ann.look(f"/console/runs/{run_id}"))
        assert "approved by ann" in text
        assert "thanks to both" in text


async def test_a_denial_tells_the_reason(memory: World) -> None:
    """To the model; the page says who it was."""
    async with served(memory.process(asker())) as gate, person(gate, "ann") as ann:
        run_id = await waiting(gate)
        page = await ann.look("/console/waiting")
        answer = await ann.send(page, "/deny", reason="too dear")
        assert answer.headers["location"].startswith("/console/waiting?")
        await ann.send(await ann.look(f"/console/runs/{run_id}"), "/answer", output="nobody is there", **{"as": "error"})
        await gate.report(run_id)
        assert "denied by ann" in text_of(await ann.look(f"/console/runs/{run_id}"))
        receipts = await memory.receipts(run_id)
        assert receipts[1, "p"].reason == "too dear"
        assert receipts[1, "a"].error is not None


async def test_edited_arguments_are_those_that_run(memory: World) -> None:
    """And what is no object, or no JSON, is said and changes nothing."""
    async with served(memory.process(asker())) as gate, person(gate, "ann") as ann:
        run_id = await waiting(gate)
        before = await gate.report(run_id)
        assert "no JSON" in await refused(ann, run_id, "/approve", arguments="{")
        assert "an object" in await refused(ann, run_id, "/approve", arguments="[1]")
        assert "NaN" in await refused(ann, run_id, "/approve", arguments='{"to": NaN}')
        assert "too large" in await refused(ann, run_id, "/approve", arguments='{"to": 1e999}')
        assert "nested" in await refused(ann, run_id, "/approve", arguments="[" * 100_000)
        assert "to" in await refused(ann, run_id, "/approve", arguments='{"who": "x"}')
        assert "say how" in await refused(ann, run_id, "/answer", output=" ", **{"as": "error"})
        assert "names nothing" in await refused(ann, run_id, "/approve", item="")
        assert await gate.report(run_id) == before
        answer = await ann.send(await ann.look(f"/console/runs/{run_id}"), "/approve", arguments='{"to": "eve"}')
        assert answer.status_code == 303
        await ann.send(await ann.look(f"/console/runs/{run_id}"), "/answer", output="x", **{"as": "text"})
        await gate.report(run_id)
        receipts = await memory.receipts(run_id)
        assert receipts[1, "p"].value == "paid eve"
        assert receipts[1, "a"].value == "x"


async def test_the_second_of_two_answers_is_told_the_first(world: World) -> None:
    """Two people had the same page before them."""
    async with served(world.process(asker())) as gate, person(gate, "ann") as ann, person(gate, "bob") as bob:
        run_id = await waiting(gate)
        pages = [await who.look(f"/console/runs/{run_id}") for who in (ann, bob)]
        assert (await ann.send(pages[0], "/approve")).status_code == 303
        answer = await bob.send(pages[1], "/deny")
        assert answer.status_code == 409
        assert "approved by ann before" in text_of(answer.text)


async def test_who_is_not_asked_is_told_so(world: World) -> None:
    """A question for others is no form; a made-up one is refused. Of two people each is counted once."""

    @tool(needs_approval=Approval(people=("ann", "bob"), needed=2))
    async def pay(to: str) -> str:
        """Pay somebody."""
        return f"paid {to}"

    agent = Agent("payer", model=MockModel([calls(call("pay", to="x")), "done"]), tools=[pay])
    async with (
        served(world.process(agent)) as gate,
        person(gate, "ann") as ann,
        person(gate, "bob") as bob,
        person(gate, "eve") as eve,
    ):
        run_id = await waiting(gate, "payer")
        page = await ann.look(f"/console/runs/{run_id}")
        assert "needs 2 people" in text_of(page)
        theirs = await eve.look(f"/console/runs/{run_id}")
        assert "not yours to answer" in text_of(theirs)
        assert "/approve" not in theirs
        assert "For others" in text_of(await eve.look("/console/waiting"))
        made_up = await eve.send(
            page.replace("csrf", "none"), "/approve", csrf=re.findall(r'name="csrf" value="(\w+)"', theirs)[0]
        )
        assert made_up.status_code == 422
        assert (await ann.send(page, "/approve")).status_code == 303
        assert "not yours to answer" in text_of(await ann.look(f"/console/runs/{run_id}"))
        assert (await bob.send(await bob.look("/console/waiting"), "/approve")).status_code == 303
        assert (await gate.report(run_id))["status"] == "completed"


async def test_signed_requests_are_approved_with_their_token(memory: World) -> None:
    """The form carries it; one without is refused."""
    app = memory.process(asker(), approval_secret="a" * 32)
    async with served(app) as gate, person(gate) as ann:
        run_id = await waiting(gate)
        assert "token" in await refused(ann, run_id, "/approve", token="")
        assert (await ann.send(await ann.look(f"/console/runs/{run_id}"), "/approve")).status_code == 303


@pytest.mark.parametrize(
    "fields", [{"reason": "x\x00"}, {f"f{number}": "x" for number in range(40)}, {"reason": "x" * 1_100_000}]
)
async def test_a_form_that_no_page_sends_is_refused(memory: World, fields: dict[str, str]) -> None:
    """Nothing is stored of it."""
    async with served(memory.process(asker())) as gate, person(gate) as ann:
        run_id = await waiting(gate)
        before = await gate.report(run_id)
        answer = await ann.send(await ann.look(f"/console/runs/{run_id}"), "/approve", **fields)
        assert answer.status_code in (413, 422)
        assert await gate.report(run_id) == before


async def test_a_run_is_ended_from_its_page(memory: World) -> None:
    """With a reason, which the page shows; again it changes nothing."""
    async with served(memory.process(talker())) as gate, person(gate) as ann:
        run_id = await gate.start("talker", start_in_ms=600_000)
        page = await ann.look(f"/console/runs/{run_id}")
        for _ in range(2):
            assert (await ann.send(page, "/cancel", reason="not needed")).status_code == 303
            await gate.report(run_id)
        text = text_of(await ann.look(f"/console/runs/{run_id}"))
        assert "aborted" in text
        assert "not needed" in text
