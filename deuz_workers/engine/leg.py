"""A leg: one executor's work on one run under one lease, from its claim to its release.

What is known of the run, what has happened and is not saved yet, and the one way to save it. The files beside this one carry
out what `decide` orders as functions over it, see `engine.loop`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from deuz_workers.core.change import Bell, Head, ItemRow, NoteRow
from deuz_workers.core.effects import Finish
from deuz_workers.core.events import Event, Finished
from deuz_workers.core.evolve import evolve_all
from deuz_workers.core.memory_events import ExtractionAdmitted
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.remembering import not_admitted
from deuz_workers.core.run import Run
from deuz_workers.core.task_request import TaskRequest
from deuz_workers.engine.binding import Bindings
from deuz_workers.engine.committer import BudgetRefused, Committer, ReservationContended, StepOver
from deuz_workers.engine.contexts import run_context
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.guards import Guards
from deuz_workers.engine.hold import Hold
from deuz_workers.engine.hooks import Hooks
from deuz_workers.engine.spawning import end_task
from deuz_workers.engine.stop import Stop
from deuz_workers.errors import ExecutionPolicyError, SwarmTaskTimeout, as_record
from deuz_workers.ports.context import RunContext
from deuz_workers.ports.definition import AgentDefinition, ReducerDefinition

LoopEnd = Literal["turn", "waiting", "held_back", "suspended", "ended", "parked", "drained"]
MARGIN_MS = 60_000
"""A lease is vouched for this much longer than the call it is held for, so that the outcome can be saved."""


@dataclass(slots=True)
class Leg:
    """`stop` tells from outside that the lease is lost, the run cancelled or the worker draining."""

    gear: Gear
    head: Head
    own: AgentDefinition | ReducerDefinition | None
    """What the run began with. None for a swarm, and for a run that has to end where nobody knows its agent."""
    committer: Committer
    bindings: Bindings
    stop: Stop
    hold: Hold
    notes: tuple[NoteRow, ...]
    items: tuple[ItemRow, ...]
    carried: tuple[Event, ...] = ()
    """Happened, and saved with whatever is committed next."""
    bells: list[Bell] = field(default_factory=lambda: list[Bell]())
    """Runs that the swarm's own work made due."""

    requests: tuple[TaskRequest, ...] = ()
    """Tasks that the reducer asked for, which exist once it is completed."""

    _context: RunContext | None = None
    _folded: tuple[Run, tuple[Event, ...], Run] | None = None

    @property
    def definition(self) -> AgentDefinition | ReducerDefinition | None:
        """What the run is executed as now: as its own agent, or as the one that it was handed to."""
        own = self.own
        if not isinstance(own, AgentDefinition) or not own.team:
            return own
        return self.bindings.driven(own, self.run.driver)

    @property
    def policy(self) -> ExecutionPolicy:
        """What the run may do now: its own policy, and that of the agent that has it."""
        definition, policy = self.definition, self.run.envelope.policy
        return policy.narrowed(definition.policy) if isinstance(definition, AgentDefinition) else policy

    @property
    def run(self) -> Run:
        """The run with what is carried."""
        known = self._folded
        if known is None or known[0] is not self.committer.run or known[1] is not self.carried:
            folded = evolve_all(self.committer.run, self.carried)
            self._folded = known = (self.committer.run, self.carried, folded)
        return known[2]

    def carry(self, *events: Event) -> None:
        self.carried = (*self.carried, *events)

    async def commit(self, *events: Event) -> None:
        """Save what is carried and `events`. When the commit is refused, what was carried is still carried.

        A task that ends creates with it those that follow from that (`engine.spawning`). An extraction that no budget admits
        has failed; what it was to follow is saved all the same.
        """
        if not (self.carried or events):
            return
        try:
            await self._save(events)
        except (BudgetRefused, ReservationContended) as refused:
            if not events or not isinstance(events[-1], ExtractionAdmitted):
                raise
            code = refused.refusal.reason if isinstance(refused, BudgetRefused) else "ledger_contended"
            run = evolve_all(self.run, events[:-1])
            await self._save((*events[:-1], not_admitted(run, code)))
        self.carried = ()

    async def _save(self, events: tuple[Event, ...]) -> None:
        run = evolve_all(self.run, events)
        begins_as_open = not self.committer.run.envelope.is_final
        if run.envelope.is_final and begins_as_open and run.envelope.task_id is not None:
            await end_task(self, events)
        else:
            await self.committer.save(run)

    async def about_to_ask(self, limit_ms: int, label: str) -> None:
        """User code runs next, for up to `limit_ms`: what was paid for is saved before.

        Nothing was, while the run has not begun; and its inputs are only part of it with the commit that begins it.
        """
        if self.carried and self.run.envelope.status != "queued":
            await self.commit()
        self.hold_for(limit_ms, label)

    def hold_for(self, limit_ms: int, label: str) -> None:
        """Vouch for the lease while something runs that may take `limit_ms`, and its outcome is saved."""
        self.hold.extend(limit_ms + MARGIN_MS, label)

    async def check_may_start(self) -> None:
        """Nothing new begins while nobody confirms the lease (decision 5). Raises `StepOver`.

        The reply of a model call that was under way is offered before, as every outcome of what had begun.
        """
        if self.hold.may_start:
            return
        if self.committer.stored.is_mid_step:
            await self.commit()
        raise StepOver("the lease was not confirmed for its whole time")

    def ending_by_time(self, run: Run) -> Finish | None:
        """A run ends when its time is over; a swarm ends when its tasks have, which carry its times themselves."""
        envelope = run.envelope
        if envelope.is_final or envelope.cancelled or envelope.run_kind == "swarm":
            return None
        at_ms = envelope.policy.deadline_ms
        if self.head.until_in_ms is not None and self.head.until_in_ms <= self.stop.elapsed_ms:
            timeout = SwarmTaskTimeout(f"task {envelope.task_id!r} had not ended when the time of its attempt was over")
            return Finish(Finished("failed", error=as_record(timeout)))
        late = self.head.deadline_in_ms is not None and self.head.deadline_in_ms <= self.stop.elapsed_ms
        if late or (at_ms is not None and at_ms <= self.gear.controls.store_ms(self.gear.clock)):
            error = ExecutionPolicyError("the deadline of the run has passed", code="deadline_exceeded")
            return Finish(Finished("failed", error=as_record(error)))
        before_in_ms = self.head.start_before_in_ms
        if envelope.status == "queued" and before_in_ms is not None and before_in_ms <= self.stop.elapsed_ms:
            return Finish(Finished("stopped", "start-before-passed"))
        return None

    def sooner_ms(self, waits_ms: int | None) -> int | None:
        """`waits_ms`, or the time that the policy leaves the run by the clock of the store, if that is less."""
        at_ms = self.run.envelope.policy.deadline_ms
        left_ms = None if at_ms is None else max(1, at_ms - self.gear.controls.store_ms(self.gear.clock))
        return min((ms for ms in (waits_ms, left_ms) if ms is not None), default=None)

    def hooks(self) -> Hooks:
        return Hooks(self.gear.threads, self.stop, self.committer.run.envelope.limits.tool_timeout_ms)

    async def guards(self, agent: AgentDefinition, hooks: int) -> Guards:
        """Of the agent, of which up to `hooks` functions are asked next."""
        given = await self.run_context(agent)
        asked = self.hooks()
        await self.about_to_ask(asked.limit_ms * hooks, "hooks")
        return Guards(agent, asked, given.runtime)

    async def run_context(self, agent: AgentDefinition) -> RunContext:
        """The application's values for tools and hooks of the run, made once for every executor."""
        if self._context is None:
            hooks = self.hooks()
            if agent.make_context is not None:
                await self.about_to_ask(hooks.limit_ms, "run context")
            self._context = await run_context(self.gear, self.head, agent, hooks)
        return self._context
