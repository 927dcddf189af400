"""SQLite and Postgres give the same answers to the same random questions, and hold the same rows afterwards.

The suite of conformance says what is true of each; this finds what it forgot to say.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from deuz_workers.core.change import FINAL, Applied, Bell, Head, ItemRow, Reserve, Settle, TaskEnding
from deuz_workers.core.usage import Budget
from deuz_workers.ports.store import Cascade, Known, RunQuery, When
from deuz_workers.store import SqlStore, open_store
from deuz_workers.testing.store_conformance_bench import Bench, change_from, message, receipt

SEEDS, STEPS = 6, 150
T0_MS = 1_750_000_000_000
EDGES = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c"), "e": (), "f": ("e",)}
"""Of the swarm in every history."""
LIVE = ("queued", "running", "suspended", "suspended", "completed", "stopped", "failed")


@pytest.fixture
async def stores(migrated_postgres_dsn: str) -> AsyncIterator[tuple[SqlStore, SqlStore]]:
    """One of each dialect, both empty."""
    stores = open_store("sqlite://:memory:"), open_store(migrated_postgres_dsn)
    yield stores
    for store in stores:
        await store.close()


class History:
    """A random history that happens in both stores alike."""

    def __init__(self, stores: tuple[SqlStore, SqlStore], seed: int) -> None:
        self.stores = stores
        self.chance = random.Random(seed)
        self.bench = Bench(stores[0])
        self.runs: list[str] = []
        self.tasks: dict[str, str] = {}
        self.swarm_rid = UUID(int=0)
        self.log: list[str] = []
        self.requests = 0

    async def both(self, what: str, ask: Callable[[SqlStore], Awaitable[Any]]) -> Any:
        """Ask both stores and insist on one answer."""
        self.log.append(what)
        answers = [_in_order(await ask(store)) for store in self.stores]
        assert answers[0] == answers[1], "\n".join(self.log[-12:])
        return answers[0]

    async def begin(self) -> None:
        self.pass_time(0)
        scopes = (f"{self.bench.scope}:small", f"{self.bench.scope}:large")
        await self.both("budgets", lambda store: store.set_budget(scopes[0], Budget(tokens=200)))
        await self.both("budgets", lambda store: store.set_budget(scopes[1], Budget(tokens=2_000, usd_micros=500)))
        self.scopes = scopes
        run = self.bench.run(kind="swarm")
        swarm = self.bench.new_swarm(EDGES, 2)
        self.swarm_rid = run.rid
        self.tasks = {task.run.run_id: task.task_id for task in swarm.tasks}
        self.runs = [run.run_id, *self.tasks]
        await self.both("swarm", lambda store: store.create(run, swarm))

    def pass_time(self, most_ms: int) -> None:
        now = (self.stores[0].now or T0_MS) + self.chance.randint(0, most_ms)
        for store in self.stores:
            store.now = now

    async def step(self) -> None:
        self.pass_time(self.chance.choice((1, 1_000, 60_000)))
        kinds = (self.create, self.commit, self.commit, self.commit, self.note, self.answer, self.look_after, self.of_swarm)
        await self.chance.choice(kinds)()
        await self.both("read", self._everything)

    async def create(self) -> None:
        def moment() -> When | None:
            return self.chance.choice((None, None, When(in_ms=self.chance.randint(-10, 90_000)), When(at_ms=T0_MS + 60_000)))

        again = self.chance.random() < 0.2
        run = self.bench.run(
            run_id=self.chance.choice(self.runs) if again else self.bench.name(),
            start=moment(),
            deadline=moment(),
            start_before=moment(),
            tags={"team": self.chance.choice(("blue", "red"))},
            idempotency_key=self.chance.choice((None, "k1", "k2")),
            messages=(message(0),) if self.chance.random() < 0.5 else (),
            budget=self.chance.choice((None, Budget(tokens=50))),
            concurrency_key=self.chance.choice((None, "key")),
        )
        made = await self.both(f"create {run}", lambda store: store.create(run))
        if made.created:
            self.runs.append(run.run_id)

    async def some_head(self) -> Head:
        run_id = self.chance.choice(self.runs)
        head = await self.both(f"head {run_id}", lambda store: store.head(self.bench.scope, run_id))
        assert isinstance(head, Head)
        return head

    async def commit(self) -> None:
        head, chance = await self.some_head(), self.chance
        status = head.status if head.status in FINAL else chance.choice(LIVE)
        if head.status != "queued" and status == "queued":
            status = "running"
        count = chance.randint(0, 2)
        given: dict[str, Any] = {
            "expected": head.revision - (chance.random() < 0.1),
            "status": status,
            "due_in_ms": chance.choice((None, 0, 1, 50_000)),
            "seen_seq": chance.randint(head.seen_seq, head.wake_seq),
            "progress": chance.random() < 0.3,
            "tokens": head.tokens + chance.randint(0, 9),
            "cost_micros": chance.choice((None, 5)),
            "body": f"body {chance.randint(0, 9)}",
            "messages": tuple(message(head.last_seq + n) for n in range(1, count + 1)),
            "journal": ("event",) * chance.randint(0, 2),
            "receipts": (receipt(head.revision, "call"),) if chance.random() < 0.3 else (),
            "wakes": ((await self.some_head()).rid,) if chance.random() < 0.2 else (),
        }
        if status == "suspended" and chance.random() < 0.7:
            given["items"] = tuple(
                ItemRow(name, "approval", "{}", None, chance.choice((None, 1, 40_000)))
                for name in chance.sample("xyz", chance.randint(1, 3))
            )
        if (task_id := self.tasks.get(head.run_id)) is not None and status in (*FINAL, "suspended"):
            endings = {"completed": "completed", "failed": "failed", "stopped": "cancelled", "suspended": "suspended"}
            if await self._may_end(head.run_id):
                given["task"] = TaskEnding(self.swarm_rid, task_id, endings[status])  # type: ignore[arg-type]
        given |= self._ledger()
        change = change_from(head, **given)
        outcome = await self.both(f"commit {change}", lambda store: store.commit(change))
        if isinstance(outcome, Applied):
            await self.both("again", lambda store: store.commit(change))

    async def _may_end(self, run_id: str) -> bool:
        """Only tasks that had a slot run, and so end or suspend."""
        snapshot = await self.stores[0].swarm_snapshot(self.swarm_rid)
        assert snapshot is not None
        statuses = {task.run_id: task.status for task in snapshot.tasks}
        return statuses[run_id] in ("running", "suspended", "ready")

    def _ledger(self) -> dict[str, Any]:
        chance = self.chance
        given: dict[str, Any] = {}
        if chance.random() < 0.4:
            self.requests += 1
            given["reserve"] = Reserve(
                f"r{chance.randint(max(0, self.requests - 2), self.requests)}",
                chance.choice((self.scopes, self.scopes[1:], (*self.scopes, "unlimited"))),
                chance.randint(1, 90),
                chance.choice((None, 10, 60)),
            )
        if chance.random() < 0.4:
            request = f"r{chance.randint(0, self.requests)}"
            outcome = chance.choice(("settled", "released", "unknown"))
            given["settle"] = (Settle(request, self.scopes, outcome, chance.randint(0, 99), chance.choice((None, 7))),)
        return given

    async def note(self) -> None:
        run_id, kind = self.chance.choice(self.runs), self.chance.choice(("cancel", "message", "retry", "reconcile"))
        await self.both(f"{kind} note of {run_id}", lambda store: store.add_note(self.bench.scope, run_id, kind, kind))

    async def answer(self) -> None:
        run_id, item_id = self.chance.choice(self.runs), self.chance.choice("xyz")
        text = str(uuid4())
        await self.both(f"answer {run_id} {item_id}", lambda store: store.answer_item(self.bench.scope, run_id, item_id, text))

    async def look_after(self) -> None:
        head = await self.some_head()
        scope, run_id = self.bench.scope, head.run_id
        match self.chance.randint(0, 6):
            case 4:
                await self.both(f"take {run_id}", lambda store: store.take_slot(head.rid, head.revision, 2))
            case 5:
                await self.both("fill key", lambda store: store.fill_key(scope, "key"))
            case 6:
                await self.both("keys", lambda store: store.keys_needing_attention(10))
            case 0:
                await self.both(f"unclean {run_id}", lambda store: store.record_unclean_end(head.rid, head.revision, 5_000))
            case 1:
                await self.both(f"park {run_id}", lambda store: store.park(head.rid, head.revision, "reason"))
            case 2:
                await self.both(f"postpone {run_id}", lambda store: store.postpone(scope, run_id, 10_000))
            case _:
                await self.both("sweep", lambda store: store.sweep(limit=100, ttl_ms=30_000))

    async def of_swarm(self) -> None:
        rid = self.swarm_rid
        match self.chance.randint(0, 9):
            case 0:
                await self.both("cancel", lambda store: store.cancel_tasks(rid, 100))
            case 1 | 2:
                await self.both("block", lambda store: store.block_downstream(rid, 100))
            case 3:
                await self.both("settle", lambda store: store.settle_swarm(rid))
            case 4:
                await self.both("attention", lambda store: store.swarms_needing_attention(10))
            case _:
                await self.both("fill", lambda store: store.fill_slots(rid))

    async def _everything(self, store: SqlStore) -> Any:
        """All that can be read."""
        scope = self.bench.scope
        loads = [await store.load(scope, run_id, Known(0, 1, 1)) for run_id in self.runs]
        found = [await store.open_items(scope, run_id) for run_id in self.runs]
        journals = [await store.journal(scope, run_id, 0, 1_000) for run_id in self.runs]
        listed = await store.list_runs(RunQuery(scope=scope, limit=7, status=("queued", "suspended"), tags={"team": "blue"}))
        return (
            loads,
            found,
            journals,
            listed,
            await store.swarm_snapshot(self.swarm_rid),
            await store.task_results(self.swarm_rid, "d"),
            [await store.balance(key) for key in self.scopes],
            await store.cost_by_tag(scope, "team"),
            await store.slot_counters(scope, "key"),
        )


def _in_order(answer: Any) -> Any:
    """Bells of several runs have no promised order."""
    match answer:
        case Applied(woken=woken):
            return Applied(
                answer.revision,
                answer.wake_seq,
                answer.cancel_seq,
                answer.due,
                tuple(sorted(woken, key=_name)),
                answer.swarm_open,
            )
        case Cascade():
            return (answer.changed, answer.more, sorted(answer.bells, key=_name))
        case tuple() if answer and isinstance(answer[0], Bell):
            return sorted(answer, key=_name)
        case _:
            return answer


def _name(bell: Bell) -> str:
    return bell.run_id


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_dialects_agree(stores: tuple[SqlStore, SqlStore], seed: int) -> None:
    """Every answer and everything that can be read afterwards is equal, at every step of a random history."""
    history = History(stores, seed)
    await history.begin()
    for _ in range(STEPS):
        await history.step()
