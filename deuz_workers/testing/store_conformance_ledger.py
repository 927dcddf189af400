"""The budget ledger: admission all or nothing, settlement, what nobody knows."""

from __future__ import annotations

import asyncio
from typing import Any

from deuz_workers.core.change import Applied, BudgetExceeded, Head, Outcome, Reserve, Settle
from deuz_workers.core.usage import Budget
from deuz_workers.ports.store import RunStore
from deuz_workers.testing.store_conformance_bench import Bench


class LedgerConformance:
    """`Reserve` and `Settle` of a commit, `set_budget`, `balance`."""

    async def _reserve(
        self, bench: Bench, head: Head, request_id: str, scopes: tuple[str, ...], tokens: int, cost: int | None = None
    ) -> Outcome:
        return await bench.commit(await bench.again(head), reserve=Reserve(f"{head.run_id}:{request_id}", scopes, tokens, cost))

    async def _settle(
        self, bench: Bench, head: Head, request_id: str, scopes: tuple[str, ...], outcome: Any, **used: Any
    ) -> None:
        settle = Settle(f"{head.run_id}:{request_id}", scopes, outcome, **used)
        await bench.applied(await bench.again(head), settle=(settle,))

    async def _amounts(self, store: RunStore, key: str) -> tuple[Budget, Budget, Budget]:
        """Spent, held and unknown."""
        balance = await store.balance(key)
        assert balance is not None, key
        return balance.spent, balance.held, balance.unknown

    async def test_a_scope_has_the_limit_it_was_given(self, store: RunStore) -> None:
        """A scope without a row is None; setting the limit makes one, and changing it keeps what was spent and held."""
        bench = Bench(store)
        key = f"{bench.scope}:a"
        assert await store.balance(key) is None
        await store.set_budget(key, Budget(tokens=100))
        balance = await store.balance(key)
        assert balance is not None
        assert (balance.key, balance.limit) == (key, Budget(100, None))
        assert (balance.spent, balance.held, balance.unknown) == (Budget(0, 0), Budget(0, 0), Budget(0, 0))
        head = await bench.start()
        await self._reserve(bench, head, "1", (key,), 60, 5)
        await store.set_budget(key, Budget(tokens=50, usd_micros=7))
        balance = await store.balance(key)
        assert balance is not None
        assert (balance.limit, balance.held) == (Budget(50, 7), Budget(60, 5))

    async def test_a_hold_is_settled_by_what_was_used(self, store: RunStore) -> None:
        """A reservation is held; settling replaces the estimate by the usage, whether less or more."""
        bench = Bench(store)
        key = f"{bench.scope}:a"
        await store.set_budget(key, Budget(tokens=1_000, usd_micros=1_000))
        head = await bench.start()
        assert isinstance(await self._reserve(bench, head, "1", (key,), 100, 50), Applied)
        assert await self._amounts(store, key) == (Budget(0, 0), Budget(100, 50), Budget(0, 0))
        await self._settle(bench, head, "1", (key,), "settled", tokens=30, cost_micros=20)
        assert await self._amounts(store, key) == (Budget(30, 20), Budget(0, 0), Budget(0, 0))
        await self._reserve(bench, head, "2", (key,), 10, 10)
        await self._settle(bench, head, "2", (key,), "settled", tokens=25, cost_micros=15)
        assert await self._amounts(store, key) == (Budget(55, 35), Budget(0, 0), Budget(0, 0))

    async def test_a_released_hold_costs_nothing(self, store: RunStore) -> None:
        """A call that was never sent gives its whole hold back."""
        bench = Bench(store)
        key = f"{bench.scope}:a"
        await store.set_budget(key, Budget(tokens=100))
        head = await bench.start()
        await self._reserve(bench, head, "1", (key,), 100)
        await self._settle(bench, head, "1", (key,), "released")
        assert await self._amounts(store, key) == (Budget(0, 0), Budget(0, 0), Budget(0, 0))
        assert isinstance(await self._reserve(bench, head, "2", (key,), 100), Applied)

    async def test_an_unknown_outcome_keeps_its_estimate(self, store: RunStore) -> None:
        """A hold that nobody can settle is shown apart and still counts against the limit."""
        bench = Bench(store)
        key = f"{bench.scope}:a"
        await store.set_budget(key, Budget(tokens=100, usd_micros=100))
        head = await bench.start()
        await self._reserve(bench, head, "1", (key,), 60, 30)
        await self._settle(bench, head, "1", (key,), "unknown")
        assert await self._amounts(store, key) == (Budget(0, 0), Budget(0, 0), Budget(60, 30))
        assert await self._reserve(bench, head, "2", (key,), 41, 1) == BudgetExceeded(key, "budget_exceeded")
        assert isinstance(await self._reserve(bench, head, "3", (key,), 40, 1), Applied)

    async def test_a_limit_admits_up_to_itself(self, store: RunStore) -> None:
        """Spent, held and the estimate may reach the limit exactly; one more is refused and says which scope."""
        bench = Bench(store)
        key = f"{bench.scope}:a"
        await store.set_budget(key, Budget(tokens=110))
        head = await bench.start()
        await self._reserve(bench, head, "1", (key,), 100)
        await self._settle(bench, head, "1", (key,), "settled", tokens=15)
        assert isinstance(await self._reserve(bench, head, "2", (key,), 95), Applied)
        revision = (await bench.again(head)).revision
        assert await self._reserve(bench, head, "3", (key,), 1) == BudgetExceeded(key, "budget_exceeded")
        assert (await bench.again(head)).revision == revision
        assert await self._amounts(store, key) == (Budget(15, 0), Budget(95, 0), Budget(0, 0))

    async def test_two_runs_share_a_scope(self, store: RunStore) -> None:
        """What one run spent counts for another that names the same scope; the refused one leaves no charge."""
        bench = Bench(store)
        key = f"{bench.scope}:user"
        await store.set_budget(key, Budget(tokens=110))
        first, second = await bench.start(), await bench.start()
        assert isinstance(await self._reserve(bench, first, "1", (key,), 100), Applied)
        await self._settle(bench, first, "1", (key,), "settled", tokens=15)
        assert await self._reserve(bench, second, "1", (key,), 100) == BudgetExceeded(key, "budget_exceeded")
        assert await self._amounts(store, key) == (Budget(15, 0), Budget(0, 0), Budget(0, 0))

    async def test_money_and_tokens_are_two_limits(self, store: RunStore) -> None:
        """A scope refuses when either of its limits would be passed."""
        bench = Bench(store)
        key = f"{bench.scope}:a"
        await store.set_budget(key, Budget(tokens=100, usd_micros=100))
        head = await bench.start()
        assert await self._reserve(bench, head, "1", (key,), 1, 101) == BudgetExceeded(key, "budget_exceeded")
        assert await self._reserve(bench, head, "2", (key,), 101, 1) == BudgetExceeded(key, "budget_exceeded")
        assert isinstance(await self._reserve(bench, head, "3", (key,), 100, 100), Applied)

    async def test_an_unknown_price_is_refused_under_a_money_limit(self, store: RunStore) -> None:
        """Without a price a scope with a USD limit answers `missing_reservation`; one with a token limit admits."""
        bench = Bench(store)
        money, tokens = f"{bench.scope}:money", f"{bench.scope}:tokens"
        await store.set_budget(money, Budget(usd_micros=100))
        await store.set_budget(tokens, Budget(tokens=100))
        head = await bench.start()
        refused = await self._reserve(bench, head, "1", (tokens, money), 1, None)
        assert refused == BudgetExceeded(money, "missing_reservation")
        assert await self._amounts(store, tokens) == (Budget(0, 0), Budget(0, 0), Budget(0, 0))
        assert isinstance(await self._reserve(bench, head, "2", (tokens,), 1, None), Applied)

    async def test_all_scopes_admit_or_none(self, store: RunStore) -> None:
        """A refusal by one scope leaves no hold in the others; scopes without a limit do not matter."""
        bench = Bench(store)
        inner, outer = f"{bench.scope}:inner", f"{bench.scope}:outer"
        await store.set_budget(inner, Budget(tokens=100))
        await store.set_budget(outer, Budget(tokens=50))
        head = await bench.start()
        chain = (inner, f"{bench.scope}:unlimited", outer)
        assert await self._reserve(bench, head, "1", chain, 60) == BudgetExceeded(outer, "budget_exceeded")
        assert await self._amounts(store, inner) == (Budget(0, 0), Budget(0, 0), Budget(0, 0))
        assert isinstance(await self._reserve(bench, head, "2", chain, 50), Applied)
        for key in (inner, outer):
            assert await self._amounts(store, key) == (Budget(0, 0), Budget(50, 0), Budget(0, 0))
        await self._settle(bench, head, "2", chain, "settled", tokens=20)
        for key in (inner, outer):
            assert await self._amounts(store, key) == (Budget(20, 0), Budget(0, 0), Budget(0, 0))
        assert await store.balance(f"{bench.scope}:unlimited") is None

    async def test_a_request_reserves_and_settles_once(self, store: RunStore) -> None:
        """A second reserve or settle under the same request id changes nothing."""
        bench = Bench(store)
        key = f"{bench.scope}:a"
        await store.set_budget(key, Budget(tokens=100))
        head = await bench.start()
        for _ in range(3):
            assert isinstance(await self._reserve(bench, head, "1", (key,), 60), Applied)
        assert await self._amounts(store, key) == (Budget(0, 0), Budget(60, 0), Budget(0, 0))
        for _ in range(3):
            await self._settle(bench, head, "1", (key,), "settled", tokens=10)
        assert await self._amounts(store, key) == (Budget(10, 0), Budget(0, 0), Budget(0, 0))
        await self._settle(bench, head, "1", (key,), "released")
        await self._reserve(bench, head, "1", (key,), 60)
        assert await self._amounts(store, key) == (Budget(10, 0), Budget(0, 0), Budget(0, 0))

    async def test_request_ids_belong_to_their_run(self, store: RunStore) -> None:
        """Two runs may use one request id: each holds and settles its own."""
        bench = Bench(store)
        key = f"{bench.scope}:a"
        await store.set_budget(key, Budget(tokens=100))
        one, two = await bench.start(), await bench.start()
        for head in (one, two):
            await bench.applied(head, reserve=Reserve("call-1", (key,), 30, None))
        await bench.applied(await bench.again(one), settle=(Settle("call-1", (key,), "settled", 5, 0),))
        assert await self._amounts(store, key) == (Budget(5, 0), Budget(30, 0), Budget(0, 0))

    async def test_a_settlement_frees_room_for_the_next(self, store: RunStore) -> None:
        """What was settled counts in the next admission, also when another run asks."""
        bench = Bench(store)
        key = f"{bench.scope}:a"
        await store.set_budget(key, Budget(tokens=100))
        one, two = await bench.start(), await bench.start()
        await self._reserve(bench, one, "1", (key,), 100)
        assert isinstance(await self._reserve(bench, two, "1", (key,), 50), BudgetExceeded)
        await self._settle(bench, one, "1", (key,), "settled", tokens=40)
        assert isinstance(await self._reserve(bench, two, "2", (key,), 60), Applied)
        assert await self._amounts(store, key) == (Budget(40, 0), Budget(60, 0), Budget(0, 0))

    async def test_several_holds_settle_in_one_commit(self, store: RunStore) -> None:
        """A commit may settle some calls and reserve the next one."""
        bench = Bench(store)
        key = f"{bench.scope}:a"
        await store.set_budget(key, Budget(tokens=1_000))
        head = await bench.start()
        for request in ("1", "2"):
            await self._reserve(bench, head, request, (key,), 100)
        name = head.run_id
        await bench.applied(
            await bench.again(head),
            settle=(Settle(f"{name}:1", (key,), "settled", 10, 0), Settle(f"{name}:2", (key,), "unknown")),
            reserve=Reserve(f"{name}:3", (key,), 7, None),
        )
        assert await self._amounts(store, key) == (Budget(10, 0), Budget(7, 0), Budget(100, 0))

    async def test_a_refused_commit_settles_nothing(self, store: RunStore) -> None:
        """A commit from an old revision neither reserves nor settles."""
        bench = Bench(store)
        key = f"{bench.scope}:a"
        await store.set_budget(key, Budget(tokens=100))
        head = await bench.start()
        await self._reserve(bench, head, "1", (key,), 60)
        name = head.run_id
        await bench.commit(
            head, settle=(Settle(f"{name}:1", (key,), "released"),), reserve=Reserve(f"{name}:2", (key,), 10, None)
        )
        assert await self._amounts(store, key) == (Budget(0, 0), Budget(60, 0), Budget(0, 0))

    async def test_the_same_reservation_offered_again_counts_once(self, store: RunStore) -> None:
        """A commit whose answer got lost holds its estimate once, and is told `Applied` although the limit is reached."""
        bench = Bench(store)
        key = f"{bench.scope}:a"
        await store.set_budget(key, Budget(tokens=100))
        head = await bench.start()
        given: dict[str, Any] = {"commit_id": head.rid, "reserve": Reserve(f"{head.run_id}:1", (key,), 100, None)}
        for _ in range(2):
            assert isinstance(await bench.commit(head, **given), Applied)
        assert await self._amounts(store, key) == (Budget(0, 0), Budget(100, 0), Budget(0, 0))

    async def test_of_fifty_admissions_into_room_for_ten_ten_pass(self, store: RunStore) -> None:
        """Simultaneous reservations of many runs in a chain of scopes admit exactly what the limit holds."""
        bench = Bench(store)
        inner, outer = f"{bench.scope}:inner", f"{bench.scope}:outer"
        await store.set_budget(inner, Budget(tokens=10_000))
        await store.set_budget(outer, Budget(tokens=100))
        heads = [await bench.start() for _ in range(50)]
        outcomes = await asyncio.gather(*(self._reserve(bench, head, "1", (inner, outer), 10) for head in heads))
        assert sum(isinstance(outcome, Applied) for outcome in outcomes) == 10
        assert {outcome for outcome in outcomes if isinstance(outcome, BudgetExceeded)} == {
            BudgetExceeded(outer, "budget_exceeded")
        }
        for key in (inner, outer):
            assert await self._amounts(store, key) == (Budget(0, 0), Budget(100, 0), Budget(0, 0))
