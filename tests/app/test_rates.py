"""Rates: how much may begin per minute, over all processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deuz_workers import Agent, Budget, MockModel, ModelRateLimitedError, Usage, tool
from deuz_workers.core.limits import Limits
from deuz_workers.core.rate import Draw, Rate, RateName
from deuz_workers.engine.tool_slots import slot_key
from deuz_workers.errors import ConfigurationError
from deuz_workers.providers.script import call, calls, reply
from tests.app.test_brakes import Shop, until_held
from tests.app.world import World


async def _free(world: World, of: RateName) -> None:
    """As if its time had passed: the bucket is full."""
    [rate] = [rate for rate in await world.store.list_rates(None) if rate.of == of]
    await world.store.set_rate(rate)


@pytest.mark.parametrize("kind", ["model", "key"])
async def test_a_model_call_waits_for_its_rate(world: World, kind: Any) -> None:
    """The first of a minute goes, the second turn's waits with the tool's result saved, whichever name is limited."""
    shop = Shop()
    app = world.process(shop.agent)
    of = RateName("model", shop.model.name) if kind == "model" else RateName("key", "crm", "default")
    await app.aio.operator.limit_rate(kind, of.name, calls_per_minute=1)
    await app.aio.enqueue("clerk", "go", run_id="r", concurrency_key="crm")
    running = asyncio.ensure_future(app.aio.resume_embedded("r"))
    await until_held(app, running, 1)
    head = await world.head("r")
    assert (len(shop.model.requests), shop.done.done, head.mid_step) == (1, {"pay": 1}, False)
    await _free(world, of)
    await world.store.loosen("scope", "default", 10)
    assert (await running).status == "completed"


async def test_a_tool_waits_for_its_rate(memory: World) -> None:
    """Over two runs: what one took the other has not."""
    one, two = Shop(), Shop()
    of = RateName("tool", "pay")
    app = memory.process(one.agent)
    await app.aio.operator.limit_rate("tool", "pay", calls_per_minute=1)
    assert (await app.aio.run_embedded("clerk", "go", run_id="1")).status == "completed"
    other = memory.process(two.agent)
    running = asyncio.ensure_future(other.aio.run_embedded("clerk", "go", run_id="2"))
    await until_held(other, running, 1)
    assert (one.done.done, two.done.done, await memory.receipts("2")) == ({"pay": 1}, {}, {})
    await _free(memory, of)
    assert ((await running).status, two.done.done) == ("completed", {"pay": 1})


async def test_a_call_that_another_agent_does_waits_for_the_rate_of_its_tool(memory: World) -> None:
    """Nothing is delegated until it may begin."""

    def made() -> Agent:
        helper = Agent("helper", model=MockModel(["found"]))
        return Agent("boss", model=MockModel([calls(call("helper", prompt="go")), "done"]), tools=[helper])

    app, other = memory.process(made()), memory.process(made())
    of = RateName("tool", "helper")
    await app.aio.operator.limit_rate("tool", "helper", calls_per_minute=1)
    assert (await app.aio.run_embedded("boss", "go", run_id="1")).status == "completed"
    running = asyncio.ensure_future(other.aio.run_embedded("boss", "go", run_id="2"))
    await until_held(other, running, 1)
    assert await memory.store.children((await memory.head("2")).rid, 9) == ()
    await _free(memory, of)
    assert (await running).status == "completed"


async def test_tokens_that_were_not_used_are_given_back(memory: World) -> None:
    """The estimate is taken ahead of the call, and after it what was used counts."""
    model = MockModel([reply("done", usage=Usage(input_tokens=3, output_tokens=4))])
    app = memory.process(Agent("a", model=model, max_output_tokens=1_000))
    of = RateName("model", model.name)
    await app.aio.operator.limit_rate("model", model.name, tokens_per_minute=60_000)
    result = await app.aio.run_embedded("a", "go")
    assert result.status == "completed"
    assert result.usage.total_tokens == 7
    assert await memory.store.take_rate([Draw(of, 1, 9_990)]) == 0
    assert await memory.store.take_rate([Draw(of, 1, 5_000)]) > 0


async def test_tokens_of_a_call_that_a_budget_refused_are_given_back(memory: World) -> None:
    """It was never sent, so others need not wait for it."""
    model = MockModel(["never"])
    app = memory.process(Agent("a", model=model, max_output_tokens=9_000))
    await app.aio.operator.limit_rate("model", model.name, tokens_per_minute=60_000)
    result = await app.aio.run_embedded("a", "go", budget=Budget(tokens=10))
    assert (result.error or {})["code"] == "budget_exceeded"
    assert await memory.store.take_rate([Draw(RateName("model", model.name), 1, 9_990)]) == 0
    assert await memory.store.take_rate([Draw(RateName("model", model.name), 1, 5_000)]) > 0


async def test_a_provider_that_asks_to_wait_is_heeded_by_every_run(memory: World) -> None:
    """One run was told to come back in a minute: another one of the same model begins nothing before."""
    refused = ModelRateLimitedError("too many", retry_after_ms=60_000, billed="no")
    model = MockModel([refused, "late"])
    app = memory.process(Agent("a", model=model))
    of = RateName("model", model.name)
    await app.aio.operator.limit_rate("model", model.name, calls_per_minute=6_000)
    shut = asyncio.Event()
    shut_rate = memory.store.shut_rate

    async def seen(*args: Any) -> None:
        await shut_rate(*args)
        shut.set()

    memory.store.shut_rate = seen  # type: ignore[method-assign]
    first = asyncio.ensure_future(app.aio.run_embedded("a", "go", run_id="1"))
    await shut.wait()
    assert 50_000 < await memory.store.take_rate([Draw(of)]) <= 60_000
    second = asyncio.ensure_future(app.aio.run_embedded("a", "go", run_id="2"))
    await until_held(app, second, 1)
    assert len(model.requests) == 1
    for running in (first, second):
        running.cancel()
    await asyncio.gather(first, second, return_exceptions=True)


async def test_a_run_that_waits_no_more_still_tells_the_others(memory: World) -> None:
    """A run without repeats fails with the refusal, and the model is left alone for as long as the provider asked."""
    refused = ModelRateLimitedError("too many", retry_after_ms=60_000, billed="no")
    model = MockModel([refused])
    app = memory.process(Agent("a", model=model, limits=Limits(max_retries=0)))
    await app.aio.operator.limit_rate("model", model.name, calls_per_minute=6_000)
    assert (await app.aio.run_embedded("a", "go")).status == "failed"
    assert 50_000 < await memory.store.take_rate([Draw(RateName("model", model.name))]) <= 60_000


async def test_calls_of_one_turn_begin_together_or_wait(memory: World) -> None:
    """More than a bucket holds may begin when it is full, and the next ones wait until that is paid off."""

    @tool
    async def look() -> str:
        return "seen"

    batch = calls(*(call("look").with_id(f"c{n}") for n in range(3)))
    model = MockModel([batch, calls(call("look")), "done"])
    app = memory.process(Agent("a", model=model, tools=[look]))
    await app.aio.operator.limit_rate("tool", "look", calls_per_minute=60)
    running = asyncio.ensure_future(app.aio.run_embedded("a", "go", run_id="r"))
    assert (await running).status == "completed"
    await app.aio.operator.limit_rate("tool", "look", calls_per_minute=1)
    assert await memory.store.take_rate([Draw(RateName("tool", "look"), 3)]) == 0
    assert await memory.store.take_rate([Draw(RateName("tool", "look"), 1)]) > 150_000


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("planet", {"calls_per_minute": 1}),
        ("tool", {"calls_per_minute": 0}),
        ("tool", {"tokens_per_minute": 5}),
        ("model", {"calls_per_minute": 1.5}),
        ("model", {"calls_per_minute": 1, "scope": "acme"}),
        ("model", {"at_a_time": 1}),
        ("tool", {"at_a_time": 0}),
        ("tool", {"at_a_time": 100_000}),
    ],
)
async def test_what_can_be_no_rate_is_refused(memory: World, kind: Any, options: dict[str, Any]) -> None:
    """With the way out; nothing is written."""
    operator = memory.process(Shop().agent).aio.operator
    with pytest.raises(ConfigurationError):
        await operator.limit_rate(kind, "x", **options)
    assert await operator.rates() == ()


async def test_a_rate_is_taken_away_by_setting_none(memory: World) -> None:
    """What is listed is what is set."""
    operator = memory.process(Shop().agent).aio.operator
    await operator.limit_rate("key", "crm", calls_per_minute=5, scope="acme")
    await operator.limit_rate("tool", "pay", calls_per_minute=7)
    assert await operator.rates("acme") == (Rate(RateName("key", "crm", "acme"), 5), Rate(RateName("tool", "pay"), 7))
    assert await operator.rates("other") == (Rate(RateName("tool", "pay"), 7),)
    await operator.limit_rate("tool", "pay")
    assert await operator.rates("other") == ()


@pytest.mark.parametrize("ended", ["returned", "failed"])
async def test_so_many_calls_of_a_tool_run_at_a_time(world: World, ended: str) -> None:
    """Of two runs one waits, with nothing begun, until the other one's call has ended, whichever way."""
    shop = Shop(calls(call("pay")), "done", calls(call("pay")))
    app = world.process(shop.agent)
    await app.aio.operator.limit_rate("tool", "pay", at_a_time=1)
    shop.may_end.clear()
    shop.fails = ended == "failed"
    first = asyncio.ensure_future(app.aio.run_embedded("clerk", "go", run_id="1"))
    await shop.began.wait()
    second = asyncio.ensure_future(app.aio.run_embedded("clerk", "go", run_id="2"))
    await until_held(app, second, 2)
    assert (shop.done.done, await world.receipts("2"), first.done()) == ({}, {}, False)
    shop.may_end.set()
    assert [result.status for result in await asyncio.gather(first, second)] == ["completed"] * 2
    assert shop.done.done == {"pay": 2}
    assert (await app.leases.peek(slot_key("pay", 0))).ms_left is None


