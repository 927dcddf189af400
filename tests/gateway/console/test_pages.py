"""What pages show, and what they do not."""

from __future__ import annotations

import re
from typing import Any

import pytest

from deuz_workers import Agent, MockModel, Swarm, Task, agent_tool, tool
from deuz_workers.gateway.console.page import POLICY
from deuz_workers.providers.script import call, calls, reply
from tests.app.world import World
from tests.gateway.agents import asker, talker
from tests.gateway.console.markup import Markup, text_of
from tests.gateway.console.people import form_of, person
from tests.gateway.serving import served

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;{{ 7*7 }}\u202egnp.exe\u2028\x07"


@tool(needs_approval=True)
async def send(what: dict[str, Any]) -> str:
    """Send something."""
    return "sent"


async def test_a_run_is_a_timeline(world: World) -> None:
    """Its turns with what the model said, its calls with how they ended, tokens, and how it stands."""
    async with served(world.process(talker())) as gate, person(gate) as ann:
        run_id = await gate.start("talker", tags={"ticket": "7"})
        await gate.report(run_id)
        page = await ann.look(f"/console/runs/{run_id}")
        text = text_of(page)
        for word in ("talker", "completed", "Turn 1", "let me see", "look", "done", "Turn 2", "it is done", "ticket"):
            assert word in text
        assert text.index("let me see") < text.index("Turn 2")
        assert re.findall(r'class="turn" data-turn="(\d)" data-saved', page) == ["1", "2"]
        assert "/approve" not in page
        assert "/cancel" not in page


async def test_a_waiting_run_shows_its_questions(world: World) -> None:
    """To whoever may answer, with what would run; the page of what waits has the same."""
    async with served(world.process(asker())) as gate, person(gate) as ann:
        run_id = await gate.start("asker")
        await gate.report(run_id)
        for path in (f"/console/runs/{run_id}", "/console/waiting"):
            page = await ann.look(path)
            text = text_of(page)
            for word in ("Approve pay?", '"to": "bob"', "Result wanted of ask?", '"what": "name"'):
                assert word in text
            for action in ("/approve", "/deny", "/answer"):
                assert "item" in form_of(page, action)[1]


async def test_what_is_too_long_for_the_page_of_what_waits_is_on_that_of_its_run(world: World) -> None:
    """One huge question takes the room of no other, and many of them make no huge page."""
    script = [calls(call("send", what={"text": "x" * 150_000}), call("send", what={"text": "y" * 150_000})), "done"]
    agents = [Agent("big", model=MockModel(script), tools=[send]), asker()]
    async with served(world.process(*agents)) as gate, person(gate) as ann:
        small, big = await gate.start("asker"), await gate.start("big")
        for run_id in (small, big):
            await gate.report(run_id)
        page = await ann.look("/console/waiting")
        assert 300_000 < len(page) < 400_000  # the first one twice, as it may be edited
        assert text_of(page).count("too long for this page") == 1
        assert "Approve pay?" in text_of(page)
        assert len(await ann.look(f"/console/runs/{big}")) > 600_000


async def test_a_foreign_run_is_like_one_that_is_not_there(world: World) -> None:
    """Whatever is asked of it, by page, stream or form; what differs is the id that was asked for."""
    async with served(world.process(asker())) as gate, person(gate, "bob", "blue") as bob, person(gate) as ann:
        run_id = await gate.start("asker")
        before = await gate.report(run_id)
        _, fields = form_of(await ann.look(f"/console/runs/{run_id}"), "/approve")
        token = form_of(await bob.look("/console/runs"), "/sign-out")[1]["csrf"]
        data = {**fields, "csrf": token}
        for path in ("", "/stream"):
            assert (await bob.look(f"/console/runs/{run_id}{path}", 404)).replace(run_id, "none") == (
                await bob.look(f"/console/runs/none{path}", 404)
            )
        for verb in ("approve", "deny", "answer", "cancel"):
            answers = [await bob.http.post(f"/console/runs/{one}/{verb}", data=data) for one in (run_id, "none")]
            assert [answer.status_code for answer in answers] == [404, 404]
            assert answers[0].text.replace(run_id, "none") == answers[1].text
        assert run_id not in await bob.look("/console/runs")
        assert run_id not in await bob.look("/console/waiting")
        forbidden = [await bob.look("/console/runs", 403, params={"scope": scope}) for scope in ("default", "nobodys")]
        assert forbidden[0].replace("default", "nobodys") == forbidden[1]
        assert await gate.report(run_id) == before


