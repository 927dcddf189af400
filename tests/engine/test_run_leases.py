"""A run and its lease, over every provider: claimed first, kept while it works, given back, lost, asked to cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from deuz_workers.core.change import Head
from deuz_workers.core.codec import encode
from deuz_workers.core.names import run_lease_key
from deuz_workers.engine.heartbeat import Heartbeat
from deuz_workers.errors import AgentRunLeaseError, ModelRequestError
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.leases import Gone, Held, Lease, LeaseProvider, LeaseRenewer, Peek, Released, Renewed, Young
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.store import Known, Loaded
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Answer, Entry, call, calls
from deuz_workers.testing.lease_conformance import LONG_MS, LeaseBench
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.tools.decorator import tool_from_schema
from tests.leases.benches import file_bench, memory_bench, postgres_bench, redis_bench

pytestmark = pytest.mark.spec("LEA-013")
KEY = run_lease_key(SCOPE, "r")
HEARTBEATS: list[Heartbeat] = []
"""Whose connections are to be closed when the test is over."""


@pytest.fixture(params=["memory", "file", "redis", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    match request.param:
        case "memory":
            return memory_bench()
        case "file":
            return file_bench(tmp_path / "leases.sqlite3")
        case "redis":
            return redis_bench(request.getfixturevalue("redis_url"))
        case _:
            return postgres_bench(request.getfixturevalue("migrated_postgres_dsn"))


@pytest.fixture
async def bench(opened: Any) -> AsyncGenerator[LeaseBench]:
    """An empty provider of each kind."""
    async with opened as bench:
        yield bench
        while HEARTBEATS:
            HEARTBEATS.pop().stop()


@dataclass
class Noting:
    """Passes everything on and notes what was asked, in order."""

    inner: LeaseProvider
    asked: list[str] = field(default_factory=list[str])
    granted: list[Lease] = field(default_factory=list[Lease])
    released: list[Released | Gone] = field(default_factory=list[Released | Gone])

    async def acquire(
        self, key: str, owner: str, ttl_ms: int, *, revision: int = 0, force: bool = False
    ) -> Lease | Held | Young:
        answer = await self.inner.acquire(key, owner, ttl_ms, revision=revision, force=force)
        self.asked.append("acquire" if isinstance(answer, Lease) else "in vain")
        if isinstance(answer, Lease):
            self.granted.append(answer)
        return answer

    async def release(self, lease: Lease) -> Released | Gone:
        self.asked.append("release")
        self.released.append(await self.inner.release(lease))
        return self.released[-1]

    async def signal(self, key: str, kind: Literal["cancel", "drain"]) -> bool:
        return await self.inner.signal(key, kind)

    async def peek(self, key: str) -> Peek:
        return await self.inner.peek(key)

    def renewer(self, *, timeout_ms: int) -> LeaseRenewer:
        return NotingRenewer(self, self.inner.renewer(timeout_ms=timeout_ms))

    async def close(self) -> None:
        await self.inner.close()


@dataclass
class NotingRenewer:
    noting: Noting
    inner: LeaseRenewer

    def renew(self, leases: Sequence[Lease]) -> Sequence[Renewed | Gone]:
        self.noting.asked.append("renew")
        return self.inner.renew(leases)

    def close(self) -> None:
        self.inner.close()


class Stage:
    """One run `r` of an agent whose model is asked by `answer` and whose tool does `act`, over the leases of a bench."""

    def __init__(self, bench: LeaseBench, answer: Answer, act: Callable[[], Any] | None = None, ttl_ms: int = LONG_MS) -> None:
        async def run(arguments: dict[str, Any], context: object) -> str:
            self.acted += 1
            if act is not None:
                await act()
            return "acted"

        made = tool_from_schema("act", "Acts.", {"type": "object", "properties": {}}, run)
        self.model = MockModel.function(answer)
        self.acted = 0
        self.leases = Noting(bench.leases)
        agent = AgentDefinition("a", self.model, tools={"act": made})
        self.simulation = Simulation({"a": agent}, leases=self.leases, ttl_ms=ttl_ms)
        self.process = Process(self.simulation)
        HEARTBEATS.append(self.process.engine.gear.heartbeat)
        load = self.simulation.store.load

        async def noted(scope: str, run_id: str, known: Known | None = None) -> Loaded | None:
            self.leases.asked.append("load")
            return await load(scope, run_id, known)

        self.simulation.store.load = noted

    def beat(self) -> None:
        """A round of the heartbeat, as its thread makes three times per TTL."""
        assert self.process.engine.gear.heartbeat.beat()

    async def beats(self) -> None:
        self.beat()

    async def step(self) -> str:
        return (await self.process.engine.step(SCOPE, "r")).end

    async def is_free(self) -> bool:
        return (await self.simulation.leases.peek(KEY)).ms_left is None

    async def revision(self) -> int:
        head = await self.simulation.store.head(SCOPE, "r")
        assert head is not None
        return head.revision

    async def note_cancel(self) -> None:
        assert await self.simulation.store.add_note(SCOPE, "r", "cancel", encode({"reason": "enough"})) is not None


def turns(count: int) -> Callable[[ModelRequest], Entry]:
    """Calls the tool in every turn but the last."""

    def answer(request: ModelRequest) -> Entry:
        turn = 1 + sum(message.role == "assistant" for message in request.messages)
        return calls(call("act")) if turn < count else "done"

    return answer


@pytest.mark.spec("LEA-001", "LEA-011")
async def test_a_step_claims_its_run_before_it_loads_and_gives_it_back_at_its_end(bench: LeaseBench) -> None:
    """The run's own key is held with the given TTL while model and tool work; between steps nobody has it; tokens grow."""
    seen: list[Peek] = []

    async def look() -> None:
        seen.append(await stage.simulation.leases.peek(KEY))

    async def answer(request: ModelRequest) -> Entry:
        await look()
        return turns(3)(request)

    stage = Stage(bench, answer, look, ttl_ms=LONG_MS // 2)
    await stage.simulation.enqueue("a", "r")
    ends: list[str] = []
    while not ends or ends[-1] == "turn":
        stage.leases.asked.clear()
        ends.append(await stage.step())
        assert [what for what in stage.leases.asked if what != "in vain"] == ["acquire", "load", "release"]
        assert await stage.is_free()
    assert ends == ["turn", "turn", "ended"]
    assert len(seen) == 3 + 2
    assert all(peek.ms_left is not None and LONG_MS // 4 < peek.ms_left <= LONG_MS // 2 for peek in seen)
    assert len({peek.owner for peek in seen}) == 3
    assert [lease.owner for lease in stage.leases.granted] == [seen[0].owner, seen[2].owner, seen[4].owner]
    tokens = [lease.token for lease in stage.leases.granted]
    assert tokens == sorted(set(tokens))


@pytest.mark.spec("LEA-004")
@pytest.mark.parametrize("outcome", ["completed", "failed", "stopped"])
async def test_a_lease_is_renewed_and_given_back_whatever_the_outcome(bench: LeaseBench, outcome: str) -> None:
    """Every beat while a call is under way is a renewal; success, failure and a cancel end with a release of a lease held."""

    async def answer(request: ModelRequest) -> Entry:
        for _ in range(3):
            stage.beat()
        if outcome == "stopped":
            await stage.note_cancel()
        return ModelRequestError("no") if outcome == "failed" else turns(2)(request)

    stage = Stage(bench, answer, lambda: stage.beats())
    await stage.simulation.enqueue("a", "r")
    while await stage.step() == "turn":
        assert await stage.is_free()
    assert (await stage.simulation.load("r")).envelope.status == outcome
    asked = [what for what in stage.leases.asked if what in ("acquire", "renew", "release")]
    first = ["acquire", *["renew"] * (3 + stage.acted), "release"]
    assert asked == ([*first, "acquire", *["renew"] * 3, "release"] if outcome == "completed" else first)
    assert all(isinstance(released, Released) for released in stage.leases.released)
    assert await stage.is_free()


@pytest.mark.spec("LEA-003")
async def test_a_lease_that_is_stolen_while_a_tool_runs(bench: LeaseBench) -> None:
    """The loser saves nothing more and says `lease_lost`; the thief keeps the key, and the record is as it was."""

    async def steal() -> None:
        [hold] = stage.process.engine.gear.heartbeat.holds
        await bench.leases.release(hold.lease)
        assert isinstance(await bench.leases.acquire(KEY, "thief", LONG_MS, force=True), Lease)
        before.append(await stage.revision())
        stage.beat()

    before: list[int] = []
    stage = Stage(bench, turns(2), steal)
    await stage.simulation.enqueue("a", "r")
    report = await stage.process.engine.step(SCOPE, "r")
    assert (report.end, report.bells, stage.acted) == ("over", (), 1)
    assert isinstance(report.error, AgentRunLeaseError)
    assert report.error.code == "lease_lost"
    assert before == [await stage.revision()]
    assert (await bench.leases.peek(KEY)).owner == "thief"
    assert await stage.step() == "held"


@pytest.mark.spec("LSE-008")
@pytest.mark.parametrize("flushed", [False, True])
async def test_a_cancel_outlives_its_holder_and_a_flush(bench: LeaseBench, flushed: bool) -> None:
    """The holder dies with the cancel unread, and the provider may forget it: whoever comes next ends the run at once."""

    async def answer(request: ModelRequest) -> Entry:
        await stage.note_cancel()
        assert await bench.leases.signal(KEY, "cancel")
        return turns(2)(request)

    stage = Stage(bench, answer, ttl_ms=max(bench.short_ms, 500))
    await stage.simulation.enqueue("a", "r")
    await stage.simulation.step_until_death("r", "after model call")
    await bench.pass_ms(max(bench.short_ms, 500))
    if flushed:
        await bench.forget()
    end = await stage.step()
    while end == "young":
        await bench.pass_ms(max(bench.short_ms, 500))
        stage.simulation.clock.passed_ms += 60_000
        end = await stage.step()
    assert end == "ended"
    envelope = (await stage.simulation.load("r")).envelope
    assert (envelope.status, envelope.reason) == ("stopped", "aborted")
    assert (len(stage.model.requests), stage.acted) == (1, 0)


@pytest.mark.spec("LSE-008")
async def test_a_forged_cancel_changes_nothing(bench: LeaseBench) -> None:
    """A signal at the key without a row in the store makes the holder look there, and the run goes on to its end."""

    async def answer(request: ModelRequest) -> Entry:
        looked.clear()
        assert await bench.leases.signal(KEY, "cancel")
        stage.beat()
        await asyncio.wait_for(looked.wait(), 10)
        return turns(2)(request)

    stage = Stage(bench, answer)
    looked = asyncio.Event()
    head = stage.simulation.store.head

    async def told(scope: str, run_id: str) -> Head | None:
        found = await head(scope, run_id)
        looked.set()
        return found

    await stage.simulation.enqueue("a", "r")
    stage.simulation.store.head = told
    await bench.leases.signal(KEY, "cancel")
    assert [await stage.step(), await stage.step()] == ["turn", "ended"]
    envelope = (await stage.simulation.load("r")).envelope
    assert (envelope.status, envelope.output, envelope.unknown_tokens) == ("completed", "done", 0)
    assert (len(stage.model.requests), stage.acted) == (2, 1)
