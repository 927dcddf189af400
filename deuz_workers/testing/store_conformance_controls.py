"""Brakes, and rates that are taken from: what is set is read, and what is limited is never taken twice."""

from __future__ import annotations

import asyncio
import time

from deuz_workers.core.brake import Brake
from deuz_workers.core.rate import Draw, Rate, RateKind, RateName
from deuz_workers.ports.controls import KeyRow
from deuz_workers.ports.store import RunStore
from deuz_workers.testing.store_conformance_bench import Bench


def _name(bench: Bench, kind: RateKind = "model") -> RateName:
    return RateName(kind, bench.name(), bench.scope if kind == "key" else "")


async def _brakes(bench: Bench) -> list[Brake]:
    """Of this bench alone."""
    return [brake for brake in (await bench.store.controls()).brakes if bench.queue in brake.name]


class ControlConformance:
    """What operators say about everything that begins."""

    async def test_a_brake_is_read_until_it_is_lifted(self, store: RunStore) -> None:
        """With its reason, who set it and when; set again it is one with the newer reason, and lifted once."""
        bench = Bench(store)
        name, before_ms = bench.name(), await store.now_ms()
        await store.set_brake("tool", name, None, None)
        await store.set_brake("tool", name, "it pays twice", "ann")
        await store.set_brake("agent", name, "another", None)
        found = {brake.kind: brake for brake in await _brakes(bench)}
        assert {kind: (brake.reason, brake.actor) for kind, brake in found.items()} == {
            "tool": ("it pays twice", "ann"),
            "agent": ("another", None),
        }
        after_ms = await store.now_ms()
        assert all(before_ms <= brake.at_ms <= after_ms for brake in found.values())
        assert [await store.lift_brake("tool", name, "mended", "bob") for _ in range(2)] == [True, False]
        assert [brake.kind for brake in await _brakes(bench)] == ["agent"]
        assert await store.lift_brake("agent", name, None, None)

    async def test_every_act_is_kept(self, store: RunStore) -> None:
        """Newest first; lifting what is not set is none."""
        bench = Bench(store)
        name = bench.name()
        for reason in ("one", "two"):
            await store.set_brake("queue", name, reason, "ann")
            await _pass(store)
        await store.lift_brake("queue", name, "over", "bob")
        await store.lift_brake("queue", name, "over", "bob")
        acts = [act for act in await store.brake_acts(1_000) if act.name == name]
        assert [(act.act, act.kind, act.reason, act.actor) for act in acts] == [
            ("lifted", "queue", "over", "bob"),
            ("set", "queue", "two", "ann"),
            ("set", "queue", "one", "ann"),
        ]
        assert acts[0].at_ms >= acts[1].at_ms >= acts[2].at_ms
        assert len(await store.brake_acts(2)) == 2

    async def test_controls_say_the_time(self, store: RunStore) -> None:
        """That of the store's clock, whether anything is set or not."""
        before_ms = await store.now_ms()
        assert before_ms <= (await store.controls()).now_ms <= await store.now_ms()

    async def test_runs_that_were_put_off_are_brought_near(self, store: RunStore) -> None:
        """Those of the scope, agent or queue of the brake, up to the limit at a time; the others stay away."""
        bench = Bench(store)
        heads = [await bench.start(agent=agent) for agent in ("a", "a", "b")]
        begun = await bench.start(agent="a")
        await bench.applied(begun)
        waiting = [*heads, begun]
        assert len(await bench.swept()) in (3, 4)
        for head in waiting:
            await store.put_off(head.scope, head.run_id, 60_000, 600_000)
        assert await bench.swept() == []
        assert await store.loosen("queue", bench.name(), 100) == 0
        near: list[str] = []
        while await store.loosen("scope", bench.scope, 1):
            near += await bench.swept()
        assert sorted(near) == sorted(head.run_id for head in waiting)
        for head in waiting:
            await store.put_off(head.scope, head.run_id, 60_000, 600_000)
        assert await store.loosen("queue", bench.queue, 100) == 4
        assert sorted(await bench.swept()) == sorted(near)

    async def test_a_rate_lets_so_much_begin(self, store: RunStore) -> None:
        """What its bucket holds at once, then nothing before it has filled up again; the time to wait is said."""
        bench = Bench(store)
        of = _name(bench)
        assert await store.take_rate([Draw(of, 1_000, 1_000)]) == 0, "without a rate"
        await store.set_rate(Rate(of, calls_per_minute=12))
        assert of in (await store.controls()).rates
        assert [await store.take_rate([Draw(of, 1, 10**9)]) for _ in range(2)] == [0, 0]
        wait_ms = await store.take_rate([Draw(of)])
        assert 0 < wait_ms <= 5_000
        assert await store.take_rate([Draw(of, 0, 5)]) == 0, "calls are not asked for"
        await store.set_rate(Rate(of, calls_per_minute=60_000))
        assert await store.take_rate([Draw(of, 10_000)]) == 0
        wait_ms = await store.take_rate([Draw(of, 1)])
        await _pass(store, 20)
        assert wait_ms <= 1
        assert await store.take_rate([Draw(of, 1)]) == 0, "it fills by the store's clock"

    async def test_tokens_are_given_back(self, store: RunStore) -> None:
        """What was not used; more than the bucket holds is taken of a full one, and paid off by those that come later."""
        bench = Bench(store)
        of = _name(bench)
        await store.set_rate(Rate(of, tokens_per_minute=600))
        assert await store.take_rate([Draw(of, 1, 1_000)]) == 0
        debt_ms = await store.take_rate([Draw(of, 1, 100)])
        assert 95_000 < debt_ms <= 100_000
        await store.give_rate([of], 950)
        assert 0 < await store.take_rate([Draw(of, 1, 100)]) <= 5_000
        assert await store.take_rate([Draw(of, 1, 40)]) == 0
        await store.give_rate([of], -600)
        assert await store.take_rate([Draw(of, 1, 10)]) > 55_000

    async def test_several_are_taken_together_or_not_at_all(self, store: RunStore) -> None:
        """The one with room keeps it when another has none."""
        bench = Bench(store)
        wide, narrow = _name(bench, "key"), _name(bench)
        await store.set_rate(Rate(wide, calls_per_minute=12))
        await store.set_rate(Rate(narrow, calls_per_minute=1))
        both = [Draw(wide), Draw(narrow)]
        assert await store.take_rate(both) == 0
        assert await store.take_rate(both) > 50_000
        assert await store.take_rate([Draw(wide)]) == 0
        assert await store.take_rate([Draw(wide)]) > 0

    async def test_many_at_once_take_no_more_than_there_is(self, store: RunStore) -> None:
        """Whoever waits for another decides from what that one left."""
        bench = Bench(store)
        of, other = _name(bench, "key"), _name(bench)
        await store.set_rate(Rate(of, calls_per_minute=24))
        await store.set_rate(Rate(other, calls_per_minute=600_000))
        orders = ([Draw(of), Draw(other)], [Draw(other), Draw(of)])
        began = time.monotonic()
        waits = await asyncio.gather(*(store.take_rate(orders[turn % 2]) for turn in range(20)))
        filled = int((time.monotonic() - began) * 24 / 60)
        assert 4 <= waits.count(0) <= 4 + 1 + filled

    async def test_what_is_shut_is_not_taken_from(self, store: RunStore) -> None:
        """Until then; a shorter time does not open it, nor does a new limit."""
        bench = Bench(store)
        of = _name(bench)
        await store.shut_rate([of], 60_000)
        await store.set_rate(Rate(of, calls_per_minute=600))
        assert await store.take_rate([Draw(of)]) == 0, "it had no rate"
        await store.shut_rate([of], 60_000)
        await store.shut_rate([of], 1)
        await store.set_rate(Rate(of, calls_per_minute=700))
        assert 50_000 < await store.take_rate([Draw(of)]) <= 60_000

    async def test_rates_are_listed_and_taken_away(self, store: RunStore) -> None:
        """Those of a scope with those of the pool; without a limit there is none, and it limits nothing."""
        bench, another = Bench(store), Bench(store)
        key, foreign, tool = _name(bench, "key"), _name(another, "key"), _name(bench, "tool")
        rates = [Rate(key, 5, 500), Rate(foreign, None, 7), Rate(tool, 9)]
        for rate in rates:
            await store.set_rate(rate)
        assert (await store.controls()).has_key_rates

        async def listed(scope: str | None) -> list[Rate]:
            return [rate for rate in await store.list_rates(scope) if rate.of in (key, foreign, tool)]

        assert await listed(bench.scope) == [rates[0], rates[2]]
        assert await listed(None) == sorted(rates, key=lambda rate: (rate.of.kind, rate.of.scope, rate.of.name))
        for rate in rates:
            await store.set_rate(Rate(rate.of))
        assert await listed(None) == []
        assert tool not in (await store.controls()).rates
        assert await store.take_rate([Draw(key, 100, 10**9)]) == 0

    async def test_a_tool_has_slots_beside_its_rate_or_without_one(self, store: RunStore) -> None:
        """They are read with the brakes; without a rate nothing is taken of it."""
        bench = Bench(store)
        bare, both = _name(bench, "tool"), _name(bench, "tool")
        await store.set_rate(Rate(bare, at_a_time=3))
        await store.set_rate(Rate(both, calls_per_minute=9, at_a_time=1))
        controls = await store.controls()
        assert (controls.tool_slots[bare.name], controls.tool_slots[both.name]) == (3, 1)
        assert (bare in controls.rates, both in controls.rates) == (False, True)
        assert await store.take_rate([Draw(bare, 100)]) == 0
        assert Rate(bare, at_a_time=3) in await store.list_rates(bench.scope)
        for of in (bare, both):
            await store.set_rate(Rate(of))
        assert not {bare.name, both.name} & (await store.controls()).tool_slots.keys()

    async def test_keys_are_listed(self, store: RunStore) -> None:
        """With slots, and how many runs hold one and wait."""
        bench = Bench(store)
        await store.set_slots(bench.scope, "b", 3)
        heads = [await bench.start(concurrency_key="a") for _ in range(2)]
        for head in heads:
            await store.take_slot(head.rid, 0, 1)
        assert await store.list_keys(bench.scope, 10) == (
            KeyRow(bench.scope, "a", 1, 1, 1),
            KeyRow(bench.scope, "b", 3, 0, 0),
        )
        assert len(await store.list_keys(None, 1)) == 1


async def _pass(store: RunStore, ms: int = 1) -> None:
    """The store's clock has gone on."""
    before_ms = await store.now_ms()
    while await store.now_ms() < before_ms + ms:
        pass
