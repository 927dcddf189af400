"""Memory in a run that is handed over: it is the run's, whoever drives it."""

from __future__ import annotations

import pytest

from tests.app.handing_over import NEVER, asked, member, to
from tests.app.remembering import BOB, TEA, extraction_of, memory_of, remembered, says, texts
from tests.app.world import World


@pytest.mark.spec("HND-013")
async def test_the_memory_of_a_run_stays_its_own_behind_a_transfer(world: World) -> None:
    """What was recalled is there for whoever takes over, whose own memory has no part in the run; what both said is extracted
    into that of the run."""
    await world.store.write_memories("default", [remembered("likes rain"), remembered("likes snow", scope=BOB)])
    llm, other = says(*TEA), says()
    billing = member("billing", NEVER, "no more tea", memory=memory_of(other, scope=BOB))
    triage = member("triage", to("billing"), handoffs=[billing], memory=memory_of(llm))
    result = await world.process(triage).aio.run_embedded("triage", "my bill", run_id="r")
    assert (result.status, result.output) == ("completed", "no more tea")
    [request] = asked(billing)
    told = [message.text for message in request.messages if "likes" in message.text]
    assert (len(told), "likes rain" in told[0], "likes snow" in told[0]) == (1, True, False)
    assert ("my bill" in llm.asked[0][1], "no more tea" in llm.asked[0][1], other.asked) == (True, True, [])
    assert ((await extraction_of(world)).status, await texts(world), await texts(world, BOB)) == (
        "completed",
        ["likes rain", "likes tea"],
        ["likes snow"],
    )
