"""The function of a reducer task."""

from __future__ import annotations

import inspect

from deuz_workers.core.decide import REDUCE
from deuz_workers.core.events import CallExecuted, CallFailed, CallStarted
from deuz_workers.core.failure import describe, text_of
from deuz_workers.engine.inputs import reducer_inputs
from deuz_workers.engine.leg import Leg
from deuz_workers.engine.restraint import check_brakes
from deuz_workers.engine.user_code import Broken, LimitPassed, outcome_of, stored_form
from deuz_workers.errors import CodecError, DeadlinePassed
from deuz_workers.ports.definition import ReducerContext, ReducerDefinition


async def reduce(leg: Leg, reducer: ReducerDefinition) -> None:
    """Run the function of a reducer task; its outcome is saved with the ending of the task."""
    assert leg.head.swarm_rid is not None
    assert leg.head.task_id is not None
    await check_brakes(leg)
    results = await reducer_inputs(leg.gear.store, leg.head.swarm_rid, leg.head.task_id)
    await leg.commit(CallStarted(REDUCE, reducer.name, reducer.replay_safe))
    leg.hold_for(reducer.timeout_ms, reducer.name)
    signal = leg.stop.signal()
    context = ReducerContext(leg.head.scope, leg.head.run_id, leg.head.task_id, signal)

    async def reduce() -> object:
        if inspect.iscoroutinefunction(reducer.reduce):
            return await reducer.reduce(results, context)
        value = await leg.gear.threads.call(reducer.name, lambda: reducer.reduce(results, context))
        return await value if inspect.isawaitable(value) else value

    try:
        value = await outcome_of(reduce, reducer.timeout_ms)
        leg.carry(CallExecuted(REDUCE, await stored_form(value, reducer.max_result_bytes)))
    except LimitPassed:
        signal.set(DeadlinePassed(f"the call took longer than {reducer.timeout_ms} ms"))
        leg.carry(CallFailed(REDUCE, f"{reducer.name} took longer than {reducer.timeout_ms} ms"))
    except CodecError as error:
        leg.carry(CallFailed(REDUCE, f"{reducer.name} returned what cannot be stored: {text_of(error)}"))
    except Broken as broken:
        leg.carry(CallFailed(REDUCE, describe(broken.error)))
    finally:
        leg.stop.forget(signal)
