"""A run as server-sent events: from its beginning, from anywhere, and never more than readers may know."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from deuz_workers import Agent, MockModel, ToolContext, tool
from deuz_workers.app.ui_reading import UiFrame, UiReader
from deuz_workers.app.ui_state import agent_state_from_parts
from deuz_workers.errors import StoreUnavailableError
from deuz_workers.providers.script import call, calls, fails
from tests.app.world import World
from tests.gateway.agents import asker, talker
from tests.gateway.serving import data_of, reading, served, text_of


@pytest.mark.spec("UIW-007", "UIW-005", "UIW-014")
async def test_a_reload_at_any_event_shows_neither_gap_nor_duplicate(world: World) -> None:
    """For every number: what comes after it is exactly the rest, under the same numbers, and the end."""
    async with served(world.process(talker())) as gate:
        run_id = await gate.start("talker")
        whole = await gate.frames(run_id)
        assert text_of(whole) == {1: "let me see", 2: "it is done"}
        assert whole[-1].is_done
        for frame in whole:
            assert frame.seq is not None
            rest = await gate.frames(run_id, frame.seq)
            assert rest == [later for later in whole[:-1] if later.seq is not None and later.seq > frame.seq] + [whole[-1]]


@pytest.mark.spec("UIW-005", "UIW-007")
async def test_a_reader_who_reloads_after_every_frame_of_a_live_run_sees_all_of_it(world: World) -> None:
    """It leaves after each single frame, and comes back with its number, while the run goes on."""
    agent = talker("it", "~", "is", "~", "done")
    async with served(world.process(agent)) as gate:
        run_id = await gate.start("talker", stream=True)  # or it may say "it" before the first reader comes
        seen: list[Any] = []
        while not seen or not seen[-1].is_done:
            headers = {"last-event-id": str(seen[-1].seq)} if seen else {}
            async with gate.http.stream("GET", f"/v1/runs/{run_id}/stream", headers=headers) as answer:
                raw = b""
                async for chunk in answer.aiter_raw():
                    raw += chunk
                    if frames := list(reading(raw)):
                        seen.append(frames[0])
                        break
            if text_of(seen).get(2, "").startswith("it"):
                agent.model.gate.set()  # type: ignore[union-attr]
        assert [frame.seq for frame in seen] == list(range(1, len(seen) + 1))
        assert text_of(seen)[2] == "it ~ is ~ done"
        assert seen == await gate.frames(run_id)


async def test_a_store_that_is_away_cuts_a_response_and_tells_the_log_no_more_than_the_place(
    memory: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not what the database said, which may quote what was sent; when it is back the reader has the rest."""
    app = memory.process(talker())
    async with served(app) as gate:
        run_id = await gate.start("talker")
        whole = await gate.raw(run_id)

        async def away(*_: object) -> None:
            raise StoreUnavailableError("secret words")

        with monkeypatch.context() as patch:
            patch.setattr(app.store, "read_frames", away)
            with pytest.raises(httpx.RemoteProtocolError):
                await gate.raw(run_id)
        assert await gate.raw(run_id) == whole
    assert "gateway_broke operation=stream_run error=StoreUnavailableError" in caplog.text
    assert "secret" not in caplog.text


async def test_many_readers_of_one_run_are_shown_the_same(memory: World) -> None:
    """One recorder serves them all, whenever they come."""
    agent = talker("it", "~", "done")
    async with served(memory.process(agent)) as gate:
        run_id = await gate.start("talker")
        early = [asyncio.create_task(gate.frames(run_id)) for _ in range(5)]
        await agent.model.waits.wait()  # type: ignore[union-attr]
        late = [asyncio.create_task(gate.frames(run_id)) for _ in range(5)]
        await asyncio.sleep(0)
        agent.model.gate.set()  # type: ignore[union-attr]
        shown = [await read for read in (*early, *late)]
        assert all(frames == shown[0] for frames in shown)


