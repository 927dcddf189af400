"""The extraction after the end of a completed run, under the lease that the run ended with.

Admitted by the terminal commit, or by one of its own where somebody else began it. The plan is saved before the memory store is
written to, deletions are saved ahead of writes, and the outcome once. Whoever takes over judges from the memory store what was
done (`core.run_memory.judge`), and begins anew only where nothing was.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from deuz_workers.core.change import Applied
from deuz_workers.core.events import Event, Finished, ModelCallFailed
from deuz_workers.core.evolve import evolve_all
from deuz_workers.core.extraction_plan import (
    ASK_CHANGES,
    ASK_FACTS,
    NOTHING_PLANNED,
    Author,
    ExtractionPlan,
    changes_text,
    conversation_text,
    read_facts,
    read_plan,
)
from deuz_workers.core.memory import MemoryQuery
from deuz_workers.core.memory_events import ExtractionAdmitted, ExtractionEnded, ExtractionPlanned, ExtractionProgressed
from deuz_workers.core.messages import Message
from deuz_workers.core.rate import RateName
from deuz_workers.core.run import read_run, to_change
from deuz_workers.core.run_memory import Extraction, RunMemory, ended, judge, told
from deuz_workers.core.transient import transient_kind
from deuz_workers.core.usage import Usage
from deuz_workers.engine.asking import Ended
from deuz_workers.engine.committer import CancelFirst, StepOver
from deuz_workers.engine.embedding import EmbedderFailed, embed
from deuz_workers.engine.leg import Leg, LoopEnd
from deuz_workers.engine.memory_llm import Questions, extraction_bound, llm_of, memory_call
from deuz_workers.engine.projecting import read_transcript
from deuz_workers.engine.recalling import SEARCH_LIMIT_MS, found_in, store_of, unaccounted
from deuz_workers.engine.reply_check import asked_wait_ms, failure_record
from deuz_workers.engine.restraint import HeldBack, draw_for_model, give_back, hold_back, limited_by, settle_rates
from deuz_workers.engine.user_code import Broken, LimitPassed, outcome_of
from deuz_workers.errors import (
    ConfigurationError,
    ExecutionPolicyError,
    MemoryReplyError,
    ModelError,
    as_record,
)
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.memory import Memory, MemoryStore

MOST_ATTEMPTS = 3
"""Reservations of one extraction before it has failed; somebody may ask for more (`reconcile_agent_run`)."""
QUESTIONS = 2
"""Calls of the memory LLM under one reservation, as rates count them."""
KNOWN_MEMORIES = 20
"""That the memory LLM is shown beside new facts."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class MemoryStoreFailed(Exception):
    """The memory store raised, or took too long."""


async def with_extraction(leg: Leg, *events: Event) -> tuple[Event, ...]:
    """`events`, and behind a completed end the admission of what follows it; under a brake or a rate that is left to later."""
    memory = leg.run.envelope.memory
    ending = events[-1] if events else None
    if memory is None or not memory.extracts or not isinstance(ending, Finished) or ending.status != "completed":
        return events
    agent = leg.own
    if not isinstance(agent, AgentDefinition) or agent.memory is None or leg.stop.is_draining:
        return events
    try:
        if await limited_by(leg, llm_of(agent, agent.memory).name):
            return events
        return (*events, _admission(leg, agent, agent.memory, 1))
    except (HeldBack, ExecutionPolicyError):
        return events


def _admission(leg: Leg, agent: AgentDefinition, memory: Memory, attempt: int) -> ExtractionAdmitted:
    """Raises `ExecutionPolicyError`."""
    model = llm_of(agent, memory)
    most = extraction_bound(leg.run.history.size_bytes)
    return ExtractionAdmitted(memory_call(leg, agent, memory, model, _request_id(leg, attempt), most))


def _request_id(leg: Leg, attempt: int) -> str:
    """Of no other call of the run."""
    return f"{leg.run.envelope.rid.hex}:m{leg.run.envelope.revision}.{attempt}"


