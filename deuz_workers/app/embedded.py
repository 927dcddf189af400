"""Running what an application holds in the process of the caller: `app.run_embedded`, and under it `run_agent`.

The engine, its commits and its leases are those of a pool, so what a dead process left behind is resumed by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from deuz_workers.app.answers import Answers, handed_in_below
from deuz_workers.app.answers_below import hand_in_below
from deuz_workers.app.async_swarm_handle import AsyncSwarmHandle
from deuz_workers.app.below import read_below
from deuz_workers.app.charging import added_budgets
from deuz_workers.app.chat import check_chat, with_chat
from deuz_workers.app.driven import alone, answered, doorbell_of
from deuz_workers.app.handoffs import as_executed
from deuz_workers.app.ledger import accounting
from deuz_workers.app.narrowing import narrow
from deuz_workers.app.nested_drive import held_to
from deuz_workers.app.nesting import check_nested, remembering, scope_below
from deuz_workers.app.order import IN_PROCESS_QUEUE, Options, SharedBudgets, check_created
from deuz_workers.app.pending import Signing
from deuz_workers.app.repair import drop_late_signal, finish_chat
from deuz_workers.app.results import RECONCILIATION, AgentResult, effects_of, refused, result_of
from deuz_workers.app.runtime import NO_CONTEXTS, Runtime
from deuz_workers.app.stream_sources import Named
from deuz_workers.app.subagents import check_context
from deuz_workers.app.swarm_result import SwarmResult
from deuz_workers.app.taking_up import check_retryable, is_unsettled, reopen
from deuz_workers.core.catalog import without_catalog
from deuz_workers.core.change import FINAL
from deuz_workers.core.chat import RunChat
from deuz_workers.core.envelope import CATALOG, decode_envelope
from deuz_workers.core.failure import place_of
from deuz_workers.core.names import run_lease_key
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.run import read_run
from deuz_workers.core.shared_budget import SharedBudget
from deuz_workers.core.unclean_ends import quarantine_queue
from deuz_workers.engine.binding import binding_of
from deuz_workers.engine.in_process import InProcess, LocalDoorbell, binding_changed
from deuz_workers.engine.offering import check_resume
from deuz_workers.errors import (
    AgentRunLeaseError,
    CodecError,
    DeuzError,
    ExecutionPolicyError,
    LeaseStoreUnavailableError,
    McpUnavailableError,
    RetryRefusedError,
    RevisionConflictError,
    ScopeMismatchError,
    StoreError,
    as_record,
)
from deuz_workers.ports.context import RunContext
from deuz_workers.ports.definition import NO_TOOLS
from deuz_workers.ports.execution import Execution
from deuz_workers.ports.live import LiveSink
from deuz_workers.ports.store import Loaded, NewRun

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz

log = logging.getLogger(__name__)

REFUSALS = (
    StoreError,
    AgentRunLeaseError,
    LeaseStoreUnavailableError,
    CodecError,
    ExecutionPolicyError,
    McpUnavailableError,
)
"""What a store, a lease provider, a stored record or a tool server has to say; mistakes of the caller's are raised instead."""

EMBEDDED_STEP_TURNS = 16
"""Turns under one lease. There is no broker between two steps and nobody else to let in, so giving it back helps nobody."""


@asynccontextmanager
async def driver(
    app: Deuz,
    *,
    sink: LiveSink | None = None,
    concurrency: int = 64,
    queues: tuple[str, ...] | None = (IN_PROCESS_QUEUE,),
    sweep_interval_ms: int = 200,
    contexts: Mapping[tuple[str, str], RunContext] = NO_CONTEXTS,
) -> AsyncGenerator[InProcess]:
    """A driver on the running loop; while it is open, `app` rings it from any thread.

    `queues`: what it takes beside the runs it is asked to drive, None for all. `contexts`: see `Gear.contexts`. Raises
    `MigrationMissingError`, `SchemaTooNewError`, `StoreUnavailableError` before anything is taken.
    """
    if queues is not None:
        queues = (*queues, *map(quarantine_queue, queues))
    doorbell = LocalDoorbell(queues, belongs_to=partial(doorbell_of, app.store))
    settings = replace(
        app.settings.engine, step_turns=max(EMBEDDED_STEP_TURNS, app.settings.step_turns), alone=concurrency == 1
    )
    runtime = Runtime(app, doorbell, sink=sink, settings=settings, contexts=contexts)
    await runtime.open()
    app.doorbell.add(doorbell)
    try:
        yield InProcess(runtime.engine, doorbell, concurrency=concurrency, queues=queues, sweep_interval_ms=sweep_interval_ms)
    finally:
        app.doorbell.discard(doorbell)
        await runtime.close()


