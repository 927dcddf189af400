"""Runs whose connection to the database is cut when a commit has been applied, before anybody could say so."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from deuz_workers import Agent, Deuz, MockModel, Settings, ToolContext, tool
from deuz_workers.core.change import Change, Outcome, RevisionConflict
from deuz_workers.providers.script import call, calls
from deuz_workers.store import SqlStore
from deuz_workers.store.postgres import PostgresDialect
from tests.proxies import Cut, CuttingProxy

CUTS = 200
TURNS = 4
AT_ONCE = 4


class Unlucky(SqlStore):
    """Loses the answers of half of the commits, until `CUTS` were lost."""

    def __init__(self, url: str, proxy: CuttingProxy) -> None:
        super().__init__(PostgresDialect(url))
        self._proxy = proxy
        self._chance = random.Random(7)
        self.cuts: list[Cut] = []
        self.conflicts = 0

    async def commit(self, change: Change) -> Outcome:
        if len(self.cuts) < CUTS and self._chance.random() < 0.5:
            self.cuts.append(self._proxy.cut_after(change.commit_id.hex.encode()))
        outcome = await super().commit(change)
        self.conflicts += isinstance(outcome, RevisionConflict)
        return outcome


async def test_no_run_conflicts_with_itself_and_no_effect_is_doubted(migrated_postgres_dsn: str) -> None:
    """200 answers of commits are lost: every run completes, every tool call that was meant happened once, none was unknown."""
    paid: Counter[tuple[str, int]] = Counter()

    @tool
    async def pay(amount: int, ctx: ToolContext) -> str:
        """Pay. Doing it twice would cost twice."""
        paid[ctx.run_id, amount] += 1
        return f"paid {amount}"

    model = MockModel([*(calls(call("pay", amount=turn)) for turn in range(TURNS)), "done"])
    with CuttingProxy.before_postgres(migrated_postgres_dsn) as proxy:
        store = Unlucky(proxy.postgres_url(migrated_postgres_dsn), proxy)
        app = Deuz(
            [Agent("payer", model=model, tools=[pay])],
            settings=Settings(database_url=migrated_postgres_dsn, leases_url="memory://"),
            store=store,
        )
        ended = 0
        while len(store.cuts) < CUTS:
            results: list[Any] = await asyncio.gather(*(app.aio.run_embedded("payer", "Pay.") for _ in range(AT_ONCE)))
            ended += len(results)
            assert [(result.status, result.output, result.unknown_effects) for result in results] == [
                ("completed", "done", ())
            ] * AT_ONCE
        await app.aclose()
        for lost in store.cuts:
            lost.wait()
    assert store.conflicts == 0
    assert len(paid) == ended * TURNS
    assert set(paid.values()) == {1}
