"""The function of a reducer task."""

from __future__ import annotations

import inspect
from dataclasses import replace

from deuz_workers.core.change import TaskStatus
from deuz_workers.core.decide import REDUCE
from deuz_workers.core.events import CallExecuted, CallFailed, CallStarted
from deuz_workers.core.failure import describe, text_of
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.engine.executing import execution_of
from deuz_workers.engine.inputs import reducer_inputs
from deuz_workers.engine.leg import Leg
from deuz_workers.engine.restraint import check_brakes, read_controls
from deuz_workers.engine.user_code import Broken, LimitPassed, outcome_of, stored_form
from deuz_workers.errors import CodecError, DeadlinePassed
from deuz_workers.ports.definition import ReducerContext, ReducerDefinition


async def reduce(leg: Leg, reducer: ReducerDefinition) -> None:
    """Run the function of a reducer task; its outcome is saved with the ending of the task."""
    assert leg.head.swarm_rid is not None
    assert leg.head.task_id is not None
    await check_brakes(leg)
    before = await leg.gear.store.task_results(leg.head.swarm_rid, leg.head.task_id)
    results = reducer_inputs(before)
    limit_ms, policy = await _bounds(leg, reducer)
    await leg.commit(CallStarted(REDUCE, reducer.name, reducer.replay_safe))
    leg.hold_for(limit_ms, reducer.name)
    signal = leg.stop.signal()
    settled: dict[str, TaskStatus] = {result.task_id: result.status for result in before}
    execution = replace(execution_of(leg.gear.application, leg.head, leg.run, signal, leg.stop), policy=policy)
    context = ReducerContext(leg.head.scope, leg.head.run_id, leg.head.task_id, signal, settled, execution)

    late = f"{reducer.name} took longer than {limit_ms} ms"

    async def reduce() -> object:
        if inspect.iscoroutinefunction(reducer.reduce):
            return await reducer.reduce(results, context)
        value = await leg.gear.threads.call(reducer.name, lambda: reducer.reduce(results, context))
        return await value if inspect.isawaitable(value) else value

    try:
        value = await outcome_of(reduce, limit_ms, on_limit=lambda: signal.set(DeadlinePassed(late)))
        leg.carry(CallExecuted(REDUCE, await stored_form(value, reducer.max_result_bytes)))
        leg.requests = tuple(context.requests)
    except LimitPassed:
        leg.carry(CallFailed(REDUCE, late))
    except CodecError as error:
        leg.carry(CallFailed(REDUCE, f"{reducer.name} returned what cannot be stored: {text_of(error)}"))
    except Broken as broken:
        leg.carry(CallFailed(REDUCE, describe(broken.error)))
    finally:
        leg.stop.forget(signal)


async def _bounds(leg: Leg, reducer: ReducerDefinition) -> tuple[int, ExecutionPolicy]:
    """How long the function may take, and what it may do: its task's time is a deadline of both (SWM-024)."""
    envelope, left_ms = leg.run.envelope, leg.head.ends_in_ms
    if left_ms is None:
        return reducer.timeout_ms, envelope.policy
    left_ms = max(1, left_ms - leg.stop.elapsed_ms)
    await read_controls(leg)  # with the store's time
    until_ms = leg.gear.controls.store_ms(leg.gear.clock) + left_ms
    return min(reducer.timeout_ms, left_ms), envelope.policy.narrowed(ExecutionPolicy(deadline_ms=until_ms))
