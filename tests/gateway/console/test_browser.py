"""The console in Chromium: followed live, across reloads, by keyboard, in a wide and a narrow window."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from deuz_workers import Agent, MockModel, Swarm, Task, tool
from deuz_workers.ports.model import ModelReply, ModelRequest, OnText
from deuz_workers.providers.script import call, calls, reply
from tests.app.world import World
from tests.gateway.agents import Fragments, asker, pay, talker
from tests.gateway.console.test_pages import HOSTILE
from tests.gateway.console.window import NARROW, WIDE, window
from tests.gateway.serving import served

pytestmark = pytest.mark.timeout(180)


@tool(replay="idempotent")
async def find_order(number: int) -> str:
    """Find an order."""
    return f"order {number}: one lamp, 39 EUR, arrived broken"


@tool(needs_approval=True)
async def refund(order: int, amount_eur: float, note: str) -> str:
    """Give money back."""
    return f"refunded {amount_eur} EUR"


class Held(Fragments):
    """Stands before every word that is `held`."""

    def __init__(self, script: Any, gate: asyncio.Event, *held: str) -> None:
        super().__init__(script, gate)
        self._held = held

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        reply = await MockModel.call(self, request)
        for place, word in enumerate(reply.message.text.split(" ")):
            if word in self._held:
                self.waits.set()
                await self.gate.wait()
            if on_text is not None:
                on_text(word if place == 0 else f" {word}")
            await asyncio.sleep(0)
        return reply


def clerk(gate: asyncio.Event) -> Agent:
    """Looks, wants to pay, and says so; stands in the middle of what it says."""
    wanted = call("refund", order=7, amount_eur=39.0, note="Arrived broken, photo attached").with_id("refund-7")
    script = [
        calls(call("find_order", number=7).with_id("find-7"), text="Let me look at order 7."),
        calls(wanted, text="The lamp arrived broken, so the customer gets the 39 EUR back."),
        reply("I have sent the money and told the customer when it will arrive."),
    ]
    return Agent("clerk", model=Held(script, gate, "so", "and"), tools=[find_order, refund])


async def test_a_run_is_followed_live_across_a_reload_and_approved(memory: World, chromium: Path) -> None:
    """Text comes while it is written, a reload in the middle shows it again and once, a call is approved with the keyboard,
    and the end is seen, without anybody asking for the page again."""
    gate = asyncio.Event()
    agent = clerk(gate)
    model = agent.definition.model
    assert isinstance(model, Fragments)
    async with served(memory.process(agent)) as made, window(chromium, made) as ann:
        run_id = await made.start("clerk", "Order 7 arrived broken.", stream=True, tags={"ticket": "T-7"})
        await model.waits.wait()
        await ann.look(f"/console/runs/{run_id}")
        live = ann.page.locator("#live .said")
        await expect(live).to_have_text("The lamp arrived broken,")
        await expect(ann.page.locator(".turn[data-turn='1'] .said")).to_have_text("Let me look at order 7.")
        await ann.picture("live")
        await ann.check()

        await ann.page.reload()
        await expect(live).to_have_text("The lamp arrived broken,")
        gate.set()
        title = ann.page.get_by_role("heading", name="Approve refund?")
        await expect(title).to_be_visible()
        await expect(ann.page.locator(".turn[data-turn='2'] .said")).to_have_text(
            "The lamp arrived broken, so the customer gets the 39 EUR back."
        )
        await expect(live).to_have_count(0)
        await expect(ann.page.locator(".chip").first).to_have_text("suspended")
        await ann.picture("approval")
        await ann.check()

        gate.clear()
        model.waits.clear()
        await ann.page.get_by_label("Reason (the model is told when you deny)").fill("seen the photo")
        await ann.page.keyboard.press("Tab")
        await expect(ann.page.get_by_role("button", name="Approve", exact=True)).to_be_focused()
        await ann.page.keyboard.press("Enter")
        await expect(ann.page.get_by_text("Approved.")).to_be_visible()
        await model.waits.wait()
        await expect(live).to_have_text("I have sent the money")
        gate.set()
        await expect(ann.page.locator(".chip").first).to_have_text("completed")
        answer = ann.page.locator("[data-part='output'] .said")
        await expect(answer).to_have_text("I have sent the money and told the customer when it will arrive.")
        await expect(live).to_have_count(0)
        await expect(ann.page.get_by_text("refund-7 approved by ann")).to_be_visible()
        await ann.picture("ended", whole=True)
        await ann.check()


async def test_a_swarm_of_thirty_tasks_is_watched(memory: World, chromium: Path) -> None:
    """Its picture changes colour while it runs; the task that waits is reached and approved by keyboard; it ends completed."""
    gate = asyncio.Event()
    agents = [
        Agent("planner", model=MockModel(["a plan"])),
        Agent("reader", model=Fragments(["~ read"], gate)),
        Agent("payer", model=MockModel([calls(call("pay", to="archive")), "paid"]), tools=[pay]),
        Agent("writer", model=MockModel(["a report"])),
    ]
    tasks = [Task("plan", agent="planner", prompt="x")]
    tasks += [Task("buy-access", agent="payer", prompt="x", depends_on=["plan"])]
    tasks += [Task(f"read-{n:02}", agent="reader", prompt="x", depends_on=["plan"]) for n in range(18)]
    tasks += [
        Task(f"digest-{n}", agent="planner", prompt="x", depends_on=[f"read-{one:02}" for one in range(3 * n, 3 * n + 3)])
        for n in range(6)
    ]
    tasks += [Task("archive", agent="planner", prompt="x", depends_on=["buy-access"])]
    tasks += [Task("figures", agent="planner", prompt="x", depends_on=["digest-0", "digest-1", "digest-2"])]
    tasks += [Task("texts", agent="planner", prompt="x", depends_on=["digest-3", "digest-4", "digest-5", "archive"])]
    tasks += [Task("report", agent="writer", prompt="x", depends_on=["figures", "texts"])]
    assert len(tasks) == 30
    async with served(memory.process(*agents)) as made, window(chromium, made) as ann:
        await made.app.aio.run_swarm(Swarm("survey", tasks, concurrency=7), run_id="survey-30")
        await ann.look("/console/runs/survey-30")
        nodes = ann.page.locator(".node")
        await expect(nodes).to_have_count(30)
        await expect(ann.page.locator(".node.s-completed")).to_have_count(1)
        await expect(ann.page.locator(".node.s-running")).to_have_count(7)
        await expect(ann.page.locator(".node.s-suspended")).to_have_count(1)
        await ann.picture("swarm")
        await ann.check()
        gate.set()
        await expect(ann.page.locator(".node.s-completed")).to_have_count(26)
        await ann.page.get_by_role("link", name="buy-access, suspended").focus()
        await ann.page.keyboard.press("Enter")
        await ann.page.get_by_role("button", name="Approve", exact=True).press("Enter")
        await ann.page.get_by_role("link", name="survey-30").click()
        await expect(ann.page.locator(".node.s-completed")).to_have_count(30)
        await expect(ann.page.locator(".chip").first).to_have_text("completed")
        await ann.check()


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (WIDE, "dark"), (NARROW, "light"), (NARROW, "dark")])
async def test_pages_are_fit_for_everybody(memory: World, chromium: Path, size: tuple[int, int], scheme: Any) -> None:
    """Names, labels, contrast and order, on a desk and on a phone, in both schemes; nothing sticks out."""
    gate = asyncio.Event()
    gate.set()
    app = memory.process(clerk(gate), asker(), talker())
    async with served(app) as made, window(chromium, made, "default", "blue", size=size, scheme=scheme) as ann:
        waits, ended, asks = await made.start("clerk"), await made.start("talker"), await made.start("asker")
        for run_id in (waits, ended, asks):
            await made.report(run_id)
        later = await made.start("talker", start_in_ms=600_000)
        await made.http.post(f"/v1/runs/{later}/cancel", json={"reason": "not needed"})
        await made.app.aio.run_swarm(
            Swarm("pair", [Task("a", agent="talker", prompt="x"), Task("b", agent="asker", prompt="x")]), run_id="pair"
        )
        await ann.look("/console/runs/pair?scope=default")
        await expect(ann.page.locator(".node.s-suspended")).to_have_count(1)
        shape = f"{'phone' if size == NARROW else 'desk'}-{scheme}"
        for name, path in (
            ("runs", "runs?scope=default"),
            ("waiting", "waiting?scope=default"),
            ("run", f"runs/{waits}?scope=default"),
            ("ended", f"runs/{ended}?scope=default"),
            ("cancelled", f"runs/{later}?scope=default"),
            ("pair", "runs/pair?scope=default"),
            ("filtered", "runs?scope=default&status=failed"),
            ("empty", "runs?scope=blue"),
        ):
            await ann.look(f"/console/{path}")
            await ann.picture(f"{shape}-{name}")
            for closed in await ann.page.locator("details > summary").all():
                await closed.click()
            await ann.check()
        await ann.look("/console/runs/nothing?scope=default")
        ann.complaints.clear()  # the browser says that the page was not found
        await ann.check()
        await ann.look("/console/waiting?scope=default")
        await ann.page.get_by_role("button", name="Sign out").click()
        await expect(ann.page.get_by_label("Access token")).to_be_focused()
        await ann.picture(f"{shape}-sign-in")
        await ann.check()


async def test_nothing_of_a_text_runs(memory: World, chromium: Path) -> None:
    """Hostile words in what is said live, in what is saved, and in what is asked for."""
    gate = asyncio.Event()
    script = [calls(call("pay", to=HOSTILE), text=f"{HOSTILE} ~ {HOSTILE}"), HOSTILE]
    agent = Agent("hostile", model=Fragments(script, gate), tools=[pay])
    async with served(memory.process(agent)) as made, window(chromium, made) as ann:
        run_id = await made.start("hostile", stream=True)
        await ann.look(f"/console/runs/{run_id}")
        await expect(ann.page.locator("#live .said")).to_contain_text("</script><script>alert(1)</script>")
        gate.set()
        await expect(ann.page.get_by_role("heading", name="Approve pay?")).to_be_visible()
        await ann.check()
        await ann.page.get_by_role("button", name="Approve", exact=True).click()
        await expect(ann.page.locator("[data-part='output'] .said")).to_contain_text("onerror=alert(2)")
        await ann.check()


async def test_what_somebody_writes_is_kept_when_the_page_changes(memory: World, chromium: Path) -> None:
    """An answer of somebody else changes the page; half a reason is not lost, and the reader is told."""
    async with served(memory.process(asker())) as made, window(chromium, made) as ann:
        run_id = await made.start("asker")
        await made.report(run_id)
        await ann.look(f"/console/runs/{run_id}")
        reason = ann.page.get_by_label("Reason (the model is told when you deny)")
        await reason.fill("because I")
        [waits] = (await made.report(run_id))["pending_client_calls"]
        answer = await made.http.post(f"/v1/runs/{run_id}/answer", json={"item_id": waits["item_id"], "output": "x"})
        assert answer.status_code == 200
        await expect(ann.page.get_by_text("This page has changed meanwhile")).to_be_visible()
        await expect(reason).to_have_value("because I")
        await ann.page.get_by_role("button", name="Deny").click()
        await expect(ann.page.locator(".chip").first).to_have_text("completed")
        await expect(ann.page.get_by_text("denied by ann")).to_be_visible()
        await ann.check()


async def test_a_page_says_when_its_session_has_ended(memory: World, chromium: Path) -> None:
    """It asks no more, and keeps what it shows."""
    async with served(memory.process(asker())) as made, window(chromium, made) as ann:
        run_id = await made.start("asker")
        await made.report(run_id)
        await ann.look(f"/console/runs/{run_id}")
        await ann.page.context.clear_cookies()
        await expect(ann.page.get_by_text("You are not signed in any more")).to_be_visible()
        await expect(ann.page.get_by_role("heading", name="Approve pay?")).to_be_visible()


async def test_a_link_from_another_site_leads_to_the_page(memory: World, chromium: Path) -> None:
    """The strict cookie is kept back at first; nobody has to sign in again, and a foreign form is refused all the same."""
    async with served(memory.process(asker())) as made, window(chromium, made) as ann:
        run_id = await made.start("asker")
        before = await made.report(run_id)
        address = f"{ann.url}/console/runs/{run_id}"
        await ann.page.goto("about:blank")
        await ann.page.set_content(f'<a href="{address}">look</a>')
        await ann.page.get_by_role("link", name="look").click()
        await expect(ann.page.get_by_role("heading", name="Approve pay?")).to_be_visible()
        await ann.check()
        await ann.page.goto("about:blank")
        await ann.page.set_content(f'<form method="post" action="{address}/cancel"><button>win</button></form>')
        await ann.page.get_by_role("button", name="win").click()
        await expect(ann.page.get_by_text("you are not signed in any more")).to_be_visible()
        assert await made.report(run_id) == before


async def test_everything_but_freshness_works_without_a_script(memory: World, chromium: Path) -> None:
    """Signing in, filters, an approval with other arguments, the end after another look, signing out."""
    async with served(memory.process(asker())) as made, window(chromium, made, scripts=False) as ann:
        run_id = await made.start("asker")
        await made.report(run_id)
        await ann.page.get_by_role("combobox", name="Status").select_option("suspended")
        await ann.page.get_by_role("button", name="Filter").click()
        await ann.page.get_by_role("link", name=run_id).click()
        await ann.page.get_by_text("Approve with other arguments").click()
        await ann.page.get_by_label("Arguments, as JSON").fill('{"to": "eve"}')
        await ann.page.get_by_role("button", name="Approve these").click()
        await expect(ann.page.get_by_text("Approved.")).to_be_visible()
        await ann.page.get_by_label("What it returned").fill("Bob")
        await ann.page.get_by_role("button", name="Hand in").click()
        await made.report(run_id)
        await ann.page.reload()
        await expect(ann.page.locator("[data-part='output'] .said")).to_have_text("thanks to both")
        assert (await memory.receipts(run_id))[1, "p"].value == "paid eve"
        await ann.page.get_by_role("button", name="Sign out").click()
        await expect(ann.page.get_by_label("Access token")).to_be_visible()
        assert ann.complaints == []
