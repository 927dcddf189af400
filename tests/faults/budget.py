"""64 workers, tasks of threads and processes mixed, against a budget worth ten calls, while they are killed at random.

``python -m tests.faults.budget`` repeats it and ends with 0 if every promise was kept:

* at no moment of the database's history does the scope count more than its cap: every version of its row is written down by
  a trigger, and what it counts is never less than what the reservations say;
* no more than ten calls are admitted, none is sent that was not, and none is sent twice;
* afterwards nothing is held by calls that nobody makes: a call whose worker died is `unknown`, listed, and worth its estimate;
* without kills exactly ten calls are admitted, all are settled, and whoever asked for more was refused.

``--repeats 20`` alternates rounds with and without kills.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import psycopg

from deuz_workers.app.handle import Handle
from deuz_workers.core.usage import Budget
from deuz_workers.ports.budgets import ScopeBalance, UnknownHold
from deuz_workers.store import open_store
from tests.faults.budget_agents import CALL_TOKENS, application
from tests.faults.rounds import play
from tests.workers.pool import Pool

WORKERS = (("threads", 16), ("threads", 16), ("threads", 16), ("prefork", 8), ("prefork", 8))
"""64 steps at a time: 48 tasks in three processes, and sixteen processes of one."""
RUNS = 64
CAP_CALLS = 10
KEY = "org:acme"
TTL_MS = 2_000
PATIENCE_S = 180.0
MOST_KILLS = 10
"""Of a round: twice as many as there are workers. Killed faster than they start on a busy machine, they would never end."""

WATCH = f"""
create table budget_seen (at timestamptz not null default clock_timestamp(), counted bigint not null, reserved bigint not null);
create function watch_budget() returns trigger language plpgsql as $$
begin
    -- Of this moment: a trigger's own statements see what has been committed meanwhile, and its own transaction's rows.
    insert into budget_seen (counted, reserved)
    select new.spent_tokens + new.held_tokens + new.unknown_tokens,
           coalesce((select sum(case when t.outcome in ('settled') then t.tokens
                                     when t.outcome in ('released', 'written_off') then 0 else r.tokens end)
                     from reservation r
                     left join settlement t using (rid, request_id, scope_key)
                     where r.scope_key = new.key), 0);
    return null;
end $$;
create constraint trigger watch_budget after update on budget_scope deferrable initially deferred
    for each row when (new.key = '{KEY}') execute function watch_budget();