@dataclass(slots=True)
class Extracting:
    leg: Leg
    agent: AgentDefinition
    memory: Memory
    store: MemoryStore
    rates: tuple[RateName, ...] = ()
    """That its questions were drawn from."""
    tokens: int = 0
    """So many of them."""
    is_answered: bool = False
    """One of its questions was, which somebody is paid for."""

    @property
    def state(self) -> RunMemory:
        state = self.leg.run.envelope.memory
        assert state is not None
        return state

    @property
    def extraction(self) -> Extraction:
        assert self.state.extraction is not None
        return self.state.extraction

    async def go_on(self) -> LoopEnd:
        """Until the outcome is saved, or this process has to leave it to another one."""
        leg = self.leg
        if leg.head.phase == "extracting":  # begun by somebody who died, or to be looked at again
            present = await self._ask(self._count)
            if (outcome := judge(self.extraction, present)) is not None:
                return await self._end(outcome)
        if leg.committer.run.envelope.checkpoint.open_call is None or leg.head.phase == "extracting":
            if leg.stop.is_draining:
                return "drained"
            if self.extraction.attempts >= MOST_ATTEMPTS:
                text = f"{MOST_ATTEMPTS} attempts were begun and none of them came to an end"
                return await self.fail({"name": "MemoryExtractionError", "code": "memory_attempts", "message": text})
            await self._admit()
            if leg.run.envelope.phase != "extracting":
                return "ended"
        try:
            plan, used, model = await self._plan()
        except ModelError as error:
            wait_ms, kind = asked_wait_ms(error), transient_kind(error)
            billed = "unknown" if self.is_answered else error.billed
            failed = ModelCallFailed(failure_record(error), billed, kind, None, asked_wait_ms=wait_ms)
            await settle_rates(leg, self.rates, self.tokens, failed)
            raise
        warned = () if used is not None else (unaccounted(model),)
        await settle_rates(leg, self.rates, self.tokens, ExtractionPlanned(plan.planned, used, model))
        try:
            await leg.commit(*warned, ExtractionPlanned(plan.planned, used, model))
        except (StepOver, CancelFirst):
            raise
        except Exception as error:  # noqa: BLE001 - a store of the user's may raise anything
            await self._unsaved(error)
            return "ended"
        await self._apply(plan)
        if self.memory.sweep == "on-extract":
            await self._sweep()
        return await self._end(ended(self.extraction, plan.planned))

    async def _admit(self) -> None:
        """Saved, and drawn from the rates of the memory LLM, before it is asked. Raises `HeldBack`, `ExecutionPolicyError`."""
        leg = self.leg
        admitted = _admission(leg, self.agent, self.memory, self.extraction.attempts + 1)
        model = llm_of(self.agent, self.memory).name
        self.tokens = admitted.call.tokens
        self.rates = await draw_for_model(leg, model, self.tokens, QUESTIONS)
        await leg.commit(admitted)
        if leg.run.envelope.phase != "extracting":  # no budget had room
            await give_back(leg, self.rates, self.tokens)

    async def _plan(self) -> tuple[ExtractionPlan, Usage | None, str]:
        """Raises `Ended`, `ModelError`, `MemoryReplyError`, `MemoryStoreFailed`."""
        leg = self.leg
        call = leg.run.envelope.checkpoint.open_call
        assert call is not None
        questions = Questions(leg, llm_of(self.agent, self.memory), call.request_id)
        facts = read_facts(await questions.ask(ASK_FACTS, conversation_text(await self._told())))
        self.is_answered = True
        if not facts:
            return NOTHING_PLANNED, questions.used, questions.model.name
        text = "\n".join(facts)
        [vector] = await self._vectors(questions, [text])
        embedder = self.memory.seams.embedder
        query = MemoryQuery(text, KNOWN_MEMORIES, vector, None if embedder is None else embedder.name, self._now_ms())
        known = await self._ask(lambda: found_in(self.store, leg.head.scope, self.state.scope, query))
        answer = await questions.ask(ASK_CHANGES, changes_text(known, facts))
        new_id = self.memory.seams.ids or leg.gear.ids.token
        author = Author(self.state.scope, leg.head.run_id, self.extraction.operation_id, self._now_ms(), new_id)
        plan = read_plan(answer, known, author)
        vectors = await self._vectors(questions, [record.text for record in plan.writes])
        if embedder is not None:
            by = embedder.name
            made = (replace(one, vector=found, embedded_by=by) for one, found in zip(plan.writes, vectors, strict=True))
            plan = replace(plan, writes=tuple(made))
        return plan, questions.used, questions.model.name

    async def _vectors(self, questions: Questions, texts: Sequence[str]) -> Sequence[tuple[float, ...] | None]:
        """None for each without an embedder, whose usage counts under the reservation. Raises `EmbedderFailed`."""
        embedder = self.memory.seams.embedder
        if embedder is None or not texts:
            return [None] * len(texts)
        vectors, used = await embed(self.leg, embedder, texts)
        questions.add(used)
        return vectors

    async def _told(self) -> tuple[Message, ...]:
        """From the transcript, which this step need not have whole."""
        envelope = self.leg.run.envelope
        loaded = await self.leg.gear.store.load(envelope.scope, envelope.run_id)
        if loaded is None:
            raise StepOver("the run is gone")
        run = read_run(loaded.head, loaded.messages, loaded.receipts)
        return told(await read_transcript(self.leg.gear.store, loaded, run), self.state.given or 0)

    async def _apply(self, plan: ExtractionPlan) -> None:
        scope = self.leg.head.scope
        if plan.deletions:
            await self.leg.check_may_start()
            await self._ask(lambda: self.store.delete_memories(scope, plan.deletions))
            if plan.writes:
                await self.leg.commit(ExtractionProgressed(len(plan.deletions)))
        if plan.writes:
            await self.leg.check_may_start()
            await self._ask(lambda: self.store.write_memories(scope, plan.writes))

    async def _sweep(self) -> None:
        try:
            now_ms = self._now_ms()
            await self._ask(lambda: self.store.delete_expired_memories(self.leg.head.scope, self.state.scope, now_ms))
        except MemoryStoreFailed as failed:
            log.warning("memory_sweep_failed run=%s error=%s", self.leg.head.run_id, failed)

    async def _count(self) -> int:
        """Records that this extraction wrote. Raises what the store raises, and `TypeError` where it gives no number."""
        present = await self.store.count_memories(self.leg.head.scope, self.extraction.operation_id)
        if not isinstance(present, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a memory store counts records, which is no {type(present).__name__}")
        return present

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Of the memory store. Raises `MemoryStoreFailed`, which names the kind of error alone."""
        self.leg.hold_for(SEARCH_LIMIT_MS, "memory")
        try:
            return await outcome_of(call, SEARCH_LIMIT_MS)
        except Broken as broken:
            raise MemoryStoreFailed(type(broken.error).__name__) from None
        except LimitPassed:
            raise MemoryStoreFailed("TimeoutError") from None

    def _now_ms(self) -> int:
        clock = self.memory.seams.clock
        return self.leg.gear.clock.unix_ms() if clock is None else clock()

    async def _end(self, outcome: Extraction, *, released: bool = False) -> LoopEnd:
        if outcome.error is not None:
            log.warning("memory_not_extracted run=%s error=%s", self.leg.head.run_id, outcome.error.get("code"))
        await self.leg.commit(ExtractionEnded(outcome, released))
        return "ended"

    async def fail(self, error: Mapping[str, object], *, released: bool = False) -> LoopEnd:
        return await self._end(replace(self.extraction, status="failed", error=error), released=released)

    async def _unsaved(self, error: Exception) -> None:
        """The plan could not be saved, so nothing is written; that is said, if it can be, by a commit of its own (MEM-016).

        Where the plan was saved after all, that commit is refused, and whoever looks next finds that nothing of it was done.
        """
        stored = self.leg.committer.stored
        assert stored.envelope.memory is not None
        assert stored.envelope.memory.extraction is not None
        why = {"name": type(error).__name__, "code": "memory_plan_unsaved", "message": "the plan could not be saved"}
        failed = replace(stored.envelope.memory.extraction, status="failed", error=why)
        change = to_change(evolve_all(stored, (ExtractionEnded(failed),)), self.leg.gear.ids.commit_id())
        saved = await self.leg.gear.store.commit(change)
        log.warning("memory_plan_unsaved run=%s said=%s", self.leg.head.run_id, isinstance(saved, Applied))


async def extract(leg: Leg) -> LoopEnd:
    """Carry the extraction of the ended run out, or find out what became of it. What goes wrong with it is its outcome."""
    agent = leg.own
    if not isinstance(agent, AgentDefinition) or agent.memory is None:
        raise StepOver("nobody here knows the memory of the run")
    try:
        work = Extracting(leg, agent, agent.memory, store_of(leg, agent.memory))
    except ConfigurationError as error:
        raise StepOver(error.message) from None
    try:
        return await work.go_on()
    except HeldBack as held:
        return await hold_back(leg, held)
    except Ended:
        if leg.stop.is_lost:
            raise StepOver("the lease is gone") from None
        return "drained"
    except ModelError as error:
        return await work.fail(as_record(error), released=error.billed == "no" and not work.is_answered)
    except (MemoryReplyError, ExecutionPolicyError) as error:
        return await work.fail(as_record(error))
    except MemoryStoreFailed as failed:
        return await work.fail({"name": str(failed), "code": "memory_store", "message": "the memory store failed"})
    except EmbedderFailed as failed:
        return await work.fail({"name": str(failed), "code": "embedder", "message": "the embedder of the memory failed"})
