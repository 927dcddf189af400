"""Starting, finding, answering and ending runs over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deuz_workers import Agent, MockModel, Reducer
from deuz_workers.providers.script import call, calls
from tests.app.world import World
from tests.gateway.agents import asker, talker
from tests.gateway.serving import served


async def test_a_run_is_started_listed_and_shown(world: World) -> None:
    """Its id is the gateway's; the list has it, and when it has ended its output is there."""
    async with served(world.process(talker())) as gate:
        answer = await gate.http.post("/v1/runs", json={"agent": "talker", "prompt": "go", "tags": {"team": "blue"}})
        run_id = answer.json()["run_id"]
        assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/runs/{run_id}")
        detail = await gate.report(run_id)
        assert (detail["status"], detail["output"], detail["agent"]) == ("completed", "it is done", "talker")
        listed = (await gate.http.get("/v1/runs", params={"tag": "team=blue", "status": "completed"})).json()
        assert [run["run_id"] for run in listed["runs"]] == [run_id]
        assert (await gate.http.get("/v1/runs", params={"tag": "team=red"})).json() == {"runs": [], "cursor": None}


async def test_pages_of_a_list_have_each_run_once(memory: World) -> None:
    """The cursor of a page begins the next one."""
    async with served(memory.process(talker()), drives=False) as gate:
        started = {await gate.start("talker") for _ in range(7)}
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = (await gate.http.get("/v1/runs", params={"limit": 3, **cursor})).json()
            seen += [run["run_id"] for run in page["runs"]]
            if page["cursor"] is None:
                break
            cursor = {"cursor": page["cursor"]}
        assert sorted(seen) == sorted(started)


async def test_the_same_key_is_the_same_run(world: World) -> None:
    """However often it is asked for; for something else under that key it is a conflict, in another scope another run."""
    async with served(world.process(talker()), drives=False) as gate:
        key = {"idempotency-key": "order-7"}
        body = {"agent": "talker", "prompt": "go"}
        answers = await asyncio.gather(*(gate.http.post("/v1/runs", json=body, headers=key) for _ in range(8)))
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["run_id"] for answer in answers}) == 1
        other = await gate.http.post("/v1/runs", json={**body, "prompt": "stop"}, headers=key)
        assert (other.status_code, other.json()["code"]) == (409, "run_exists")
        headers = {**await gate.token("bob", "blue"), **key}
        elsewhere = await gate.http.post("/v1/runs", json=body, headers=headers)
        assert elsewhere.json()["run_id"] != answers[0].json()["run_id"]
        assert elsewhere.json()["scope"] == "blue"


async def test_calls_are_answered_one_by_one_under_the_name_of_whoever_asks(world: World) -> None:
    """Each is stored at once; the second answer to one is a conflict that names the first."""
    async with served(world.process(asker())) as gate:
        run_id = await gate.start("asker")
        detail = await gate.report(run_id)
        approval, call_ = detail["pending_approvals"][0], detail["pending_client_calls"][0]
        approved = await gate.http.post(f"/v1/runs/{run_id}/approve", json={"approval_id": approval["approval_id"]})
        assert (approved.status_code, approved.json()["open_items"]) == (200, 1)
        bob = await gate.token("bob", "default")
        denied = await gate.http.post(f"/v1/runs/{run_id}/deny", json={"approval_id": approval["approval_id"]}, headers=bob)
        assert (denied.status_code, denied.json()["code"]) == (409, "already_answered")
        assert "by ann" in denied.json()["detail"]
        forged = {"approval_id": approval["approval_id"], "by": "carol"}
        assert (await gate.http.post(f"/v1/runs/{run_id}/approve", json=forged)).status_code == 422
        answered = await gate.http.post(f"/v1/runs/{run_id}/answer", json={"item_id": call_["item_id"], "output": "Ann"})
        assert answered.json()["open_items"] == 0
        assert (await gate.report(run_id))["output"] == "thanks to both"


async def test_only_those_who_are_meant_may_approve(world: World) -> None:
    """The gateway says who asks, whatever the request says."""
    from deuz_workers import Approval, tool

    @tool(needs_approval=Approval(people=("bob",)))
    async def sell() -> str:
        """Sell."""
        return "sold"

    agent = Agent("seller", model=MockModel([calls(call("sell")), "done"]), tools=[sell])
    async with served(world.process(agent)) as gate:
        run_id = await gate.start("seller")
        item = {"approval_id": (await gate.report(run_id))["pending_approvals"][0]["approval_id"]}
        ann = await gate.http.post(f"/v1/runs/{run_id}/approve", json=item)
        assert (ann.status_code, ann.json()["code"]) == (422, "answer_refused")
        whole = {"approvals": [{**item, "approved": True}]}
        assert not (await gate.http.post(f"/v1/runs/{run_id}/resume", json=whole)).json()["resumed"]
        bob = await gate.token("bob", "default")
        resumed = await gate.http.post(f"/v1/runs/{run_id}/resume", json=whole, headers=bob)
        assert resumed.json()["resumed"], resumed.text
        assert (await gate.report(run_id))["output"] == "done"