@pytest.mark.spec("UIW-009")
async def test_a_suspended_run_goes_on_by_one_request_with_all_answers(world: World) -> None:
    """The verdict alone and the result alone leave it as it is; both together, under the run's name, continue it."""
    async with served(world.process(asker())) as gate:
        run_id = await gate.start("asker")
        first = await gate.frames(run_id)
        state = agent_state_from_parts(frame.part for frame in first if frame.part is not None)
        assert state.status == "suspended"
        verdict = [{"approvalId": state.pending_approvals[0]["approvalId"], "approved": True}]
        outcome = [{"toolCallId": state.pending_client_calls[0]["toolCallId"], "output": "Ann"}]
        for part in ({"approvals": verdict}, {"clientToolResults": outcome}):
            answer = await gate.http.post(f"/v1/runs/{run_id}/resume", json={"runId": run_id, **part})
            assert (answer.status_code, answer.json()["resumed"]) == (200, False)
            assert (await gate.report(run_id))["status"] == "suspended"
        both = {"runId": run_id, "approvals": verdict, "clientToolResults": outcome}
        answer = await gate.http.post(f"/v1/runs/{run_id}/resume", json=both)
        assert (answer.status_code, answer.json()["resumed"]) == (200, True)
        assert (await gate.report(run_id))["output"] == "thanks to both"


@pytest.mark.spec("UIW-017")
async def test_the_end_of_a_leg_is_the_end_only_while_nothing_follows(world: World) -> None:
    """A reader who comes back after a suspended leg is shown the next one, and the whole stream has one end."""
    async with served(world.process(asker())) as gate:
        run_id = await gate.start("asker")
        first = await gate.frames(run_id)
        assert first[-1].is_done
        assert await gate.frames(run_id, first[-1].seq) == [first[-1]]
        pending = data_of(first)[-1]
        answers = {
            "approvals": [{"approvalId": pending["pendingApprovals"][0]["approvalId"], "approved": True}],
            "clientToolResults": [{"toolCallId": "a", "output": "Ann"}],
        }
        assert (await gate.http.post(f"/v1/runs/{run_id}/resume", json=answers)).json()["resumed"]
        second = await gate.frames(run_id, first[-1].seq)
        assert second[0].seq == (first[-1].seq or 0) + 1
        assert data_of(second)[-1]["output"] == "thanks to both"
        whole = await gate.frames(run_id)
        assert whole == [*first[:-1], *second]
        assert [frame.is_done for frame in whole].count(True) == 1


@pytest.mark.spec("UIW-019")
async def test_a_cursor_that_is_none_begins_at_the_start(memory: World) -> None:
    """Letters, signs, fractions, emptiness; a number is taken by itself."""
    async with served(memory.process(talker())) as gate:
        run_id = await gate.start("talker")
        whole = await gate.raw(run_id)
        for garbage in ("x", "-1", "1.5", "", "0x1", "1e3", "9" * 30, "١"):
            answer = await gate.http.get(f"/v1/runs/{run_id}/stream", headers={"last-event-id": garbage.encode()})  # type: ignore[dict-item]
            assert answer.content == whole, garbage


@pytest.mark.spec("UIW-019")
async def test_a_stream_that_has_nothing_to_say_ends_without_its_end(memory: World) -> None:
    """Nobody executes the run: the response closes, without `[DONE]`."""
    async with served(memory.process(talker()), drives=False, idle_s=0.05) as gate:
        run_id = await gate.start("talker")
        assert b"[DONE]" not in await gate.raw(run_id)


@pytest.mark.spec("UIW-020")
async def test_an_older_wire_is_refused_in_words(memory: World) -> None:
    """The header of the request names another version."""
    async with served(memory.process(talker())) as gate:
        run_id = await gate.start("talker")
        answer = await gate.http.get(f"/v1/runs/{run_id}/stream", headers={"x-deuz-stream": "v1"})
        assert (answer.status_code, answer.json()["code"]) == (406, "wire_version")


MARK = "MARKED-SECRET"