async def test_runs_are_filtered_and_paged(world: World) -> None:
    """By what the form has; the pages together show every run once; what is no filter is said."""
    async with served(world.process(talker(), asker()), drives=False) as gate, person(gate) as ann:
        ids = {await gate.start("talker", tags={"n": str(number % 2)}) for number in range(53)}
        other = await gate.start("asker")
        seen: list[str] = []
        page = await ann.look("/console/runs", params={"agent": "talker"})
        while True:
            text_of(page)
            seen += re.findall(r'id="r-[0-9a-f]+" href="/console/runs/([^?"]+)', page)
            found = re.search(r'id="next" href="([^"]+)"', page)
            if found is None:
                break
            page = await ann.look(found[1].replace("&amp;", "&"))
        assert (len(seen), set(seen)) == (53, ids)
        tagged = await ann.look("/console/runs", params={"tag": "n=1"})
        assert len(re.findall(r'id="r-', tagged)) == 26
        assert other in await ann.look("/console/runs", params={"status": "queued", "kind": "agent", "agent": "asker"})
        assert "No run fits" in text_of(await ann.look("/console/runs", params={"status": "failed"}))
        for wrong in ({"status": "lost"}, {"tag": "n"}, {"cursor": "x"}):
            assert "No such filter" in text_of(await ann.look("/console/runs", 422, params=wrong))


async def test_several_scopes_are_chosen_from(memory: World) -> None:
    """The first one is shown; of all scopes any can be named."""
    async with served(memory.process(talker()), drives=False) as gate, person(gate, "bob", "green", "blue") as bob:
        page = await bob.look("/console/runs")
        assert '<option value="blue" selected>' in page
        assert "scope=green" in await bob.look("/console/runs", params={"scope": "green"})
    async with served(memory.process(talker()), drives=False) as gate, person(gate, "root", "*") as root:
        assert 'id="scope" name="scope" value="default"' in await root.look("/console/runs")
        assert 'value="blue"' in await root.look("/console/runs", params={"scope": "blue"})
        await root.look("/console/runs", 422, params={"scope": "*"})


async def test_hostile_texts_are_texts(memory: World) -> None:
    """In what a model says, in arguments, ids of calls, names of runs and tags, reasons, and in what is searched for."""
    script = [calls(call("send", what={HOSTILE: HOSTILE}).with_id("c\u202e<b>"), text=HOSTILE), HOSTILE]
    async with served(memory.process(Agent("sends", model=MockModel(script), tools=[send]))) as gate, person(gate) as ann:
        shown = HOSTILE.replace("\x07", "").replace("\u2028", "").replace("\u202e", "")
        handle = await gate.app.aio.enqueue("sends", "go", run_id="<b>\"'&", tags={shown: shown})
        await handle.wait_for_report()
        pages = [
            await ann.look("/console/waiting"),
            await ann.look("/console/runs", params={"agent": HOSTILE, "tag": f"{shown}={shown}"}),
        ]
        pages.append(await ann.look("/console/runs/%3Cb%3E%22%27&"))
        answer = await ann.send(pages[2], "/deny", reason=shown)
        assert answer.status_code == 303
        await handle.result(30)
        pages.append(await ann.look(answer.headers["location"]))
        pages.append(await ann.look(f"/console/runs/{shown[:40].replace('/', '%2F')}", 404))
        for page in pages:
            read = Markup(page)
            assert read.mistakes == []
            assert "<script>alert" not in page
            assert "<img src=x" not in page
            assert "49" not in re.findall(r"amp;(\d+)", read.text)
        assert "⟨U+202E⟩gnp.exe⟨U+2028⟩⟨U+0007⟩" in text_of(pages[3])
        assert "\\u202egnp.exe" in text_of(pages[0])


