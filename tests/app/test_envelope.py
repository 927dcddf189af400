"""The stored record of a run, seen from outside."""

from __future__ import annotations

import json

import pytest

from deuz_workers import Agent, Limits, MockModel, RunNotFoundError, tool
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import CrashingStore, ProcessDied
from tests.app.world import World


@pytest.mark.spec("ENV-001")
async def test_a_run_is_stored_as_an_envelope_with_a_checkpoint_of_its_own_version(world: World) -> None:
    """The loaded record names its kind; the loop checkpoint inside has version 1."""
    app = world.process(Agent("x", model=MockModel(["hi"])))
    await app.aio.run_embedded("x", "go", run_id="r")
    envelope = await app.aio.handle("r").envelope()
    assert (envelope.kind, envelope.checkpoint.version) == ("deuz-agent-run", 1)
    record = json.loads((await world.head("r")).body)
    assert (record["kind"], record["checkpoint"]["version"]) == ("deuz-agent-run", 1)


@pytest.mark.spec("ENV-006", "ENV-007")
async def test_the_record_has_version_2_while_an_older_reader_would_mishandle_it(world: World) -> None:
    """Waiting for a verdict it is 2; before, between an ungated call's receipts and after the answer it is 1."""
    versions: list[int] = []
    dies = [True]

    def agent() -> Agent:
        @tool
        async def plain() -> str:
            versions.append((await world.head("r")).version)
            return "done"

        @tool(needs_approval=True, replay="idempotent")
        async def gated() -> str:
            versions.append((await world.head("r")).version)
            if dies:
                raise ProcessDied
            return "done"

        return Agent("x", model=MockModel([calls(call("plain")), calls(call("gated")), "done"]), tools=[plain, gated])

    waiting = await world.process(agent()).aio.run_embedded("x", "go", run_id="r")
    assert (waiting.status, (await world.head("r")).version) == ("suspended", 2)
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    with pytest.raises(ProcessDied):
        await world.process(agent()).aio.resume_embedded("r", approvals=verdicts)
    assert (await world.head("r")).version == 2
    dies.clear()
    assert (await world.process(agent()).aio.resume_embedded("r")).status == "completed"
    assert (await world.head("r")).version == 1
    assert versions == [1, 2, 2]


@pytest.mark.spec("ENV-008")
async def test_a_plain_run_has_no_fields_of_features_it_does_not_use(memory: World) -> None:
    """Neither memory nor transcript, chat, models, retry or reconciled: in the record, its checkpoint and its receipts."""

    @tool
    async def look() -> str:
        return "seen"

    agent = Agent("x", model=MockModel([calls(call("look")), "hi"]), tools=[look])
    await memory.process(agent).aio.run_embedded("x", "go", run_id="r")
    record = json.loads((await memory.head("r")).body)
    receipts = [json.loads(row.body) for row in await memory.receipt_rows("r")]
    assert receipts
    for part in (record, record["checkpoint"], *receipts):
        assert not {"memory", "transcript", "chat", "models", "retry", "reconciled"} & set(part)


async def test_every_save_raises_the_revision_by_one(memory: World) -> None:
    """From 0 as enqueued, by as many commits as the run had."""
    handle = await memory.process(Agent("x", model=MockModel(["hi"]))).aio.enqueue("x", "go")
    assert (await handle.envelope()).revision == 0
    store = CrashingStore(memory.store, at=0)
    await memory.process(Agent("x", model=MockModel(["hi"])), store=store.as_store).aio.resume_embedded(handle.run_id)
    assert (await handle.envelope()).revision == store.commits > 0


async def test_limits_of_the_agent_are_stored_with_the_run(memory: World) -> None:
    """And the defaults where nothing is said."""
    app = memory.process(Agent("x", model=MockModel(["hi"]), limits=Limits(max_steps=3)), Agent("y", model=MockModel(["hi"])))
    assert (await (await app.aio.enqueue("x", "go")).envelope()).limits.max_steps == 3
    assert (await (await app.aio.enqueue("y", "go")).envelope()).limits.max_steps == 20


async def test_an_unknown_run_cannot_be_inspected(memory: World) -> None:
    """The error names run and scope."""
    with pytest.raises(RunNotFoundError, match=r"'nosuch'.*'default'"):
        await memory.process().aio.handle("nosuch").envelope()