async def run_embedded(
    app: Deuz, asked: NewRun, options: Options, context: RunContext | None = None, named: Named | None = None
) -> AgentResult[Any]:
    """Write the run and drive it until it has something to report; `context` takes the place of what its agent would make.

    What the store or another executor refuses is a `failed` result (RES-009, RES-021); everything else is raised.
    """
    check_context(app.registry.agent(asked.agent), context)
    if options.execution is None:
        return await _run_embedded(app, asked, options, context, named)
    known = [asked.run_id]

    async def name(run_id: str) -> None:
        known[0] = run_id
        if named is not None:
            await named(run_id)

    driving = _run_embedded(app, asked, options, context, name)
    with remembering(options.execution, app.registry.agent(asked.agent)):
        return await held_to(options.execution, app, lambda: known[0], driving)


async def _run_embedded(
    app: Deuz, asked: NewRun, options: Options, context: RunContext | None, named: Named | None
) -> AgentResult[Any]:
    run_id, scope = asked.run_id, asked.scope
    contexts: dict[tuple[str, str], RunContext] = {}
    try:
        if options.execution is not None:
            options.execution.policy.check_depth(options.execution.depth + 1)
        async with driver(app, contexts=contexts) as driving:
            # Known as ours before it is there: another driver's sweep may see it first, which knows nothing of its contexts.
            with answered(app.store, scope, run_id, driving.doorbell):
                if (definition := app.registry.agent(asked.agent)) is not None:
                    await driving.catalogs.offered(definition)  # nothing is written while a tool server is away
                created = await app.store.create(asked)
                check_created(asked, created, options)
                run_id = created.run_id
                if named is not None:
                    await named(run_id)
                async with alone(app.store, scope, run_id):
                    if context is not None:
                        contexts[scope, run_id] = context
                    return await _driven(app, driving, scope, run_id, asked.agent)
    except REFUSALS as error:
        return refused(run_id, scope, asked.agent, error)
    except DeuzError:
        raise
    except Exception as error:  # noqa: BLE001 - a store of the caller's may raise anything
        return refused(run_id, scope, asked.agent, _failed_store(error))


async def resume_embedded(
    app: Deuz,
    scope: str,
    run_id: str,
    answers: Answers,
    context: RunContext | None = None,
    policy: ExecutionPolicy | None = None,
    chat: RunChat | None = None,
    *,
    retry_failed: bool = False,
    execution: Execution | None = None,
    shared: SharedBudgets = (),
) -> AgentResult[Any]:
    """Hand in `answers` if they are complete, and drive the run until it has something to report.

    `chat` has to be the one that the run began with; None: whichever that is.
    `execution`: of a run that was started in one, which does not go on without (LED-007). Refusals are `failed` results. A run
    that has ended is read; with incomplete answers nothing is written (RSM-002, RSM-008). `policy` is stored before the first
    answer, so that whoever goes on with the run is held to it. `retry_failed`: one that failed for a passing cause goes on; for
    a lasting cause the error is a `TypeError` (MDL-012).
    """
    scope = scope_below(execution, scope)
    driving = _resume_embedded(app, scope, run_id, answers, context, policy, chat, retry_failed, execution, shared)
    return await driving if execution is None else await held_to(execution, app, lambda: run_id, driving)


async def _resume_embedded(
    app: Deuz,
    scope: str,
    run_id: str,
    answers: Answers,
    context: RunContext | None,
    policy: ExecutionPolicy | None,
    chat: RunChat | None,
    retry_failed: bool,
    execution: Execution | None,
    shared: SharedBudgets,
) -> AgentResult[Any]:
    agent = ""
    contexts = {} if context is None else {(scope, run_id): context}
    try:
        async with alone(app.store, scope, run_id), driver(app, contexts=contexts) as driving:
            loaded = await app.store.load(scope, run_id)
            if loaded is None:
                raise ScopeMismatchError(
                    "Native checkpoint version, identity, or scope mismatch. "
                    f"There is no run {run_id!r} in scope {scope!r}; check both",
                    run_id=run_id,
                )
            agent = loaded.head.agent
            check_context(app.registry.agent(agent), context)
            check_chat(loaded.head, chat, app.chats)
            if loaded.head.status not in ("completed", "stopped"):
                check_nested(decode_envelope(loaded.head), execution)
            budgets = await added_budgets(app.store, loaded, shared) if shared else ()
            if retry_failed and loaded.head.status == "failed":
                if unsettled := await _take_up(app, driving, loaded, answers, policy, budgets):
                    return unsettled
                return await _driven(app, driving, scope, run_id, agent)
            answers = await handed_in_below(app.access, loaded, answers)
            answers.check(loaded)
            warnings = answers.warnings(loaded)
            definition = app.registry.agent(agent)
            known = None if definition is None else as_executed(definition, decode_envelope(loaded.head))
            settles = answers.settle(loaded, NO_TOOLS if known is None else known.tools)
            if loaded.head.status in FINAL:
                await drop_late_signal(app.access, loaded.head, app.settings.lease_ttl_ms)
            if loaded.head.status in FINAL or (loaded.head.has_report and not settles):
                await finish_chat(app.access, loaded.head, app.settings.lease_ttl_ms)
                result = await _result(app, loaded)
                return replace(result, warnings=(*result.warnings, *warnings))
            await _check_binding(app, driving, loaded)
            await narrow(app.store, loaded, policy, budgets)
            if settles:
                if answers.words.any and loaded.head.parked is None:
                    await _wait_for_holder(app, scope, run_id)
                await answers.hand_in(app.store, loaded, await _signing(app))
                await hand_in_below(app.store, loaded.head, answers, await _signing(app))
            result = await _driven(app, driving, scope, run_id, agent)
            return replace(result, warnings=(*result.warnings, *warnings))
    except RetryRefusedError as error:
        return replace(refused(run_id, scope, agent, error), error={**as_record(error), "name": "TypeError"})
    except REFUSALS as error:
        return refused(run_id, scope, agent, error)
    except DeuzError:
        raise
    except Exception as error:  # noqa: BLE001 - a store of the caller's may raise anything
        return refused(run_id, scope, agent, _failed_store(error))


