"""Questions of an extraction under a rate, and what is counted of those that were answered."""

from __future__ import annotations

import asyncio

import pytest

from deuz_workers import Budget, MemoryReply, ModelRateLimitedError, Usage
from deuz_workers.core.rate import Draw, RateName
from tests.app.remembering import TEA, extraction_of, facts, remembering, says, texts
from tests.app.test_brakes import until_held
from tests.app.test_extraction import run
from tests.app.world import World

LLM = RateName("model", "memory:Llm")
USED = Usage(100, 20)


async def freed(world: World) -> None:
    """As if a minute had passed: the bucket is full."""
    [rate] = [rate for rate in await world.store.list_rates(None) if rate.of == LLM]
    await world.store.set_rate(rate)


async def test_the_memory_llm_waits_for_its_rate(world: World) -> None:
    """The run has ended and is due for its extraction, which nobody begins, with nothing reserved, until there is room."""
    first, llm = says(facts()), says(*TEA)
    agent = remembering(llm)
    app = world.process(agent)
    await app.aio.operator.limit_rate("model", LLM.name, calls_per_minute=1)
    await world.process(remembering(first, name="y")).aio.run_embedded("y", "go", run_id="first")
    assert (await extraction_of(world, "first")).status == "completed"
    running = asyncio.ensure_future(app.aio.run_embedded("x", "go", run_id="r", budget=Budget.of(tokens=100_000)))
    await until_held(app, running)
    extraction, head = await extraction_of(world), await world.head("r")
    assert (head.status, head.phase, head.mid_step, head.attempts) == ("completed", "extracting", False, 0)
    assert (extraction.status, extraction.attempts, llm.asked, await texts(world)) == ("pending", 0, [], [])
    await freed(world)
    await world.store.loosen("scope", "default", 10)
    result = await running
    assert (result.status, len(llm.asked), await texts(world)) == ("completed", 2, ["likes tea"])


@pytest.mark.parametrize("ends", ["answered", "refused", "refused later"])
async def test_a_rate_gets_back_what_the_memory_llm_did_not_use(world: World, ends: str) -> None:
    """Its whole estimate where nothing was paid for; what a provider that asks to wait shuts is shut for everybody."""
    refused = ModelRateLimitedError("slow down", retry_after_ms=5_000)
    told = MemoryReply(TEA[0], USED)
    script = {"answered": (told, MemoryReply(TEA[1], USED)), "refused": (refused,), "refused later": (told, refused)}[ends]
    await world.process().aio.operator.limit_rate("model", LLM.name, tokens_per_minute=600_000)
    await run(world, remembering(says(*script)), budget=Budget.of(tokens=100_000))
    room = 100_000  # of ten seconds
    if ends == "answered":
        assert await world.store.take_rate([Draw(LLM, 1, room - 240)]) == 0
        assert await world.store.take_rate([Draw(LLM, 1, 5_000)]) > 0
    else:
        wait_ms = await world.store.take_rate([Draw(LLM, 1, 1)])
        assert 0 < wait_ms <= 5_000


@pytest.mark.spec("MEM-026")
async def test_a_question_that_was_answered_is_not_counted_as_never_sent(world: World) -> None:
    """The second one is refused without a bill: what the first one used is not known, and its reservation stays as that."""
    refused = ModelRateLimitedError("slow down")
    none = await run(world, remembering(says(refused)), "none", budget=Budget.of(tokens=100_000))
    assert (none.accounting.unknown.tokens, none.accounting.reserved.tokens) == (0, 0)
    llm = says(MemoryReply(TEA[0], USED), refused)
    result = await run(world, remembering(llm), budget=Budget.of(tokens=100_000))
    assert (len(llm.asked), (await extraction_of(world)).status, result.status) == (2, "failed", "completed")
    assert result.accounting.unknown.tokens >= USED.total_tokens
    assert result.accounting.reserved.tokens == 0
