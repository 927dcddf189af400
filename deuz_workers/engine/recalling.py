"""The one recall of a run: ahead of its first model call, saved with the commit that admits it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from deuz_workers.core.estimate import text_bytes, usage_bound
from deuz_workers.core.events import Event, Warned
from deuz_workers.core.memory import MemoryQuery, MemoryRecord, MemoryScope, newest_user_text, recall_message, was_recalled
from deuz_workers.core.memory_events import MemoryAttached, MemoryRecalled, RecallStarted
from deuz_workers.core.run_memory import RunMemory
from deuz_workers.core.transcript import transcript_length
from deuz_workers.core.usage import Usage
from deuz_workers.engine.asking import binding_event
from deuz_workers.engine.committer import BudgetRefused, ReservationContended
from deuz_workers.engine.embedding import EmbedderFailed, embed
from deuz_workers.engine.leg import Leg
from deuz_workers.engine.memory_llm import embedder_call
from deuz_workers.engine.restraint import check_brakes
from deuz_workers.engine.user_code import Broken, LimitPassed, outcome_of
from deuz_workers.errors import ConfigurationError, ExecutionPolicyError, HookError
from deuz_workers.ports.context import RunFacts
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.memory import Embedder, Memory, MemoryStore, keeps_memories

SEARCH_LIMIT_MS = 10_000
"""Of one search; a memory store that takes longer counts as one that is away."""

log = logging.getLogger(__name__)


async def recall(leg: Leg, agent: AgentDefinition) -> None:
    """Carry what is remembered, unless the run has begun, was delegated, or has no memory.

    Raises `HookError`, `ExecutionPolicyError`.
    """
    memory, envelope = agent.memory, leg.run.envelope
    if memory is None or envelope.parent is not None or envelope.checkpoint.step:
        return
    if envelope.memory is None:
        scope = await scope_of(leg, memory)
        check_narrower(leg, scope)
        leg.carry(MemoryAttached(scope, memory.extracts, transcript_length(leg.run.envelope)))
    state = leg.run.envelope.memory
    assert state is not None
    if memory.recall and state.recall is None:
        leg.carry(*await _recalled(leg, agent, memory, state))


def check_narrower(leg: Leg, scope: MemoryScope) -> None:
    """Raises `ExecutionPolicyError` where a run in the context of another one would have memories that are not that one's."""
    nested = leg.run.envelope.nested
    if nested is not None and nested.memory is not None and not scope.narrows(nested.memory):
        raise ExecutionPolicyError(
            f"run {leg.head.run_id!r} was started within {nested.run_id!r} and may only narrow its memory scope: give "
            f"{', '.join(sorted(nested.memory.ids))} as they are there, and more if you like",
            code="memory_scope",
        )


async def scope_of(leg: Leg, memory: Memory) -> MemoryScope:
    """Whose memories the run has. Raises `HookError` where the application's function does not say it."""
    if isinstance(memory.scope, MemoryScope):
        return memory.scope
    head, hooks = leg.head, leg.hooks()
    facts = RunFacts(head.scope, head.run_id, head.agent, await leg.gear.store.tags(head.scope, head.run_id))
    await leg.about_to_ask(hooks.limit_ms, "memory")
    try:
        scope = await hooks.ask("memory_scope", memory.scope, facts)
    except Broken as broken:
        raise HookError(f"the memory scope of run {head.run_id!r} could not be told: {type(broken.error).__name__}") from None
    except LimitPassed:
        raise HookError(f"the memory scope of run {head.run_id!r} was not told in time") from None
    if not isinstance(scope, MemoryScope):
        raise HookError(f"the memory scope of run {head.run_id!r} is a {type(scope).__name__}; return MemoryScope(user_id=...)")
    return scope