@pytest.mark.spec("UIW-010")
@pytest.mark.parametrize("ending", ["completed", "suspended", "stopped", "failed"])
async def test_no_frame_has_anything_private(memory: World, ending: str) -> None:
    """Prompts, instructions, results of tools, errors of tools, contexts and receipts are full of marks; no frame has one."""

    @tool(context_schema=dict[str, str])
    async def secret(context: ToolContext) -> dict[str, str]:
        """Return a secret."""
        return {"raw": f"{MARK}-raw", "context": context.context["key"]}

    @tool
    async def breaks() -> str:
        """Fail with a secret."""
        raise ValueError(f"{MARK}-error")

    @tool
    async def effect() -> str:
        """Have an effect of which nobody knows."""
        raise AssertionError("never begun")

    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return f"{MARK}-paid"

    last: Any = {
        "completed": "all is well",
        "suspended": calls(call("pay")),
        "stopped": calls(call("secret")),
        "failed": fails(RuntimeError(f"no: api_key={MARK}")),
    }[ending]
    script = [calls(call("secret"), call("breaks")), last, last]
    from deuz_workers import Limits, RunContext

    agent = Agent(
        "keeper",
        model=MockModel(script),
        instructions=f"{MARK}-instructions",
        tools=[secret, breaks, effect, pay],
        limits=Limits(max_steps=2),
        make_context=lambda facts: RunContext(tools={"secret": {"key": f"{MARK}-context"}}),
    )
    async with served(memory.process(agent)) as gate:
        run_id = await gate.start("keeper", f"{MARK}-prompt", tags={"note": f"{MARK}-tag"})
        raw = await gate.raw(run_id)
        assert data_of(reading(raw))[-1]["status"] == ending
        assert MARK.encode() not in raw
        assert MARK.encode() not in await gate.raw(run_id, 0)


async def test_a_swarm_has_no_stream_but_its_tasks_have(memory: World) -> None:
    """A task's run is found under `<swarm>%2F<task>`."""
    async with served(memory.process(talker())) as gate:
        answer = await gate.http.post(
            "/v1/swarms", json={"name": "s", "tasks": [{"id": "stream", "agent": "talker", "prompt": "go"}]}
        )
        run_id = answer.json()["run_id"]
        assert (await gate.http.get(f"/v1/runs/{run_id}/stream")).json()["code"] == "no_stream"
        frames = await gate.frames(f"{run_id}%2Fstream")
        assert text_of(frames)[2] == "it is done"


async def test_a_run_that_is_recorded_from_its_start_is_shown_from_there(world: World) -> None:
    """Its reader comes in the middle of an answer and has the beginning; under a key it is the same run, asked for once."""
    agent = talker("it", "~", "done")
    async with served(world.process(agent)) as gate:
        body = {"agent": "talker", "prompt": "go", "stream": True}
        answers = [await gate.http.post("/v1/runs", json=body, headers={"idempotency-key": "k"}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [202, 202]
        run_id = answers[0].json()["run_id"]
        assert answers[1].json()["run_id"] == run_id
        other = await gate.http.post("/v1/runs", json={**body, "prompt": "no"}, headers={"idempotency-key": "k"})
        assert (other.status_code, other.json()["code"]) == (409, "run_exists")
        await agent.model.waits.wait()  # type: ignore[union-attr]
        seen: list[UiFrame] = []
        async with gate.http.stream("GET", f"/v1/runs/{run_id}/stream") as answer:
            reader = UiReader()
            async for chunk in answer.aiter_raw():
                seen += reader.feed(chunk)
                if text_of(seen).get(2) == "it":
                    agent.model.gate.set()  # type: ignore[union-attr]
        assert seen[-1].is_done
        assert text_of(seen) == {1: "let me see", 2: "it ~ done"}


async def test_a_resumed_leg_is_recorded_from_its_beginning(memory: World) -> None:
    """Nobody reads while it goes on; a reader who comes afterwards is shown its phases too."""
    async with served(memory.process(asker())) as gate:
        run_id = await gate.start("asker")
        detail = await gate.report(run_id)
        answers = {
            "stream": True,
            "approvals": [{"approvalId": detail["pending_approvals"][0]["approval_id"], "approved": True}],
            "clientToolResults": [{"toolCallId": "a", "output": "Ann"}],
        }
        assert (await gate.http.post(f"/v1/runs/{run_id}/resume", json=answers)).json()["resumed"]
        await gate.report(run_id)
        frames = await gate.frames(run_id)
        assert [data["step"] for data in data_of(frames) if data["kind"] == "phase"] == [2]
        assert data_of(frames)[-1]["output"] == "thanks to both"