def _failed_store(error: Exception) -> StoreError:
    """What none of our stores raises; it escapes no run (RES-009), and its text may hold anything."""
    log.error("store_failed error=%s at=%s", type(error).__name__, place_of(error))
    return StoreError(f"the store failed with a {type(error).__name__}; the stored run is as it was")


async def _take_up(
    app: Deuz,
    driving: InProcess,
    loaded: Loaded,
    answers: Answers,
    policy: ExecutionPolicy | None,
    budgets: tuple[SharedBudget, ...],
) -> AgentResult[Any] | None:
    """The failed run is at work again; or, with nothing written, what somebody has to say about its effects first (MDL-008)."""
    head = loaded.head
    result = await _result(app, loaded)
    await _check_binding(app, driving, loaded)
    check_retryable(loaded)
    if is_unsettled(loaded, answers.settled_calls(loaded)):
        effects = effects_of(read_run(head, loaded.messages, loaded.receipts), await _signing(app))
        return replace(result, status="stopped", reason=RECONCILIATION, error=None, unknown_effects=effects)
    if not await reopen(app.store, app.ids, loaded, policy, budgets):
        raise RevisionConflictError(f"somebody else took run {head.run_id!r} up; look at its handle", run_id=head.run_id)
    await answers.hand_in_effects(app.store, loaded, await _signing(app))
    return None


async def _wait_for_holder(app: Deuz, scope: str, run_id: str) -> None:
    """Nobody has the run's lease: what is said about its calls is about calls that nobody executes any more.

    A dead executor's lapses within its time; of a living one, raises `AgentRunLeaseError`, and nothing was written.
    """
    until_ms = app.clock.monotonic_ms() + app.settings.engine.lease_ttl_ms
    while (peek := await app.leases.peek(run_lease_key(scope, run_id))).ms_left is not None:
        left_ms = until_ms - app.clock.monotonic_ms()
        if left_ms <= 0:
            text = f"run {run_id!r} is being executed elsewhere; wait for its handle before saying what became of its calls"
            raise AgentRunLeaseError(text, run_id=run_id)
        await app.clock.sleep_ms(min(peek.ms_left + 1, left_ms))


async def _check_binding(app: Deuz, driving: InProcess, loaded: Loaded) -> None:
    """Raises `ExecutionPolicyError` where the agent that is known here is not the one that began the run (RSM-005), or its tool
    servers offer what the run cannot go on with; `McpUnavailableError`."""
    head = loaded.head
    definition = app.registry.agent(head.agent)
    binding = decode_envelope(head).agent_binding
    if definition is not None and binding is not None:
        if without_catalog(binding) != binding_of(definition):
            raise binding_changed(head.run_id, head.agent)
        if definition.mcp is not None or CATALOG in binding:
            run = read_run(head, loaded.messages, loaded.receipts)
            await check_resume(driving.catalogs, definition, run)


async def _driven(app: Deuz, driving: InProcess, scope: str, run_id: str, agent: str) -> AgentResult[Any]:
    with answered(app.store, scope, run_id, driving.doorbell):
        refusals = await driving.drive([(scope, run_id)])
    if error := refusals.get((scope, run_id)):
        return refused(run_id, scope, agent, error)
    loaded = await app.store.load(scope, run_id)
    assert loaded is not None
    return await _result(app, loaded)


async def _result(app: Deuz, loaded: Loaded) -> AgentResult[object]:
    signing, spent = await _signing(app), await accounting(app.store, loaded)
    below = await read_below(app.store, loaded.head, signing)
    result = result_of(loaded, app.output_type(loaded.head.agent), signing, spent, below)
    return await with_chat(app.store, loaded, result)


async def _signing(app: Deuz) -> Signing | None:
    return None if app.signer is None else Signing(app.signer, await app.store.now_ms())


async def drive_swarm(app: Deuz, driving: InProcess, handle: AsyncSwarmHandle) -> SwarmResult:
    """Drive a swarm until it has ended or only waits. Raises what kept it from being driven."""
    name = (handle.scope, handle.run_id)
    with answered(app.store, *name, driving.doorbell):
        refusals = await driving.drive([name])
    if error := refusals.get(name):
        raise error
    return await handle.result()
