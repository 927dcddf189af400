"""One schedule: a store, a lease server, a broker, and the worker processes that come and go."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from deuz_workers.core.approval_token import ApprovalSigner
from deuz_workers.core.change import Bell
from deuz_workers.engine.engine import StepReport
from deuz_workers.engine.settings import EngineSettings
from deuz_workers.leases.sqlite import SqliteLeases
from deuz_workers.ports.definition import AgentDefinition, ReducerDefinition
from deuz_workers.ports.leases import Gone, Lease, LeaseProvider, Renewed
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.runtime import Clock
from deuz_workers.ports.tool import ToolContext
from deuz_workers.store.sql_store import SqlStore
from deuz_workers.testing.lying_leases import LyingLeases
from deuz_workers.testing.virtual.broker import Broker
from deuz_workers.testing.virtual.clock import DrawnIds, LoopClock
from deuz_workers.testing.virtual.effects import Effects
from deuz_workers.testing.virtual.faults import Fate, Faults
from deuz_workers.testing.virtual.loop import VirtualLoop
from deuz_workers.testing.virtual.process import Role, VirtualProcess
from deuz_workers.testing.virtual.watched import Database, Settled, WatchedSqlite
from deuz_workers.testing.virtual.witness import HELD, ORPHANS, UNANSWERED, UNSWEPT, Witness

_OUTSIDE = Context()
"""No lane is named in it: its callbacks are nobody's."""
TTL_MS = 3_000
MOST_COMPLAINTS = 20
RESTART_MS = (50, 1_500)
"""Until a supervisor has started another process for one that died."""


