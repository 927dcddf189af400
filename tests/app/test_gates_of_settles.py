"""Calls that a settle finds without an outcome: their gates are asked as ever, and who has no verdict by then is denied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from deuz_workers import Agent, MockModel, tool
from deuz_workers.core.change import Applied
from deuz_workers.core.codec import decode, encode
from deuz_workers.core.run import read_run
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from deuz_workers.testing.store_conformance_bench import change_from
from tests.app.world import Effects, World

DENIED = "Tool call denied. Reason: No approval response."


class Gated:
    """An agent with a gated call that dies the first time it runs, where `dies`; alone, or below a root."""

    def __init__(self, world: World, *, dies: bool, below: bool) -> None:
        self.world, self.dies, self.below = world, dies, below
        self.done = Effects()

    @property
    def agent(self) -> Agent:
        @tool(needs_approval=True)
        async def pay() -> str:
            self.done("pay")
            if self.dies:
                raise ProcessDied
            return "paid"

        payer = Agent("payer", model=MockModel([calls(call("pay").with_id("p")), "done"]), tools=[pay])
        if not self.below:
            return payer
        return Agent("boss", model=MockModel([calls(call("payer", prompt="go").with_id("c")), "all done"]), tools=[payer])

    async def taken_up(self, run_id: str) -> None:
        """The stored turn of `run_id` is being settled, and holds no verdict."""
        head = await self.world.head(run_id)
        body = dict(cast(Mapping[str, Any], decode(head.body)))
        checkpoint = {**body["checkpoint"], "taken_up": True}
        body = encode({**body, "checkpoint": checkpoint})
        change = change_from(head, status="running", model_step=1, body=body, due_in_ms=0)
        assert isinstance(await self.world.store.commit(change), Applied)


@pytest.mark.spec("SET-003")
@pytest.mark.parametrize("given", [False, True], ids=["no verdict", "approved"])
@pytest.mark.parametrize("fixture", ["never started", "retried", "below a suspended call"])
async def test_calls_without_an_outcome_are_gated_as_before(world: World, fixture: str, given: bool) -> None:
    """Without a verdict the model reads a denial, nothing runs and the run goes on; with one the call runs, also that of a
    child whose parent's call is suspended, and the child goes on."""
    gated = Gated(world, dies=fixture == "retried", below=fixture == "below a suspended call")
    root = gated.agent.name
    [asked] = (await world.process(gated.agent).aio.run_embedded(root, "go", run_id="r")).pending_approvals
    options: dict[str, Any] = {}
    ran = 0
    if fixture == "retried":
        with pytest.raises(ProcessDied):
            await world.process(gated.agent).aio.resume_embedded("r", approvals={asked.approval_id: True})
        [effect] = (await world.process(gated.agent).aio.resume_embedded("r")).unknown_effects
        gated.dies, ran, options = False, 1, {"retry_tool_call_ids": [effect.tool_call_id]}
    elif not (given and gated.below):  # a verdict reaches a child as long as somebody is asked
        await gated.taken_up(asked.run_id)
    if given:
        options["approvals"] = {asked.approval_id: True}
    result = await world.process(gated.agent).aio.resume_embedded("r", **options)
    assert (result.status, result.pending_approvals) == ("completed", ())
    assert gated.done.done == ({"pay": ran + given} if ran + given else {})
    loaded = await world.loaded(asked.run_id)
    run = read_run(loaded.head, loaded.messages, loaded.receipts)
    told = [part.text for message in run.history for part in message.tool_results]
    assert told == ["paid" if given else DENIED]
    if gated.below:
        [answer] = [part for message in result.messages for part in message.tool_results]
        assert (answer.text, answer.is_error) == ("done", False)
