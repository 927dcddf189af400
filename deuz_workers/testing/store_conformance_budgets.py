"""Budgets that runs share: limits of the caller, answers that repeat, warnings, reports, holds nobody can settle, slices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deuz_workers.core.change import Applied, BudgetExceeded, Head, Outcome, Reserve, ScopeUse, Settle
from deuz_workers.core.shared_budget import SharedBudget, Window
from deuz_workers.core.usage import Budget, Usage
from deuz_workers.errors import BudgetLedgerError
from deuz_workers.ports.store import RunStore
from deuz_workers.testing.store_conformance_bench import HOUR_MS, Bench


class BudgetConformance:
    """`SharedBudget`s of a `Reserve`, and the operations of `BudgetStore`."""

    async def _hold(
        self, bench: Bench, head: Head, request_id: str, key: str, tokens: int, cost: int | None = None, **given: Any
    ) -> Outcome:
        """Reserve in a scope that the run shares; it is charged as it is stored unless `held_to` says more."""
        shared = given.pop("held_to", SharedBudget(key, as_stored=True))
        return await bench.commit(
            await bench.again(head), reserve=Reserve(request_id, (key,), tokens, cost, (shared,), **given)
        )

    async def _end(self, bench: Bench, head: Head, request_id: str, outcome: Any, *used: Any) -> None:
        await bench.applied(await bench.again(head), settle=(Settle(request_id, (), outcome, *used),))

    async def test_a_shared_scope_has_a_row_from_its_first_use(self, store: RunStore) -> None:
        """Nobody need have set it; then it has no limit, and what is used there is known."""
        bench = Bench(store)
        key, head = f"user:{bench.scope}", await bench.start()
        assert await store.balance(key) is None
        assert isinstance(await self._hold(bench, head, "1", key, 100, 7), Applied)
        balance = await store.balance(key)
        assert balance is not None
        assert (balance.limit, balance.held, balance.counted) == (Budget(), Budget(100, 7), Budget(100, 7))

    async def test_two_callers_hold_one_scope_to_different_limits(self, store: RunStore) -> None:
        """Strict is refused where lax is admitted; of the limits of the caller and of the scope the stricter one counts."""

        bench = Bench(store)
        key, head = f"user:{bench.scope}", await bench.start()
        strict, lax = SharedBudget(key, Budget(tokens=100)), SharedBudget(key, Budget(tokens=1_000))
        assert isinstance(await self._hold(bench, head, "1", key, 90, held_to=strict), Applied)
        assert await self._hold(bench, head, "2", key, 20, held_to=strict) == BudgetExceeded(key, "budget_exceeded")
        assert isinstance(await self._hold(bench, head, "3", key, 20, held_to=lax), Applied)
        await store.set_budget(key, Budget(tokens=120))
        assert await self._hold(bench, head, "4", key, 20, held_to=lax) == BudgetExceeded(key, "budget_exceeded")

    async def test_the_same_request_is_admitted_again(self, store: RunStore) -> None:
        """Also where there is no room any more, and it is counted once."""
        bench = Bench(store)
        key, head = f"user:{bench.scope}", await bench.start()
        await store.set_budget(key, Budget(tokens=100))
        for _ in range(2):
            assert isinstance(await self._hold(bench, head, "1", key, 100, 5), Applied)
        balance = await store.balance(key)
        assert balance is not None
        assert balance.held == Budget(100, 5)

    async def test_the_same_request_is_refused_again(self, store: RunStore) -> None:
        """Also where there is room by now; another request is admitted."""
        bench = Bench(store)
        key, head = f"user:{bench.scope}", await bench.start()
        await store.set_budget(key, Budget(tokens=50))
        refused = BudgetExceeded(key, "budget_exceeded")
        assert await self._hold(bench, head, "1", key, 100) == refused
        await store.set_budget(key, Budget(tokens=500))
        assert await self._hold(bench, head, "1", key, 100) == refused
        assert isinstance(await self._hold(bench, head, "2", key, 100), Applied)

    async def test_the_same_request_with_other_amounts_is_an_error(self, store: RunStore) -> None:
        """Whether it was admitted or refused; nothing is reserved for it."""
        bench = Bench(store)
        key, head = f"user:{bench.scope}", await bench.start()
        await store.set_budget(key, Budget(tokens=150))
        assert isinstance(await self._hold(bench, head, "1", key, 100, 5), Applied)
        assert isinstance(await self._hold(bench, head, "2", key, 100, 5), BudgetExceeded)
        for request, tokens, cost in (("1", 101, 5), ("1", 100, 6), ("1", 100, None), ("2", 1, 5)):
            outcome = await self._hold(bench, head, request, key, tokens, cost)
            assert isinstance(outcome, BudgetExceeded), outcome
            assert outcome.reason == "request_mismatch"
        balance = await store.balance(key)
        assert balance is not None
        assert balance.held == Budget(100, 5)

    async def test_a_reply_without_a_price_keeps_what_was_reserved_in_money(self, store: RunStore) -> None:
        """A call that was reserved in tokens alone is settled by its tokens."""
        bench = Bench(store)
        key, head = f"user:{bench.scope}", await bench.start()
        await store.set_budget(key, Budget(tokens=1_000))
        await self._hold(bench, head, "1", key, 100, 50)
        await self._end(bench, head, "1", "settled", 30, None)
        await self._hold(bench, head, "2", key, 100, None)
        await self._end(bench, head, "2", "settled", 30, None)
        balance = await store.balance(key)
        assert balance is not None
        assert (balance.spent, balance.held, balance.unknown) == (Budget(30, 0), Budget(0, 0), Budget(100, 50))

    async def test_a_call_may_go_uncounted(self, store: RunStore) -> None:
        """Where the application allows it, a call without a price passes a limit of money; its tokens are counted."""
        bench = Bench(store)
        key, head = f"user:{bench.scope}", await bench.start()
        await store.set_budget(key, Budget(tokens=150, usd_micros=0))
        assert await self._hold(bench, head, "1", key, 100, None) == BudgetExceeded(key, "missing_reservation")
        assert isinstance(await self._hold(bench, head, "2", key, 100, None, uncounted=True), Applied)
        assert await self._hold(bench, head, "3", key, 100, None, uncounted=True) == BudgetExceeded(key, "budget_exceeded")

    async def test_a_window_is_that_of_the_first_use(self, store: RunStore) -> None:
        """Another one, or none, is refused; a caller that names none of its own takes what there is."""
        bench = Bench(store)
        hour, key, head = Window(HOUR_MS), f"user:{bench.scope}", await bench.start()
        assert isinstance(await self._hold(bench, head, "1", key, 1, held_to=SharedBudget(key, window=hour)), Applied)
        mismatch = BudgetExceeded(key, "window_mismatch")
        for place, other in enumerate((Window(HOUR_MS, 6), Window(2 * HOUR_MS), None)):
            assert await self._hold(bench, head, f"o{place}", key, 1, held_to=SharedBudget(key, window=other)) == mismatch
        assert isinstance(await self._hold(bench, head, "2", key, 1, held_to=SharedBudget(key, window=hour)), Applied)
        assert isinstance(await self._hold(bench, head, "3", key, 1), Applied)
        balance = await store.balance(key)
        assert balance is not None
        assert (balance.window, balance.in_window) == (hour, Budget(3, 0))

    async def test_a_stored_window_stays(self, store: RunStore) -> None:
        """Setting a limit without a window keeps it; with another one nothing is changed."""
        bench = Bench(store)
        key, hour = f"user:{bench.scope}", Window(HOUR_MS)
        await store.set_budget(key, Budget(tokens=100), window=hour, warn_at_percent=80)
        await store.set_budget(key, Budget(tokens=200))
        with pytest.raises(BudgetLedgerError, match="another window") as caught:
            await store.set_budget(key, Budget(tokens=300), window=Window(HOUR_MS, 6))
        assert caught.value.code == "window_mismatch"
        balance = await store.balance(key)
        assert balance is not None
        assert (balance.limit, balance.window, balance.warn_at_percent) == (Budget(tokens=200), hour, 80)

    async def test_a_reservation_says_how_scopes_with_a_threshold_stand(self, store: RunStore) -> None:
        """With this request; the caller's threshold goes before the scope's, and that before the general one."""
        bench = Bench(store)
        plain, own, head = f"user:{bench.scope}", f"org:{bench.scope}", await bench.start()
        await store.set_budget(plain, Budget(tokens=1_000))
        await store.set_budget(own, Budget(usd_micros=500), warn_at_percent=60)
        shared = (SharedBudget(own, as_stored=True), SharedBudget(plain, as_stored=True))
        outcome = await bench.applied(head, reserve=Reserve("1", (plain, own), 100, 50, shared))
        assert outcome.charged == (ScopeUse(own, Budget(100, 50), Budget(None, 500), 60),)
        outcome = await bench.applied(
            await bench.again(head), reserve=Reserve("2", (plain, own), 100, 50, shared, warn_percent=80)
        )
        assert sorted(outcome.charged, key=lambda use: use.key) == [
            ScopeUse(own, Budget(200, 100), Budget(None, 500), 60),
            ScopeUse(plain, Budget(200, 100), Budget(1_000, None), 80),
        ]
        strict = SharedBudget(own, Budget(tokens=400), warn_at_percent=10)
        outcome = await bench.applied(await bench.again(head), reserve=Reserve("3", (own,), 1, 1, (strict,)))
        assert outcome.charged == (ScopeUse(own, Budget(201, 101), Budget(400, 500), 10),)

    async def test_usage_is_summed_by_model(self, store: RunStore) -> None:
        """Settled, held and unknown apart, tokens by kind; what was released is not there."""
        bench = Bench(store)
        key, head = f"user:{bench.scope}", await bench.start()
        used = Usage(20, 10, 5, 3, 12)
        ends = (("a", "big", "settled", 30, 12, used), ("b", "big", "settled", 30, 12, used), ("c", "small", "unknown"))
        for request, model, *end in (*ends, ("d", "small", "released")):
            await self._hold(bench, head, request, key, 100, 50, model=model)
            await self._end(bench, head, request, *end)
        await self._hold(bench, head, "e", key, 7, 6, model="small")
        big, small = await store.usage(key)
        assert (big.model, big.calls, big.spent, big.held, big.unknown) == (
            "big",
            2,
            Budget(60, 24),
            Budget(0, 0),
            Budget(0, 0),
        )
        assert big.usage == Usage(40, 20, 10, 6, 24)
        assert (small.model, small.calls, small.spent) == ("small", 2, Budget(0, 0))
        assert (small.held, small.unknown) == (Budget(7, 6), Budget(100, 50))
        assert await store.usage(f"{key}:nobody") == ()

    async def test_what_pruned_runs_used_is_still_known(self, store: RunStore) -> None:
        """Retention drops requests and keeps the sums; without it an old request is still answered as it was."""
        bench = Bench(store)
        key, head = f"user:{bench.scope}", await bench.start()
        for request in ("1", "2"):
            await self._hold(bench, head, request, key, 100, 50, model="big")
            await self._end(bench, head, request, "settled", 30, 12, Usage(20, 10, 5, 3, 12))
        assert isinstance(await self._hold(bench, head, "1", key, 100, 50, model="big"), Applied)
        await bench.applied(await bench.again(head), status="completed", due_in_ms=None)
        other = await bench.start()
        await self._hold(bench, other, "3", key, 1, 1, model="big")
        before, balance = await store.usage(key), await store.balance(key)
        assert await store.prune(older_ms=-1, status=("completed",), scope=bench.scope, limit=10) == 1
        assert (await store.usage(key), await store.balance(key)) == (before, balance)
        assert (before[0].calls, before[0].spent) == (3, Budget(60, 24))

    async def test_an_unknown_hold_is_listed_and_released_once(self, store: RunStore) -> None:
        """By request, in all its scopes; who did it is written down. What is settled or held by a call at work is not free."""
        bench = Bench(store)
        user, org, head = f"user:{bench.scope}", f"org:{bench.scope}", await bench.start()
        shared = (SharedBudget(org, as_stored=True), SharedBudget(user, as_stored=True))
        for request in ("lost", "done", "open"):
            await bench.applied(await bench.again(head), reserve=Reserve(request, (org, user), 100, 50, shared, "big"))
        await self._end(bench, head, "lost", "unknown")
        await self._end(bench, head, "done", "settled", 10, 5)
        [hold] = await store.holds(user)
        assert (hold.rid, hold.request_id, hold.run_id, hold.scope) == (head.rid, "lost", head.run_id, bench.scope)
        assert (hold.tokens, hold.cost_micros, hold.scope_keys, hold.model) == (100, 50, (org, user), "big")
        assert 0 <= hold.age_ms < HOUR_MS
        assert await store.holds(org) == (hold,) or (await store.holds(org))[0].request_id == "lost"
        assert await store.holds(user, older_ms=HOUR_MS) == ()
        for request in ("done", "open", "never"):
            assert await store.release_hold(head.rid, request, actor="ops") == ()
        assert await store.release_hold(head.rid, "lost", actor="ops", reason="the provider billed nothing") == (org, user)
        assert await store.release_hold(head.rid, "lost", actor="ops") == ()
        assert await store.holds(user) == ()
        for key in (user, org):
            balance = await store.balance(key)
            assert balance is not None
            assert (balance.spent, balance.held, balance.unknown) == (Budget(10, 5), Budget(100, 50), Budget(0, 0))
            [row] = [row for row in await store.budget_audit(key) if row.action == "released"]
            assert (row.actor, row.reason, row.rid, row.request_id) == ("ops", "the provider billed nothing", head.rid, "lost")
            assert (row.tokens, row.micros) == (100, 50)

    async def test_a_released_hold_makes_room(self, store: RunStore) -> None:
        """Whether its end was folded before or not, the next reservation counts it no more, and only once."""
        bench = Bench(store)
        key, head = f"user:{bench.scope}", await bench.start()
        await store.set_budget(key, Budget(tokens=100))
        for place, folded in enumerate((True, False)):
            await self._hold(bench, head, f"lost{place}", key, 100)
            await self._end(bench, head, f"lost{place}", "unknown")
            if folded:
                assert isinstance(await self._hold(bench, head, f"full{place}", key, 100), BudgetExceeded)
            assert await store.release_hold(head.rid, f"lost{place}", actor="ops") == (key,)
            for _ in range(2):
                assert isinstance(await self._hold(bench, head, f"next{place}", key, 100), Applied)
            await self._end(bench, head, f"next{place}", "released")
        balance = await store.balance(key)
        assert balance is not None
        assert balance.counted == Budget(0, 0)

    async def test_a_limit_that_was_set_is_written_down(self, store: RunStore) -> None:
        """Newest first, with whoever did it."""
        bench = Bench(store)
        key = f"user:{bench.scope}"
        await store.set_budget(key, Budget(tokens=1), actor="eve", reason="trial")
        await store.set_budget(key, Budget(usd_micros=2), actor="joe")
        rows = await store.budget_audit(key)
        assert [(row.actor, row.reason, row.tokens, row.micros) for row in rows] == [
            ("joe", "", None, 2),
            ("eve", "trial", 1, None),
        ]
        assert all(row.action == "set" and row.scope_key == key for row in rows)

    async def test_slices_together_admit_what_the_limit_holds(self, store: RunStore) -> None:
        """However it was granted to them; what was not used is asked back before anybody is refused."""
        bench = Bench(store)
        key = f"org:{bench.scope}"
        await store.set_budget(key, Budget(tokens=1_000, usd_micros=10_000), slices=4)
        heads = [await bench.start() for _ in range(30)]
        outcomes = await asyncio.gather(*(self._hold(bench, head, "1", key, 50, 100) for head in heads))
        admitted = [head for head, outcome in zip(heads, outcomes, strict=True) if isinstance(outcome, Applied)]
        assert {outcome for outcome in outcomes if not isinstance(outcome, Applied)} <= {BudgetExceeded(key, "budget_exceeded")}
        assert len(admitted) <= 20
        late = 0
        while isinstance(await self._hold(bench, heads[0], f"late{late}", key, 50, 100), Applied):
            late += 1
        assert len(admitted) + late == 20
        balance = await store.balance(key)
        assert balance is not None
        assert (balance.held, balance.slices, balance.limit) == (Budget(1_000, 2_000), 4, Budget(1_000, 10_000))
        for head in admitted:
            await self._end(bench, head, "1", "settled", 10, 20)
        room = 0
        while isinstance(await self._hold(bench, heads[-1], f"more{room}", key, 50, 100), Applied):
            room += 1
        assert room == len(admitted) * 40 // 50

    async def test_a_lower_limit_counts_for_slices_too(self, store: RunStore) -> None:
        """What they were granted and did not use is gone with it; a caller's own limit sees what was granted as used."""
        bench = Bench(store)
        key, head = f"org:{bench.scope}", await bench.start()
        await store.set_budget(key, Budget(tokens=10_000), slices=2)
        assert isinstance(await self._hold(bench, head, "1", key, 50), Applied)
        strict = SharedBudget(key, Budget(tokens=60))
        assert isinstance(await self._hold(bench, head, "2", key, 50, held_to=strict), BudgetExceeded)
        await store.set_budget(key, Budget(tokens=90))
        assert await self._hold(bench, head, "3", key, 50) == BudgetExceeded(key, "budget_exceeded")
        assert isinstance(await self._hold(bench, head, "4", key, 40), Applied)
