"""Subscriptions and deliveries: `WebhookStore`. For stores that have these methods; they are no part of `RunStore`."""

from __future__ import annotations

import asyncio
from typing import Protocol
from uuid import uuid4

from deuz_workers.core.change import Head
from deuz_workers.core.codec import encode
from deuz_workers.ports.store import RunStore
from deuz_workers.ports.webhooks import Delivery, WebhookRow, WebhookStore
from deuz_workers.testing.store_conformance_bench import Bench

DAY_MS = 86_400_000
ENDS = ("run.completed", "run.failed")


class HookedStore(RunStore, WebhookStore, Protocol):
    """All that a courier works with."""


class WebhookConformance:
    """Needs a fixture named `store`, a `HookedStore` that nobody else uses: what is due is due for everybody."""

    async def test_an_endpoint_is_told_what_happens_from_now_on(self, store: HookedStore) -> None:
        """Events that it names, of runs of its scope, once each, in the order in which they happened."""
        bench = Bench(store)
        early = await ended(bench, "run.completed")
        one = await added(store, bench.scope)
        heads = [await ended(bench, "run.completed"), await ended(bench, "run.failed")]
        await ended(bench, "run.stopped")
        await ended(Bench(store), "run.completed")
        await passed(store, 3)
        taken = await take(store)
        assert [(given.webhook_id, given.run_id, given.scope, given.seq) for given in taken] == [
            (one, head.run_id, bench.scope, 1) for head in heads
        ]
        assert early.run_id not in {given.run_id for given in taken}
        assert [given.attempts for given in taken] == [0, 0]
        assert encode({"type": "run.completed"}) == taken[0].body

    async def test_a_star_is_told_of_all_scopes(self, store: HookedStore) -> None:
        """Each endpoint has deliveries of its own."""
        star = await added(store, "*")
        bench, other = Bench(store), Bench(store)
        own = await added(store, bench.scope)
        heads = {(await ended(bench, "run.failed")).run_id, (await ended(other, "run.failed")).run_id}
        await passed(store, 3)
        taken = await take(store)
        assert {given.run_id for given in taken if given.webhook_id == star} == heads
        assert [given.webhook_id for given in taken].count(own) == 1

    async def test_what_is_taken_is_nobody_elses_until_the_claim_is_over(self, store: HookedStore) -> None:
        """Of many that take at once each endpoint goes to one; untold, it is taken again, the same in the same order."""
        bench = Bench(store)
        for _ in range(4):
            await added(store, bench.scope)
        await ended(bench, "run.completed")
        await passed(store, 3)
        taken = [given for one in await asyncio.gather(*(take(store) for _ in range(6))) for given in one]
        assert sorted(given.webhook_id for given in taken) == sorted({given.webhook_id for given in taken})
        assert len(taken) == 4
        assert await take(store) == ()
        one = await added(store, bench.scope)
        await ended(bench, "run.failed")
        await passed(store, 3)
        [first] = [given for given in await take(store, claim_ms=0) if given.webhook_id == one]
        [again] = [given for given in await take(store) if given.webhook_id == one]
        assert (again.rid, again.seq, again.body) == (first.rid, first.seq, first.body)

    async def test_what_arrived_is_not_told_again_but_by_a_replay(self, store: HookedStore) -> None:
        """A replay names a run, a time or what was given up; another scope has no say."""
        bench = Bench(store)
        one = await added(store, bench.scope)
        heads = [await ended(bench, "run.completed"), await ended(bench, "run.completed")]
        await passed(store, 3)
        for given in await take(store):
            await store.webhook_delivered(given, is_last=True)
        await passed(store, 3)
        assert await take(store) == ()
        everything = {"run_id": None, "since_ms": None, "outcome": None}
        assert await store.replay_webhook(one, f"{bench.scope}x", **everything) is None
        assert await store.replay_webhook(uuid4().hex, None, **everything) is None
        assert await store.replay_webhook(one, None, run_id=None, since_ms=None, outcome="given-up") == 0
        assert await store.replay_webhook(one, None, run_id=None, since_ms=await store.now_ms() + DAY_MS, outcome=None) == 0
        assert await store.replay_webhook(one, bench.scope, run_id=heads[1].run_id, since_ms=None, outcome=None) == 1
        assert [given.run_id for given in await take(store)] == [heads[1].run_id]

    async def test_an_endpoint_that_fails_waits(self, store: HookedStore) -> None:
        """It is due again when its wait is over, with what failed first; a success clears the count."""
        bench = Bench(store)
        await added(store, bench.scope)
        await ended(bench, "run.completed")
        await passed(store, 3)
        [given] = await take(store)
        assert await failed(store, given, wait_ms=DAY_MS) is None
        assert await take(store) == ()
        assert (await found(store, given.webhook_id)).failures == 1
        assert await store.enable_webhook(given.webhook_id, bench.scope)
        [again] = await take(store)
        assert (again.rid, again.seq, again.attempts, again.failures) == (given.rid, given.seq, 1, 0)
        await failed(store, again, wait_ms=0)
        [third] = await take(store)
        assert (third.attempts, third.failures) == (2, 1)
        await store.webhook_delivered(third, is_last=True)
        row = await found(store, given.webhook_id)
        assert (row.failures, row.waiting, row.given_up) == (0, 0, 0)

    async def test_a_delivery_is_given_up_and_the_next_follows(self, store: HookedStore) -> None:
        """After so many attempts; it can be replayed."""
        bench = Bench(store)
        one = await added(store, bench.scope)
        heads = [await ended(bench, "run.completed"), await ended(bench, "run.completed")]
        await passed(store, 3)
        first, _ = await take(store)
        await failed(store, first, wait_ms=0, most_attempts=1)
        [second] = await take(store)
        assert second.run_id == heads[1].run_id
        assert (await found(store, one)).given_up == 1
        assert await store.replay_webhook(one, None, run_id=None, since_ms=None, outcome="given-up") == 1

    async def test_an_endpoint_that_is_gone_is_told_nothing(self, store: HookedStore) -> None:
        """One that said so, or has failed for too long; enabled again it is told what it missed."""
        bench = Bench(store)
        one = await added(store, bench.scope)
        await ended(bench, "run.completed")
        await passed(store, 3)
        [given] = await take(store)
        assert await failed(store, given, wait_ms=0, disable="gone") == "gone"
        assert (await found(store, one)).disabled == "gone"
        missed = await ended(bench, "run.failed")
        await passed(store, 3)
        assert await take(store) == ()
        assert await store.enable_webhook(one, None)
        await passed(store, 3)
        taken = await take(store)
        assert [given.run_id for given in taken][-1] == missed.run_id
        assert len(taken) == 2
        await failed(store, taken[0], wait_ms=0, patience_ms=DAY_MS)
        assert await failed(store, taken[0], wait_ms=0, patience_ms=-1) == "failing"

    async def test_a_removed_endpoint_is_gone_with_its_deliveries(self, store: HookedStore) -> None:
        """Another scope cannot remove it; added twice under one id it is one."""
        bench = Bench(store)
        one = await added(store, bench.scope)
        await store.add_webhook(one, bench.scope, "https://other.example/", ENDS)
        assert (await found(store, one)).url == "https://hook.example/x"
        await ended(bench, "run.completed")
        await passed(store, 3)
        assert not await store.remove_webhook(one, f"{bench.scope}x")
        assert await store.remove_webhook(one, bench.scope)
        assert not await store.remove_webhook(one, None)
        assert await take(store) == ()
        assert await store.webhooks(bench.scope) == ()

    async def test_passes_at_once_find_each_event_once(self, store: HookedStore) -> None:
        """However many look at the same time, while runs end."""
        bench = Bench(store)
        await added(store, bench.scope)
        heads: list[Head] = []

        async def end() -> None:
            for _ in range(10):
                heads.append(await ended(bench, "run.completed"))

        await asyncio.gather(end(), *(passed(store, 10) for _ in range(4)))
        await passed(store, 3)
        taken = await take(store, batch=100)
        assert sorted(given.run_id for given in taken) == sorted(head.run_id for head in heads)


