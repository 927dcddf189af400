"""The last text of a run can be read whatever became of it."""

from __future__ import annotations

import pytest

from deuz_workers import Agent, MockModel, ModelAuthenticationError, tool
from deuz_workers.providers.script import Entry, call, calls, reply
from tests.app.world import World


@tool(needs_approval=True)
async def pay() -> str:
    return "paid"


@pytest.mark.spec("RES-020")
@pytest.mark.parametrize(
    ("script", "status", "text"),
    [
        (["done"], "completed", "done"),
        ([calls(call("pay"), text="may I?")], "suspended", "may I?"),
        ([reply("I will not", finish_reason="content_filter")], "stopped", "I will not"),
        ([ModelAuthenticationError("no key")], "failed", ""),
    ],
)
async def test_a_result_has_its_text_whatever_its_status(world: World, script: list[Entry], status: str, text: str) -> None:
    """No test of the status is needed, here and in a process that knows no agent; a run without any text has an empty one."""
    app = world.process(Agent("x", model=MockModel(script), tools=[pay]))
    result = await app.aio.run_embedded("x", "go", run_id="r")
    assert (result.status, result.text, result.warnings) == (status, text, ())
    assert (await world.process().aio.handle("r").result(5)).text == text