@dataclass(slots=True)
class World:
    """Made from a seed, agents and faults. `start` begins the processes; `loop.run` lets them work."""

    seed: int
    agents: Mapping[str, AgentDefinition]
    reducers: Mapping[str, ReducerDefinition]
    faults: Faults
    roles: Sequence[Role] = (Role(), Role(), Role("default.quarantine", 1))
    sweeps: bool = True
    """False: nothing is found that nobody rang for."""
    sweep_interval_ms: int = 1_000
    window: int = 16
    drain_grace_ms: int = 500
    settings: EngineSettings = field(
        default_factory=lambda: EngineSettings(
            lease_ttl_ms=TTL_MS,
            unclean_back_off_ms=200,
            unclean_back_off_max_ms=2_000,
            retry_base_ms=50,
            retry_max_ms=400,
            rerun_base_ms=500,
            rerun_max_ms=2_000,
        )
    )
    make_database: Callable[[Clock, Witness], Database] = WatchedSqlite
    rules: list[Callable[[ToolContext, int], None]] = field(default_factory=lambda: list[Callable[[ToolContext, int], None]]())
    """Asked before each effect, with the amount that its tool was called with."""
    signer: ApprovalSigner | None = None
    """Approvals need a token that it made; None: they need none."""
    names: dict[UUID, tuple[str, str]] = field(default_factory=lambda: dict[UUID, tuple[str, str]]())
    """Scope and run id of every run, for complaints."""
    complaints: list[str] = field(default_factory=lambda: list[str]())
    """What must never be so, and was."""
    processes: list[VirtualProcess] = field(default_factory=lambda: list[VirtualProcess]())
    """Those that are alive."""
    deaths: int = 0
    ends: Counter[str] = field(default_factory=lambda: Counter[str]())
    """How steps ended."""
    operations: Counter[str] = field(default_factory=lambda: Counter[str]())
    """Of the store, as asked for by processes."""
    effects: Effects = field(default_factory=Effects)
    requests: Counter[str] = field(default_factory=lambda: Counter[str]())
    counts: Counter[tuple[object, ...]] = field(default_factory=lambda: Counter[tuple[object, ...]]())
    """What functions of a scenario keep in mind."""
    trace: Callable[[str], None] | None = None
    """Hears what arrives at servers, when a schedule is looked at closely."""
    forced: set[str] = field(default_factory=lambda: set[str]())
    """Runs, by lease key, that were claimed although the memory of the lease server was young: a flush may have forgotten
    their living holder."""
    store_is_away: bool = False
    leases_are_away: bool = False
    only_sweeps: bool = False
    """Nobody hears a doorbell but the sweep's."""
    chance: random.Random = field(init=False)
    loop: VirtualLoop = field(init=False)
    clock: LoopClock = field(init=False)
    ids: DrawnIds = field(init=False)
    fate: Fate = field(init=False)
    witness: Witness = field(init=False)
    dialect: Database = field(init=False)
    store: SqlStore = field(init=False)
    """As people and producers see it: it answers at once."""
    broker: Broker = field(init=False)
    honest_leases: SqliteLeases = field(init=False)
    _lying: LyingLeases = field(init=False)
    _started: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311 - replayed, not secret
        self.loop = VirtualLoop(self.chance, steadiness=self.chance.choice((0.0, 0.5, 0.9)))
        self.clock = LoopClock(self.loop)
        self.ids = DrawnIds(self.chance, self.clock)
        self.fate = Fate(self.faults, self.chance)
        self.witness = Witness(self.complain)
        self.dialect = self.make_database(self.clock, self.witness)
        self.store = SqlStore(Settled(self.dialect), ttl_ms=self.settings.lease_ttl_ms)
        self.honest_leases = SqliteLeases(":memory:", clock=self.clock)
        self._lying = LyingLeases(predecessor=self.chance.choice(("none", "lapsed")))
        self.broker = Broker(self)

    # -- servers -------------------------------------------------------------------------------------------------------

    @property
    def lease_server(self) -> LeaseProvider:
        return self._lying if self.faults.lies and not self.fate.quiet else self.honest_leases

    def renew(self, leases: Sequence[Lease]) -> Sequence[Renewed | Gone]:
        return self.lease_server.renewer(timeout_ms=1).renew(leases)

    async def flush(self) -> None:
        """The lease server has forgotten everything."""
        await self.honest_leases.forget()
        self.fate.tell(f"{self.clock.monotonic_ms()} leases flushed")

    def outside_later(self, delay_s: float, does: Callable[..., object], *given: Any) -> None:
        """A callback that no process' end can prevent."""
        if delay_s:
            self.loop.call_later(delay_s, does, *given, context=_OUTSIDE)
        else:
            self.loop.call_soon(does, *given, context=_OUTSIDE)

    # -- processes -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A process of every role is at work."""
        for role in self.roles:
            self._start(role)

    def _start(self, role: Role) -> None:
        self._started += 1
        self.processes.append(VirtualProcess(self, role, self._started))

    def bury(self, process: VirtualProcess, why: str) -> None:
        """A process died; another one takes its place in a while."""
        self.processes.remove(process)
        if why != "drained":
            self.deaths += 1
        self.fate.tell(f"{self.clock.monotonic_ms()} {process.name} dies {why}")
        self.outside_later(self.chance.uniform(*RESTART_MS) / 1_000, self._start, process.role)

    def freeze_ms(self) -> int:
        """How long a process stands still: a moment, or long enough to be taken for dead."""
        ttl_ms = self.settings.lease_ttl_ms
        return self.chance.choice((self.chance.randint(20, ttl_ms), self.chance.randint(ttl_ms, 3 * ttl_ms)))

    async def work(self, what: str) -> None:
        """User code takes its time: mostly little, sometimes longer than a lease lives."""
        draw = self.chance.random()
        most_ms = self.settings.lease_ttl_ms * 2 if draw > 0.97 and not self.fate.quiet else 200 if draw > 0.6 else 5
        await self.clock.sleep_ms(self.chance.randint(0, most_ms))

    # -- what is looked at ---------------------------------------------------------------------------------------------

    def asked(self, process: VirtualProcess, request: ModelRequest, model: str) -> None:
        """A request leaves for the model; each was admitted by a commit of its own."""
        self.requests[request.request_id] += 1
        if self.requests[request.request_id] > 1:
            self.complain(f"{process.name} sends request {request.request_id} again")
        self.witness.may_ask(request, model)

    def begins(self, context: ToolContext, value: object, *, amount: int, idempotent: bool) -> object:
        """An effect begins outside, and has happened; returns `value`. `amount`: what the tool was called with."""
        self.witness.may_begin(context)
        for rule in self.rules:
            rule(context, amount)
        return self.effects.start(context, value, amount=amount, idempotent=idempotent)

    def audit(self) -> None:
        """What holds at any moment, of all runs: what has work is swept, and nothing that waits has anything set aside."""
        name = self.dialect.name
        for query, what in (
            (UNSWEPT[name], "has work, and no sweep finds it"),
            (HELD[name], "is not at work and holds a reservation"),
            (ORPHANS[name], "was delegated, and nobody waits for it"),
            (UNANSWERED, "waits for other delegated runs than go on"),
        ):
            for (run_id,) in self.dialect.rows(query):
                self.complain(f"{run_id} {what}")

    def ended(self, process: VirtualProcess, bell: Bell, report: StepReport) -> None:
        self.ends[report.end] += 1
        if report.end in ("crashed", "unreadable", "unknown_run", "nobody", "other_build"):
            self.complain(f"{process.name} step of {bell.run_id} ended as {report.end}: {report.error!r}")

    def complain(self, what: str) -> None:
        if len(self.complaints) < MOST_COMPLAINTS:
            self.complaints.append(f"{self.clock.monotonic_ms()} {what}")

    def close(self) -> None:
        """Every process is dead and nothing is left of them."""
        for process in self.processes:
            process.is_alive = False
        self.loop.close()