async def test_a_run_is_cancelled_and_pruned(world: World) -> None:
    """Cancelling twice says that it had ended; a pruned run is gone with its frames."""
    async with served(world.process(asker())) as gate:
        run_id = await gate.start("asker")
        await gate.report(run_id)
        rid = (await world.head(run_id)).rid
        await gate.frames(run_id)
        assert await world.store.last_frame("default", str(rid)) is not None
        answer = await gate.http.post(f"/v1/runs/{run_id}/cancel", json={"reason": "changed my mind"})
        assert (answer.status_code, answer.json()) == (202, {"accepted": True})
        detail = await gate.report(run_id)
        while detail["status"] == "suspended":
            await asyncio.sleep(0.01)
            detail = await gate.report(run_id)
        assert (detail["status"], detail["reason"]) == ("stopped", "aborted")
        assert detail["stop_details"]["cancel_reason"] == "changed my mind"
        assert (await gate.http.post(f"/v1/runs/{run_id}/cancel", json={})).json() == {"accepted": False}
        assert (await gate.http.post("/v1/prune", json={"older_than_ms": 3_600_000})).json() == {"pruned": 0}
        await world.later(10_000)
        assert (await gate.http.post("/v1/prune", json={"older_than_ms": 0})).json() == {"pruned": 1}
        assert (await gate.http.get(f"/v1/runs/{run_id}")).status_code == 404
        assert await world.store.last_frame("default", str(rid)) is None


async def test_events_of_a_run_are_read_by_number(memory: World) -> None:
    """A page after a number; all pages together are the journal."""
    async with served(memory.process(talker())) as gate:
        run_id = await gate.start("talker")
        await gate.report(run_id)
        whole = (await gate.http.get(f"/v1/runs/{run_id}/events")).json()["events"]
        assert [event["seq"] for event in whole] == list(range(1, len(whole) + 1))
        assert whole[-1]["type"] == "run.completed"
        page = (await gate.http.get(f"/v1/runs/{run_id}/events", params={"after": 2, "limit": 2})).json()["events"]
        assert page == whole[2:4]


async def test_a_swarm_is_started_and_shown(world: World) -> None:
    """Its tasks with their states, and a reducer that joins them; a graph that is none is refused."""

    def both(results: dict[str, str]) -> str:
        return " and ".join(sorted(results.values()))

    app = world.process(talker(), reducers=[Reducer("join", both)])
    tasks = [
        {"id": "a", "agent": "talker", "prompt": "go"},
        {"id": "b", "agent": "talker", "prompt": "go"},
        {"id": "c", "reducer": "join", "depends_on": ["a", "b"]},
    ]
    async with served(app) as gate:
        answer = await gate.http.post("/v1/swarms", json={"name": "both", "tasks": tasks}, headers={"idempotency-key": "k"})
        run_id = answer.json()["run_id"]
        again = await gate.http.post("/v1/swarms", json={"name": "both", "tasks": tasks}, headers={"idempotency-key": "k"})
        assert again.json()["run_id"] == run_id
        async with asyncio.timeout(30):
            while (swarm := (await gate.http.get(f"/v1/swarms/{run_id}")).json())["status"] == "running":  # noqa: ASYNC110 - as any client of HTTP
                await asyncio.sleep(0.02)
        assert swarm["status"] == "completed"
        assert {task["task_id"]: task["status"] for task in swarm["tasks"]} == dict.fromkeys("abc", "completed")
        assert (await gate.report(f"{run_id}%2Fc"))["output"] == "it is done and it is done"
        circle = [{"id": "a", "agent": "talker", "prompt": "x", "depends_on": ["a"]}]
        refused = await gate.http.post("/v1/swarms", json={"name": "both", "tasks": circle})
        assert (refused.status_code, refused.json()["code"]) == (422, "swarm_definition")
        assert (await gate.http.get(f"/v1/swarms/{await gate.start('talker')}")).status_code == 404


JSON = {"content-type": "application/json"}
NAN = '{"item_id": "i", "output": [{"a": %s}]}'


