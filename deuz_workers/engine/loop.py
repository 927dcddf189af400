"""The loop: one executor's work on one run under one lease, carrying out what `decide` orders until the turn is over.

Streaming, embedded and Celery are this loop with other hands.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal

from deuz_workers.core.candidate import ask_for_output
from deuz_workers.core.change import Bell, Head, ItemRow, NoteRow
from deuz_workers.core.decide import REDUCE, decide
from deuz_workers.core.effects import (
    AnswerTurn,
    AskForOutput,
    AwaitAnswers,
    CallModel,
    CheckOutput,
    ConductSwarm,
    Effect,
    Finish,
    GatherInputs,
    Nothing,
    PlannedCall,
    Reconcile,
    RunCalls,
)
from deuz_workers.core.events import (
    CallExecuted,
    CallFailed,
    CallStarted,
    Event,
    Finished,
    ModelCallAbandoned,
    NotesFolded,
    OutputAsked,
    Suspended,
    TurnAnswered,
    Waited,
)
from deuz_workers.core.evolve import evolve_all
from deuz_workers.core.failure import describe, text_of
from deuz_workers.core.render import render
from deuz_workers.core.run import Run
from deuz_workers.engine.answer import judge
from deuz_workers.engine.binding import Bindings
from deuz_workers.engine.calls import Calls
from deuz_workers.engine.committer import BudgetRefused, CancelFirst, Committer, StepOver
from deuz_workers.engine.conduct import conduct_swarm
from deuz_workers.engine.contexts import Contexts, run_context
from deuz_workers.engine.gate import gate, limit_ms, predicates_ms
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.guards import Guards
from deuz_workers.engine.hold import Hold
from deuz_workers.engine.hooked import asked_before_call, guarded_ending, guarded_turn, prepared_call
from deuz_workers.engine.hooks import Hooks
from deuz_workers.engine.inputs import fold_notes, given_inputs, reducer_inputs
from deuz_workers.engine.model_call import ModelCall
from deuz_workers.engine.stop import Stop
from deuz_workers.engine.taken_answers import expired_answers, next_expiry_ms, take_answers
from deuz_workers.engine.user_code import Broken, LimitPassed, outcome_of, stored_form
from deuz_workers.engine.weight import HEAVY_SIZE
from deuz_workers.errors import CodecError, DeadlinePassed, ExecutionPolicyError, HookError, StoreUnavailableError, as_record
from deuz_workers.ports.context import RunContext
from deuz_workers.ports.definition import NO_TOOLS, AgentDefinition, ReducerContext, ReducerDefinition
from deuz_workers.ports.guard import StepPlan
from deuz_workers.ports.store import Loaded

log = logging.getLogger(__name__)

LoopEnd = Literal["turn", "waiting", "suspended", "ended", "parked", "drained"]
AGAIN_MS = 200
"""Between two looks at a store that is away."""
MARGIN_MS = 60_000
"""A lease is vouched for this much longer than the call it is held for, so that the outcome can be saved."""


@dataclass(slots=True)
class Loop:
    """Advances one run. `stop` tells from outside that the lease is lost, the run cancelled or the worker draining."""

    gear: Gear
    head: Head
    definition: AgentDefinition | ReducerDefinition | None
    """None for a swarm, and for a run that has to end where nobody knows its agent."""
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

    _context: RunContext | None = None
    _folded: tuple[Run, tuple[Event, ...], Run] | None = None

    @property
    def run(self) -> Run:
        """The run with what is carried."""
        known = self._folded
        if known is None or known[0] is not self.committer.run or known[1] is not self.carried:
            folded = evolve_all(self.committer.run, self.carried)
            self._folded = known = (self.committer.run, self.carried, folded)
        return known[2]

    async def advance(self, turns: int) -> LoopEnd:
        """Go on until `turns` turns are answered, or nothing more can be done now.

        Raises `StepOver` when the run is somebody else's, and store errors.
        """
        if await self._close_expired():
            return "suspended"
        await self._take_in()
        self._judge_old_receipts()
        while True:
            if self.stop.is_lost:
                raise StepOver("the lease is gone")
            try:
                if self.committer.sees_cancel or self.stop.is_cancelled:
                    await self._fold_notes()
                run = self.run
                effect = self._ending_by_time(run) or decide(run)
                if self.definition is None and not isinstance(effect, Finish | Nothing | ConductSwarm):
                    raise StepOver("nobody here knows the agent, and the run does not end")
                if run.due_in_ms and not isinstance(effect, Finish | Nothing):
                    await self._commit()
                    return "waiting"
                if self._lacks_slot(effect) and not await self._take_slot():
                    return "waiting"  # with nothing saved: whoever has a slot reads notes and answers again
                try:
                    end = await self._carry_out(effect, run)
                except HookError as error:
                    await self._commit(Finished("failed", error=as_record(error)))
                    return "ended"
            except CancelFirst:
                await self._fold_notes()
                continue
            if end == "turn":
                turns -= 1
                if turns > 0 and not self.stop.is_draining:
                    continue
            if end is not None:
                return end

    async def _carry_out(self, effect: Effect, run: Run) -> LoopEnd | None:
        match effect:
            case GatherInputs():
                assert self.head.swarm_rid is not None
                assert self.head.task_id is not None
                self._carry(await given_inputs(self.gear.store, self.head.swarm_rid, self.head.task_id))
                return None
            case CallModel():
                return await self._call_model(effect, run)
            case AskForOutput():
                await self._commit(OutputAsked(ask_for_output()))
                return "turn"
            case CheckOutput(text):
                return await self._check_output(text)
            case RunCalls():
                return await self._run_calls(effect, run)
            case AnswerTurn():
                await self._commit(*await self._turn_end(run))
                return "ended" if self.committer.run.envelope.is_final else "turn"
            case Reconcile(unknown):
                return await self._park(len(unknown))
            case AwaitAnswers():
                if self.carried or (self.head.due_in_ms is not None and self.head.due_in_ms <= 0):
                    await self._commit(Waited(next_expiry_ms(self.items)))
                return "suspended"
            case ConductSwarm():
                return await self._conduct(run)
            case Finish(ending):
                await self._commit(*await self._run_end(ending, run))
                return "ended"
            case Nothing():
                await self._commit()
                return "ended"

    async def _take_in(self) -> None:
        """Carry the inputs that were loaded, and the answers of a suspension whose every item was answered."""
        envelope = self.committer.run.envelope
        if not envelope.is_final and self.head.wake_seq > envelope.seen_seq:
            self._carry(fold_notes(self.notes, self.head.wake_seq))
        if envelope.status == "suspended" and self.items and all(item.answer is not None for item in self.items):
            tools = self.definition.tools if isinstance(self.definition, AgentDefinition) else NO_TOOLS
            given = (self.items, self.run, tools, self.gear.signer)
            heavy = sum(len(item.answer or "") for item in self.items) > HEAVY_SIZE
            self._carry(*(await asyncio.to_thread(take_answers, *given) if heavy else take_answers(*given)))

    async def _close_expired(self) -> bool:
        """Answer the items whose time has passed, as anybody would from outside; True: the run goes on from there."""
        envelope = self.committer.run.envelope
        answers = expired_answers(self.items) if envelope.status == "suspended" else ()
        if not answers or self.head.is_to_end:
            return False
        answered = await self.gear.store.answer_items(envelope.scope, envelope.run_id, answers)
        log.info("items_expired run=%s items=%d", envelope.run_id, len(answers))
        if answered is None or not answered.stored:
            raise StepOver("its expired items were answered meanwhile")
        if answered.swarm_rid is not None:
            self.bells.extend(await self.gear.store.fill_slots(answered.swarm_rid))
        if answered.bell is not None:
            self.bells.append(answered.bell)
        if answered.open_items:
            with contextlib.suppress(CancelFirst):  # whoever cancelled has rung for the run
                await self._commit(Waited(next_expiry_ms(self.items)))
        return True

    def _judge_old_receipts(self) -> None:
        """A receipt that records whether its tool is idempotent decides alone; one without the field is judged by the tool
        that is registered now (IDM-004)."""
        if not isinstance(self.definition, AgentDefinition):
            return
        run, tools = self.committer.run, self.definition.tools
        unmarked = [receipt for receipt in run.interrupted if receipt.idempotent is None and receipt.tool in tools]
        allowed = frozenset(receipt.call_id for receipt in unmarked if tools[receipt.tool].replay == "idempotent")
        if allowed:
            self.committer.run = replace(run, retry_call_ids=run.retry_call_ids | allowed)

    def _ending_by_time(self, run: Run) -> Finish | None:
        """A run ends when its time is over; a swarm ends when its tasks have, which carry its times themselves."""
        envelope = run.envelope
        if envelope.is_final or envelope.cancelled or envelope.run_kind == "swarm":
            return None
        if self.head.deadline_in_ms is not None and self.head.deadline_in_ms <= self.stop.elapsed_ms:
            error = ExecutionPolicyError("the deadline of the run has passed", code="deadline_exceeded")
            return Finish(Finished("failed", error=as_record(error)))
        late = self.head.start_before_in_ms
        if envelope.status == "queued" and late is not None and late <= self.stop.elapsed_ms:
            return Finish(Finished("stopped", "start-before-passed"))
        return None

    async def _call_model(self, effect: CallModel, run: Run) -> LoopEnd | None:
        assert isinstance(self.definition, AgentDefinition)
        self._check_may_start()
        plan = StepPlan()
        if asked := asked_before_call(self.definition):
            prepared = await prepared_call(await self._guards(self.definition, asked), self.run, effect.step)
            self._carry(*prepared.events)
            if prepared.ending is not None:
                await self._commit(prepared.ending)
                return "ended"
            plan, run = prepared.plan, self.run
        call = ModelCall(self.gear, self.definition, run, effect, self.bindings, plan)
        try:
            await self._commit(*call.opening())
        except BudgetRefused as refused:
            await self._commit(call.refused(refused.refusal))
            return "ended"
        self.hold.extend(call.limits.model_timeout_ms + MARGIN_MS, "model")
        event = await call.send(self.stop, self.committer.run.envelope.revision, self.head.deadline_in_ms)
        if event is not None:
            self._carry(event)
            return None
        if self.stop.is_lost:
            raise StepOver("the lease is gone")
        self._carry(ModelCallAbandoned())
        if self.stop.is_cancelled:
            return None
        await self._commit()
        return "drained"

    async def _check_output(self, text: str) -> LoopEnd | None:
        assert isinstance(self.definition, AgentDefinition)
        assert self.definition.output is not None
        self._check_may_start()
        hooks = self._hooks()
        await self._about_to_ask(hooks.limit_ms, "output")
        judged = await judge(self.definition.output, text, hooks)
        events = await self._run_end(judged, self.run) if isinstance(judged, Finished) else (judged,)
        await self._commit(*events)
        return "ended" if self.committer.run.envelope.is_final else "turn"

    async def _run_calls(self, effect: RunCalls, run: Run) -> LoopEnd | None:
        self._check_may_start()
        if isinstance(self.definition, ReducerDefinition):
            await self._reduce(self.definition)
            return None
        assert self.definition is not None
        asking_ms = predicates_ms(effect, self.definition, run)
        if asking_ms:
            await self._about_to_ask(asking_ms, "approvals")
        given = await self._run_context(self.definition)
        guards = Guards(self.definition, self._hooks(), given.runtime)
        contexts = Contexts(self.head, self.definition, given, self._hooks(), self.stop, effect.step, guards)
        gated = await gate(effect, self.definition, run, contexts)
        if self._ending_by_time(self.run):
            return None  # its time passed while user code was asked, so nothing begins
        if gated.items:
            await self._commit(*gated.fired, Suspended(gated.items, gated.item_call_ids))
            return "suspended"
        if not gated.running:
            self._carry(*gated.opening)
            return None
        if self.carried or gated.opening:
            await self._commit(*gated.opening)
        self.hold.extend(
            max(self._longest_ms(planned) for planned in gated.running) + MARGIN_MS,
            ",".join(planned.call.name for planned in gated.running),
        )
        calls = Calls(self.gear, self.definition, self.committer, self.stop, contexts)
        self._carry(*await calls.run(gated.running))
        return None

    async def _guards(self, agent: AgentDefinition, hooks: int) -> Guards:
        """Of the agent, of which up to `hooks` functions are asked next."""
        given = await self._run_context(agent)
        asked = self._hooks()
        await self._about_to_ask(asked.limit_ms * hooks, "hooks")
        return Guards(agent, asked, given.runtime)

    async def _turn_end(self, run: Run) -> tuple[Event, ...]:
        agent, answered = self.definition, answered_turn(run)
        if not isinstance(agent, AgentDefinition) or not agent.guardrails.on_tool_result:
            return (answered,)
        asked = len(agent.guardrails.on_tool_result) * len(run.open_calls)
        return await guarded_turn(await self._guards(agent, asked), run, answered)

    async def _run_end(self, ending: Finished, run: Run) -> tuple[Event, ...]:
        agent = self.definition
        if ending.status != "completed" or not isinstance(agent, AgentDefinition) or not agent.guardrails.on_output:
            return (ending,)
        return await guarded_ending(await self._guards(agent, len(agent.guardrails.on_output) + 1), run, ending)

    async def _about_to_ask(self, limit_ms: int, label: str) -> None:
        """User code runs next, for up to `limit_ms`: what was paid for is saved before.

        Nothing was, while the run has not begun; and its inputs are only part of it with the commit that begins it.
        """
        if self.carried and self.run.envelope.status != "queued":
            await self._commit()
        self.hold.extend(limit_ms + MARGIN_MS, label)

    def _hooks(self) -> Hooks:
        return Hooks(self.gear.threads, self.stop, self.committer.run.envelope.limits.tool_timeout_ms)

    async def _run_context(self, agent: AgentDefinition) -> RunContext:
        """The application's values for tools and hooks of the run, made once for every executor."""
        if self._context is None:
            hooks = self._hooks()
            if agent.make_context is not None:
                await self._about_to_ask(hooks.limit_ms, "run context")
            self._context = await run_context(self.gear, self.head, agent, hooks)
        return self._context

    def _longest_ms(self, planned: PlannedCall) -> int:
        """Of what is called, the tool and what makes its text."""
        tool = self.definition.tools.get(planned.call.name) if isinstance(self.definition, AgentDefinition) else None
        if tool is None:
            return self.committer.run.envelope.limits.tool_timeout_ms
        calls = (planned.action != "project") + tool.has_projection
        return limit_ms(tool, self.committer.run) * calls

    async def _reduce(self, reducer: ReducerDefinition) -> None:
        """Run the function of a reducer task; its outcome is saved with the ending of the task."""
        assert self.head.swarm_rid is not None
        assert self.head.task_id is not None
        results = await reducer_inputs(self.gear.store, self.head.swarm_rid, self.head.task_id)
        await self._commit(CallStarted(REDUCE, reducer.name, reducer.replay_safe))
        self.hold.extend(reducer.timeout_ms + MARGIN_MS, reducer.name)
        signal = self.stop.signal()
        context = ReducerContext(self.head.scope, self.head.run_id, self.head.task_id, signal)

        async def reduce() -> object:
            if inspect.iscoroutinefunction(reducer.reduce):
                return await reducer.reduce(results, context)
            value = await self.gear.threads.call(reducer.name, lambda: reducer.reduce(results, context))
            return await value if inspect.isawaitable(value) else value

        try:
            value = await outcome_of(reduce, reducer.timeout_ms)
            self._carry(CallExecuted(REDUCE, await stored_form(value, reducer.max_result_bytes)))
        except LimitPassed:
            signal.set(DeadlinePassed(f"the call took longer than {reducer.timeout_ms} ms"))
            self._carry(CallFailed(REDUCE, f"{reducer.name} took longer than {reducer.timeout_ms} ms"))
        except CodecError as error:
            self._carry(CallFailed(REDUCE, f"{reducer.name} returned what cannot be stored: {text_of(error)}"))
        except Broken as broken:
            self._carry(CallFailed(REDUCE, describe(broken.error)))
        finally:
            self.stop.forget(signal)

    async def _park(self, unknown: int) -> LoopEnd:
        """Take the run out of the schedule; the stored record stays as it is (REC-001, REC-014).

        Notes that did not say what became of every effect are saved as heard first, else they would wake the run for ever.
        """
        await self._commit()
        envelope = self.committer.run.envelope
        if not await self.gear.store.park(envelope.rid, envelope.revision, "tool-reconciliation-required"):
            raise StepOver("an input arrived before the run was parked")
        log.warning("run_parked run=%s unknown_effects=%d", envelope.run_id, unknown)
        return "parked"

    async def _conduct(self, run: Run) -> LoopEnd:
        conducted = await conduct_swarm(self.gear, run)
        self.bells.extend(conducted.bells)
        await self._commit(Waited() if conducted.ending is None else conducted.ending)
        return "waiting" if conducted.ending is None else "ended"

    def _lacks_slot(self, effect: Effect) -> bool:
        """The run names a concurrency key, holds no slot of it, and would go on running."""
        runs_on = isinstance(effect, GatherInputs | CallModel | RunCalls | AnswerTurn)
        return self.head.slot_key is not None and self.head.slot != "held" and runs_on

    async def _take_slot(self) -> bool:
        """False: the run waits for one, and is rung when it has it."""
        store, key = self.gear.store, self.head.slot_key
        assert key is not None
        envelope = self.committer.run.envelope
        slots = self.gear.settings.concurrency_limits.get(key, 1)
        slot = await store.take_slot(envelope.rid, envelope.revision, slots)
        if slot is None:
            raise StepOver("the run was written or parked by somebody else")
        if slot == "waiting":  # perhaps behind others whose ringer died, beside a slot that is free
            self.bells.extend(await store.fill_key(envelope.scope, key))
            return False
        self.head = replace(self.head, slot=slot)
        return True

    def _check_may_start(self) -> None:
        """Nothing new begins while nobody confirms the lease (decision 5)."""
        if not self.hold.may_start:
            raise StepOver("the lease was not confirmed for its whole time")

    async def _fold_notes(self) -> None:
        """Read the inbox and carry what it says, behind older notes and ahead of everything else that is carried."""
        self.stop.cancel_noticed()
        envelope = self.run.envelope
        loaded = await self._load_again()
        if loaded is None:
            raise StepOver("the run is gone")
        self.head = loaded.head
        fresh = tuple(note for note in loaded.notes if note.seq > envelope.seen_seq)
        if loaded.head.wake_seq > envelope.seen_seq:
            # Ahead of older ones, these would set back what the run has seen, and the cancel would be unseen for ever.
            older = tuple(takewhile(lambda event: isinstance(event, NotesFolded), self.carried))
            self.carried = (*older, fold_notes(fresh, loaded.head.wake_seq), *self.carried[len(older) :])

    async def _load_again(self) -> Loaded | None:
        """The run with its newest notes. In the middle of a step this waits for a store that is away as long as a commit does:
        given up here, what the step began would be found by the next one as if this process had died."""
        gear, envelope = self.gear, self.run.envelope
        until_ms = gear.clock.monotonic_ms() + gear.settings.outcome_patience_ms
        while True:
            try:
                return await gear.store.load(envelope.scope, envelope.run_id, gear.known(self.committer.run))
            except StoreUnavailableError:
                if not self.committer.stored.is_mid_step or gear.clock.monotonic_ms() >= until_ms:
                    raise
            if self.stop.is_lost:
                raise StepOver("the lease is gone")
            await gear.clock.sleep_ms(AGAIN_MS)

    def _carry(self, *events: Event) -> None:
        self.carried = (*self.carried, *events)

    async def _commit(self, *events: Event) -> None:
        """Save what is carried and `events`. When the commit is refused, what was carried is still carried."""
        if self.carried or events:
            await self.committer.save(evolve_all(self.run, events))
            self.carried = ()


def answered_turn(run: Run) -> TurnAnswered:
    """The event that ends a turn: plain renderings of the raw values that no projection replaced."""
    receipts = (run.receipts[call.call_id] for call in run.open_calls)
    return TurnAnswered(
        {receipt.call_id: render(receipt.value) for receipt in receipts if receipt.error is None and receipt.text is None}
    )
