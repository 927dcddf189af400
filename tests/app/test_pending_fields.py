"""What a pending approval carries, in the result, on the stream, and for whoever looks at the run."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from deuz_workers import Agent, Deuz, MockModel, Settings, tool
from deuz_workers.app.stream_events import ResultEvent
from deuz_workers.leases import memory_leases
from deuz_workers.providers.script import call, calls
from tests.app.world import World


@tool(needs_approval=True)
async def pay(to: str) -> str:
    return f"paid {to}"


@pytest.mark.spec("APR-004")
@pytest.mark.parametrize("signs", [True, False])
async def test_a_pending_approval_carries_all_that_an_answer_needs(world: World, signs: bool) -> None:
    """Its own id, the call's id, tool and input, and a token where requests are signed: in the result that a stream ends with,
    in a handle's, and in the list of what is pending. With it, and nothing else, the call is approved."""
    secret = {"approval_secret": "s" * 32} if signs else {}
    settings = Settings(database_url=world.url, redis_url=None, broker_url=None, leases_url="memory://", **secret)
    made = Agent("x", model=MockModel([calls(call("pay", to="ann").with_id("c")), "done"]), tools=[pay])
    app = Deuz([made], settings=settings, store=world.store, leases=memory_leases())
    world.opened.append(app)
    stream = app.aio.stream_embedded("x", "go", run_id="r")
    *_, last = [event async for event in stream.events]
    assert isinstance(last, ResultEvent)
    [asked] = last.result.pending_approvals
    for [found] in ((await app.aio.handle("r").result(5)).pending_approvals, await app.aio.handle("r").pending()):
        assert (found.approval_id, found.tool_call_id, found.tool_name) == (asked.approval_id, "c", "pay")
        assert (dict(found.arguments), found.token is not None) == ({"to": "ann"}, signs)
    carried = asdict(asked)
    assert (carried["tool_call_id"], carried["tool_name"], dict(carried["arguments"])) == ("c", "pay", {"to": "ann"})
    assert (bool(carried["approval_id"]), bool(carried["token"])) == (True, signs)
    answer = {"approval_id": asked.approval_id, "approved": True, "token": asked.token}
    result = await app.aio.resume_embedded("r", approvals=[answer])
    assert [part.text for message in result.messages for part in message.tool_results] == ["paid ann"]