@pytest.mark.parametrize(
    ("method", "path", "given", "status", "code"),
    [
        ("POST", "/v1/runs", {"json": {"agent": "nobody", "prompt": "x"}}, 422, "unknown_agent"),
        ("POST", "/v1/runs", {"json": {"agent": "talker"}}, 422, "configuration"),
        ("POST", "/v1/runs", {"json": {"agent": "talker", "prompt": "x", "run_id": "mine"}}, 422, "invalid_request"),
        ("POST", "/v1/runs", {"json": {"agent": "talker", "prompt": 5}}, 422, "invalid_request"),
        ("POST", "/v1/runs", {"json": {"agent": "talker", "prompt": "a\0b"}}, 422, "invalid_request"),
        ("POST", "/v1/runs", {"json": []}, 422, "invalid_request"),
        ("POST", "/v1/runs", {"content": b"{", "headers": {"content-type": "application/json"}}, 422, "invalid_request"),
        ("POST", "/v1/runs", {"content": b"x=1"}, 415, "media_type"),
        ("POST", "/v1/runs", {}, 422, "invalid_request"),
        ("POST", "/v1/runs", {"headers": {"content-type": "text/plain"}}, 415, "media_type"),
        ("POST", "/v1/runs", {"json": {"agent": "talker", "prompt": "x" * 1_000_001}}, 413, "body_too_large"),
        (
            "POST",
            "/v1/runs",
            {"json": {"agent": "talker", "prompt": "x"}, "headers": {"idempotency-key": ""}},
            422,
            "idempotency_key",
        ),
        ("GET", "/v1/runs", {"params": {"limit": "many"}}, 422, "invalid_request"),
        ("GET", "/v1/runs", {"params": {"cursor": "none"}}, 422, "invalid_request"),
        ("GET", "/v1/runs", {"params": {"limit": ["1", "2"]}}, 422, "invalid_request"),
        ("GET", "/v1/runs", {"params": {"colour": "red"}}, 422, "invalid_request"),
        ("GET", "/v1/runs/none", {}, 404, "run_not_found"),
        ("GET", "/v1/runs/none/stream", {}, 404, "run_not_found"),
        ("POST", "/v1/runs/none/cancel", {"json": {}}, 404, "run_not_found"),
        ("POST", "/v1/runs/none/cancel", {}, 404, "run_not_found"),
        ("HEAD", "/v1/runs/none/stream", {}, 405, None),
        ("GET", "/v1/nothing", {}, 404, "not_found"),
        ("GET", "/v1/runs/%FF", {}, 404, "not_found"),
        ("POST", "/v1/runs/none/answer", {"content": NAN % "NaN", "headers": JSON}, 422, "invalid_request"),
        ("POST", "/v1/runs/none/answer", {"content": NAN % "1e999", "headers": JSON}, 422, "invalid_request"),
        ("PUT", "/v1/runs", {}, 405, "method_not_allowed"),
        ("POST", "/v1/runs/none/resume", {"json": {"runId": "other"}}, 422, "run_differs"),
        ("POST", "/v1/prune", {"json": {"older_than_ms": 1, "status": ["running"]}}, 422, "invalid_request"),
    ],
)
async def test_what_is_wrong_is_a_problem_with_a_code(
    memory: World, method: str, path: str, given: dict[str, Any], status: int, code: str | None
) -> None:
    """Of the media type of problems, with the code that the error has in Python."""
    async with served(memory.process(talker()), drives=False) as gate:
        answer = await gate.http.request(method, path, **given)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        if code is not None:
            assert (answer.json()["code"], answer.json()["status"]) == (code, status)
        if status == 405 and method == "PUT":
            assert answer.headers["allow"] == "GET, HEAD, POST"


async def test_words_about_interrupted_calls_are_given_over_http(world: World) -> None:
    """A run that is parked is shown with its unknown effects, and goes on by what is said of them."""
    from deuz_workers.testing.crashing_store import ProcessDied

    agent = Agent("payer", model=MockModel([calls(call("look", n=1).with_id("c")), "done"]), tools=[_unsafe()])
    app = world.process(agent)
    await app.aio.enqueue(agent, "go", run_id="r")
    with pytest.raises(ProcessDied):
        await world.dying(agent, at=3).aio.resume_embedded("r")
    await world.process(agent).aio.resume_embedded("r")
    async with served(world.process(agent)) as gate:
        detail = await gate.report("r")
        assert (detail["status"], detail["reason"]) == ("suspended", "tool-reconciliation-required")
        [effect] = detail["unknown_effects"]
        stream = await gate.raw("r")
        assert effect["effect_id"].encode() not in stream
        body = {"reconciledToolResults": [{"toolCallId": effect["effect_id"], "output": "it was done"}]}
        answer = await gate.http.post("/v1/runs/r/resume", json=body)
        assert answer.json()["resumed"], answer.text
        assert (await gate.report("r"))["output"] == "done"


def _unsafe() -> Any:
    from deuz_workers import tool

    @tool
    async def look(n: int) -> str:
        """Not safe to repeat."""
        return f"saw {n}"

    return look