async def test_long_texts_are_shown(memory: World) -> None:
    """100,000 characters of an answer and of arguments cost no page; what is edited is whole."""
    long = "wörter " * 14_500
    script = [calls(call("send", what={"text": long}), text=long), long]
    async with served(memory.process(Agent("sends", model=MockModel(script), tools=[send]))) as gate, person(gate) as ann:
        run_id = await gate.start("sends")
        await gate.report(run_id)
        page = await ann.look(f"/console/runs/{run_id}")
        text_of(page)
        assert page.count(long[:-1]) == 2  # the arguments, and the field to edit them
        assert "more characters" in page
        arguments = f'{{"what": {{"text": "{long}"}}}}'
        answer = await ann.send(page, "/approve", arguments=arguments)
        assert answer.status_code == 303
        await gate.report(run_id)
        assert long in await ann.look(f"/console/runs/{run_id}")


async def test_pages_let_a_browser_do_little(memory: World) -> None:
    """Every answer has the policy; pages are not kept, and those that a reader has are not sent again; files are kept."""
    async with served(memory.process(talker())) as gate, person(gate) as ann:
        run_id = await gate.start("talker")
        await gate.report(run_id)
        page = await ann.look(f"/console/runs/{run_id}")
        loads = re.findall(r'(?:src|href)="(/console/static/[^"]+)"', page)
        assert {one.rpartition("/")[2].partition("?")[0] for one in loads} == {"console.css", "console.js", "icon.svg"}
        for path in ("/console/runs", f"/console/runs/{run_id}", "/console/nothing", "/console/sign-in", *loads):
            answer = await ann.http.get(path)
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["x-content-type-options"] == "nosniff"
            kept = answer.headers["cache-control"]
            assert ("immutable" in kept) == (path in loads)
            assert ("no-store" in kept) == (path not in loads)
        first = await ann.http.get(f"/console/runs/{run_id}")
        again = await ann.http.get(f"/console/runs/{run_id}", headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert "unsafe" not in POLICY
        for path in ("/console/static/../page.py", "/console/static/%2e%2e%2fpage.py", "/console/static/none"):
            assert (await ann.http.get(path)).status_code == 404
        assert (await ann.http.post("/console/runs", data={})).status_code == 405


async def test_a_page_that_somebody_watches_costs_a_look_at_the_head(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as nothing has changed, no history is read again; other pages and other people are answered as themselves."""
    async with served(memory.process(talker())) as gate, person(gate) as ann, person(gate, "bob") as bob:
        ended, other = await gate.start("talker"), await gate.start("talker")
        await gate.report(ended)
        await gate.report(other)
        first = await ann.http.get(f"/console/runs/{ended}")
        known = {"if-none-match": first.headers["etag"]}
        for who, path in ((ann, other), (bob, ended), (ann, f"{ended}?did=cancel")):
            assert (await who.http.get(f"/console/runs/{path}", headers=known)).status_code == 200

        async def load(*_: object) -> None:
            raise AssertionError("the history was read")

        monkeypatch.setattr(memory.store, "load", load)
        assert (await ann.http.get(f"/console/runs/{ended}", headers=known)).status_code == 304


async def test_what_the_wire_keeps_back_is_on_no_page(memory: World) -> None:
    """Prompts, instructions, thoughts, arguments that wait for nobody, results and errors of tools, what looks like a key."""

    @tool(replay="idempotent")
    async def fetch(secret: str) -> str:
        """Fetch something."""
        if secret.endswith("error"):
            raise ValueError("SECRET-in-error")
        return "SECRET-in-result"

    script = [
        calls(call("fetch", secret="SECRET-in-arguments"), call("fetch", secret="SECRET-in-error")),
        reply("all is well", reasoning="SECRET-in-thought"),
    ]
    agent = Agent("keeps", model=MockModel(script), tools=[fetch], instructions="SECRET-in-instructions")
    async with served(memory.process(agent, talker())) as gate, person(gate) as ann:
        run_id = await gate.start("keeps", "SECRET-in-prompt")
        await gate.report(run_id)
        ended = await gate.start("talker", "SECRET-in-prompt", start_in_ms=600_000)
        await gate.http.post(f"/v1/runs/{ended}/cancel", json={"reason": "password: SECRET-in-reason"})
        await gate.report(ended)
        pages = [await ann.look(path) for path in (f"/console/runs/{run_id}", f"/console/runs/{ended}", "/console/runs")]
        assert "all is well" in text_of(pages[0])
        assert "***" in text_of(pages[1])
        for page in pages:
            assert "SECRET" not in page


async def test_a_swarm_is_a_picture_and_a_table(world: World) -> None:
    """Every task once in both, coloured by its state, linked to its run; a task leads back to the swarm."""
    names = ["a", "b", "c", "d"]
    tasks = [
        Task("a", agent="talker", prompt="x"),
        *(Task(name, agent="asker", prompt="x", depends_on=["a"]) for name in names[1:3]),
    ]
    swarm = Swarm("small", [*tasks, Task("d", agent="talker", prompt="x", depends_on=["b", "c"])])
    async with served(world.process(talker(), asker())) as gate, person(gate) as ann:
        handle = await gate.app.aio.run_swarm(swarm, run_id="s")
        await handle.result(30)
        page = await ann.look("/console/runs/s")
        text = text_of(page)
        for word in ("small", "suspended", "4, 3 open"):
            assert word in text
        nodes = re.findall(r'class="node s-(\w+)" href="/console/runs/s%2F(\w)', page)
        assert sorted(nodes, key=lambda node: node[1]) == [
            ("completed", "a"),
            ("suspended", "b"),
            ("suspended", "c"),
            ("pending", "d"),
        ]
        assert page.count("<path ") == 4
        task = await ann.look("/console/runs/s%2Fb")
        assert '<a href="/console/runs/s?' in task
        await ann.send(task, "/cancel")
        await gate.report("s%2Fb")
        assert len(re.findall(r"Approve pay", text_of(await ann.look("/console/waiting")))) == 1


async def test_delegated_runs_are_linked_and_answered_above(world: World) -> None:
    """The page of a run lists those below it, and has their questions; the answer leads back to it."""
    child = asker("helper")
    boss = Agent("boss", model=MockModel([calls(call("helper", prompt="do")), "well done"]), tools=[agent_tool(child)])
    async with served(world.process(boss, child)) as gate, person(gate) as ann:
        run_id = await gate.start("boss")
        await gate.report(run_id)
        page = await ann.look(f"/console/runs/{run_id}")
        text = text_of(page)
        for word in ("Delegated runs", "boss › helper", "Approve pay?"):
            assert word in text
        answer = await ann.send(page, "/approve")
        assert answer.headers["location"].startswith(f"/console/runs/{run_id}?")
        back = await ann.look(answer.headers["location"])
        assert "Approve pay?" not in text_of(back)


@pytest.mark.parametrize("path", ["/console/nothing", "/console/runs/x/y/z", "/console/runs/x/nothing", "/console/%FF"])
async def test_what_is_not_there_is_said(memory: World, path: str) -> None:
    """As a page, or as a problem where the address cannot be read."""
    async with served(memory.process(talker()), drives=False) as gate, person(gate) as ann:
        assert (await ann.http.get(path)).status_code == 404