"""


@dataclass
class Figures:
    """What one round did."""

    seconds: float = 0.0
    kills: int = 0
    admitted: int = 0
    sent: int = 0
    settled: int = 0
    unknown: int = 0
    refused: int = 0
    most_counted: int = 0
    versions: int = 0
    broken: list[str] = field(default_factory=list[str])
    """Promises that were not kept, in words."""

    def __str__(self) -> str:
        return (
            f"{self.seconds:5.1f} s, {self.kills} kills: {self.admitted} calls admitted, {self.sent} sent, "
            f"{self.settled} settled, {self.unknown} unknown, {self.refused} runs refused; at most {self.most_counted} of "
            f"{CAP_CALLS * CALL_TOKENS} tokens counted in {self.versions} versions; {len(self.broken)} promises broken"
        )


def press(pool: Pool, *, kills: bool, seed: int) -> Figures:
    """One round: start the workers, let all runs ask, kill until all of them have something to report, count."""
    chance = random.Random(seed)
    pool.module = "tests.faults.budget_agents:app"
    figures = Figures()
    url = pool.settings.database_url
    with psycopg.connect(url) as connection:
        connection.execute(cast(Any, WATCH))
    app = application(pool.settings)
    try:
        asyncio.run(_set(url))
        for kind, slots in WORKERS:
            pool.start(kind, concurrency=slots, wait=False)
        for worker in pool.workers:
            worker.wait_for("worker_open")
        began = time.monotonic()
        done = threading.Event()
        killer = threading.Thread(target=_kill, args=(pool, chance, done, figures))
        if kills:
            killer.start()
        try:
            handles = [app.enqueue("spender", "2 turns", shared_budgets=[KEY]) for _ in range(RUNS)]
            for handle in handles:
                _judge(handle, figures)
        finally:
            done.set()
            if kills:
                killer.join()
        figures.seconds = time.monotonic() - began
    finally:
        app.close()
    _count(pool, figures, kills=kills)
    return figures


async def _set(url: str) -> None:
    store = open_store(url)
    try:
        await store.set_budget(KEY, Budget(tokens=CAP_CALLS * CALL_TOKENS))
    finally:
        await store.close()


def _kill(pool: Pool, chance: random.Random, done: threading.Event, figures: Figures) -> None:
    living = list(zip(pool.workers, WORKERS, strict=True))
    while figures.kills < MOST_KILLS and not done.wait(chance.uniform(0.05, 0.6)):
        at_work = [one for one in living if one[0].said("worker_open")]
        if not at_work:
            continue  # on a busy machine a worker takes longer to start than another one lives
        worker, kind = victim = chance.choice(at_work)
        worker.kill()
        figures.kills += 1
        living.remove(victim)
        living.append((pool.start(kind[0], concurrency=kind[1], wait=False), kind))


def _judge(handle: Handle, figures: Figures) -> None:
    result = handle.result(PATIENCE_S)
    if result.status == "failed" and (result.error or {}).get("code") == "budget_exceeded":
        figures.refused += 1
    elif result.status != "completed":
        figures.broken.append(f"run {handle.run_id} is {result.status}: {result.reason or result.error}")


async def _read(url: str) -> tuple[ScopeBalance, tuple[UnknownHold, ...]]:
    store = open_store(url)
    try:
        balance = await store.balance(KEY)
        assert balance is not None
        return balance, await store.holds(KEY)
    finally:
        await store.close()


def _count(pool: Pool, figures: Figures, *, kills: bool) -> None:
    cap = CAP_CALLS * CALL_TOKENS
    with psycopg.connect(pool.settings.database_url) as connection:
        outcomes = Counter[str](
            dict(
                connection.execute(
                    "select coalesce(t.outcome, 'held'), count(*) from reservation r"
                    " left join settlement t using (rid, request_id, scope_key) where r.scope_key = %s group by 1",
                    [KEY],
                ).fetchall()
            )
        )
        known = {row[0] for row in connection.execute("select request_id from reservation where scope_key = %s", [KEY])}
        seen = connection.execute("select counted, reserved from budget_seen").fetchall()
    figures.admitted, figures.settled, figures.unknown = outcomes.total(), outcomes["settled"], outcomes["unknown"]
    figures.most_counted, figures.versions = max(counted for counted, _ in seen), len(seen)
    sends = Counter(pool.lines("sent"))
    figures.sent = sends.total()
    say = figures.broken.append
    for counted, reserved in seen:
        if counted > cap or reserved > cap:
            say(f"the scope counted {counted}, its reservations {reserved} of {cap} tokens")
        if reserved > counted:
            say(f"reservations of {reserved} tokens were counted as {counted}")
    if outcomes["settled"] + outcomes["unknown"] + outcomes["held"] > CAP_CALLS:
        say(f"{outcomes} calls against a cap worth {CAP_CALLS}")
    if outcomes["held"]:
        say(f"{outcomes['held']} calls are held by nobody")
    for request, count in sends.items():
        if count > 1 or request not in known:
            say(f"call {request} was sent {count} times, and was {'' if request in known else 'not '}admitted")
    balance, holds = asyncio.run(_read(pool.settings.database_url))
    if (balance.spent.tokens, balance.unknown.tokens) != (figures.settled * CALL_TOKENS, figures.unknown * CALL_TOKENS):
        say(f"the scope says {balance}, its reservations {outcomes}")
    if len(holds) != figures.unknown:
        say(f"{len(holds)} unknown calls are listed, there are {figures.unknown}")
    if not kills and (figures.admitted, figures.settled, figures.sent) != (CAP_CALLS,) * 3:
        say(f"without kills {figures.admitted} calls were admitted, {figures.sent} sent and {figures.settled} settled")


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.budget", description=__doc__)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0, help="0: a new one")
    given = parser.parse_args()

    def round_of(pool: Pool, number: int, seed: int) -> Figures:
        return press(pool, kills=number % 2 == 0, seed=seed)

    return play(given.repeats, given.seed, round_of, lease_ttl_ms=TTL_MS, sweep_interval_ms=500)


if __name__ == "__main__":
    sys.exit(main())