async def test_a_batch_takes_turns_at_the_slots_of_its_tool(memory: World) -> None:
    """Four calls five at a time, of which two may run: all run, never more than two together."""
    most, now, lock = 0, 0, asyncio.Event()

    @tool(replay="idempotent")
    async def look() -> str:
        nonlocal most, now
        now += 1
        most = max(most, now)
        if now == 2:
            lock.set()
        await lock.wait()
        now -= 1
        return "seen"

    batch = calls(*(call("look").with_id(f"c{n}") for n in range(4)))
    agent = Agent("a", model=MockModel([batch, "done"]), tools=[look], limits=Limits(tool_concurrency=2))
    app = memory.process(agent)
    await app.aio.operator.limit_rate("tool", "look", at_a_time=2)
    assert (await app.aio.run_embedded("a", "go", run_id="r")).status == "completed"
    assert most == 2
    assert [(await app.leases.peek(slot_key("look", place))).ms_left for place in range(2)] == [None, None]


async def test_the_slot_of_a_dead_worker_lapses(memory: World) -> None:
    """Within the TTL of leases; meanwhile the run waits."""
    shop = Shop()
    app = memory.process(shop.agent, ttl_ms=1_000)
    await app.aio.operator.limit_rate("tool", "pay", at_a_time=1)
    await app.leases.acquire(slot_key("pay", 0), "dead:1#x", 1_000, force=True)
    running = asyncio.ensure_future(app.aio.run_embedded("clerk", "go", run_id="r"))
    await until_held(app, running, 1)
    assert shop.done.done == {}
    assert ((await running).status, shop.done.done) == ("completed", {"pay": 1})