async def _recalled(leg: Leg, agent: AgentDefinition, memory: Memory, state: RunMemory) -> tuple[Event, ...]:
    history = leg.run.history
    if was_recalled(history):
        return (MemoryRecalled({"status": "present"}),)
    text = newest_user_text(history)
    warnings, vector, used = tuple[Warned, ...](), None, None
    try:
        embedder = memory.seams.embedder
        if embedder is not None and text and await _admitted(leg, agent, memory, embedder, text):
            (vector,), used = await embed(leg, embedder, [text])
            warnings = () if used is not None else (unaccounted(embedder.name),)
    except EmbedderFailed as failed:
        log.warning("memory_unavailable run=%s error=%s", leg.head.run_id, failed)
        return (MemoryRecalled({"status": "failed", "error": {"name": str(failed), "code": "embedder"}}),)
    name = None if embedder is None else embedder.name
    query = MemoryQuery(text, memory.limit, vector, None if vector is None else name, _now_ms(memory))
    found, error = await searched(leg, memory, state, query)
    record: dict[str, object] = {"status": "found" if found else "empty", "count": len(found)}
    if error is not None:
        record = {"status": "failed", "error": dict(error)}
    message = recall_message(found) if found else None
    return (*warnings, *mismatches(memory, found), MemoryRecalled(record, message, used, name or ""))


async def _admitted(leg: Leg, agent: AgentDefinition, memory: Memory, embedder: Embedder, text: str) -> bool:
    """The embedder may be asked, which is saved; False: no budget has room for it, so the words have to do. Raises `HeldBack`.

    A run whose policy does not allow the model fails by it, as by any other.
    """
    await check_brakes(leg, model=embedder.name)
    request_id = f"{leg.run.envelope.rid.hex}:e{leg.run.envelope.revision}"
    most = Usage(usage_bound(text_bytes(text), 0).input_tokens, 0, cost_micros=None)
    call = embedder_call(leg, agent, memory, embedder.name, request_id, most)
    try:
        await leg.commit(*binding_event(agent, leg.run, leg.bindings), RecallStarted(call))
    except (BudgetRefused, ReservationContended):
        log.warning("memory_not_embedded run=%s error=no budget has room for it", leg.head.run_id)
        return False
    return True


def unaccounted(model: str) -> Warned:
    return Warned("unaccounted-usage", f"{model} did not say what it used for the memory; its estimate stays counted")


async def searched(
    leg: Leg, memory: Memory, state: RunMemory, query: MemoryQuery
) -> tuple[tuple[MemoryRecord, ...], Mapping[str, object] | None]:
    """What the memory store finds, or why it did not; an error is logged, and without a text of its own (MEM-007)."""
    leg.hold_for(SEARCH_LIMIT_MS, "memory")
    try:
        store = store_of(leg, memory)
        return await outcome_of(lambda: found_in(store, leg.head.scope, state.scope, query), SEARCH_LIMIT_MS), None
    except (Broken, LimitPassed, ConfigurationError) as problem:
        name = type(problem.error if isinstance(problem, Broken) else problem).__name__
        log.warning("memory_unavailable run=%s error=%s", leg.head.run_id, name)
        return (), {"name": name, "code": "memory_store"}


async def found_in(store: MemoryStore, scope: str, of: MemoryScope, query: MemoryQuery) -> tuple[MemoryRecord, ...]:
    """What a memory store of the user's finds. Raises what it raises, and `TypeError` where that is no list of records."""
    found = tuple(await store.find_memories(scope, of, query))
    for record in found:
        if not (isinstance(record, MemoryRecord) and isinstance(record.text, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a memory store finds records of memories, not a {type(record).__name__}")
    return found


def store_of(leg: Leg, memory: Memory) -> MemoryStore:
    """The memory's own, else that of the runs. Raises `ConfigurationError` where that keeps no memories."""
    store = memory.seams.store or leg.gear.store
    if not keeps_memories(store):
        raise ConfigurationError("the store of the runs keeps no memories; give MemorySeams(store=...)")
    return store


def mismatches(memory: Memory, found: tuple[MemoryRecord, ...]) -> tuple[Warned, ...]:
    """Vectors of another embedder were met, and say nothing (MEM-026)."""
    embedder = memory.seams.embedder
    if embedder is None:
        return ()
    others = sorted({record.embedded_by for record in found if record.embedded_by} - {embedder.name})
    if not others:
        return ()
    text = f"memories embedded by {', '.join(others)} were compared by their words; the embedder is {embedder.name}"
    return (Warned("embedding-mismatch", text),)


def _now_ms(memory: Memory) -> int | None:
    return None if memory.seams.clock is None else memory.seams.clock()