async def next_ms(store: RunStore) -> None:
    """What happens now has another time than what happened before."""
    before_ms = await store.now_ms()
    while await store.now_ms() == before_ms:
        pass


async def added(store: HookedStore, scope: str) -> str:
    await next_ms(store)
    webhook_id = f"wh_{uuid4().hex}"
    await store.add_webhook(webhook_id, scope, "https://hook.example/x", ENDS)
    return webhook_id


async def ended(bench: Bench, kind: str) -> Head:
    """A run whose only journal row is of this type."""
    await next_ms(bench.store)
    head = await bench.start()
    status = kind.removeprefix("run.")
    await bench.applied(head, status=status, due_in_ms=None, journal=(encode({"type": kind}),))
    return head


async def passed(store: HookedStore, times: int) -> None:
    for _ in range(times):
        await store.collect_webhook_events(DAY_MS)


async def take(store: HookedStore, *, batch: int = 10, claim_ms: int = DAY_MS) -> tuple[Delivery, ...]:
    return await store.take_webhook_deliveries(limit=10, batch=batch, claim_ms=claim_ms)


async def failed(
    store: HookedStore,
    given: Delivery,
    *,
    wait_ms: int,
    most_attempts: int = 10,
    patience_ms: int = DAY_MS,
    disable: str | None = None,
) -> str | None:
    return await store.webhook_failed(
        given, wait_ms=wait_ms, most_attempts=most_attempts, patience_ms=patience_ms, disable=disable
    )


async def found(store: HookedStore, webhook_id: str) -> WebhookRow:
    [row] = [row for row in await store.webhooks(None) if row.webhook_id == webhook_id]
    return row
