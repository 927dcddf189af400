"""The model's part of a turn: its call, the judgement of a final answer, and what guardrails make of both ends."""

from __future__ import annotations

from deuz_workers.core.effects import CallModel
from deuz_workers.core.events import Event, Finished, TurnAnswered
from deuz_workers.core.render import render
from deuz_workers.core.run import Run
from deuz_workers.engine.answer import judge
from deuz_workers.engine.candidates import selected
from deuz_workers.engine.compacting import make_room
from deuz_workers.engine.extracting import with_extraction
from deuz_workers.engine.hooked import asked_before_call, checked_call, guarded_ending, guarded_turn, prepared_call
from deuz_workers.engine.leg import Leg, LoopEnd
from deuz_workers.engine.model_call import ModelCall
from deuz_workers.engine.offering import refresh_tools
from deuz_workers.engine.paid_call import make_call
from deuz_workers.engine.recalling import recall
from deuz_workers.engine.restraint import check_brakes
from deuz_workers.errors import ExecutionPolicyError, as_record
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.guard import StepPlan


async def call_model(leg: Leg, effect: CallModel) -> LoopEnd | None:
    agent = leg.definition
    assert isinstance(agent, AgentDefinition)
    await leg.check_may_start()
    if agent.mcp is not None:
        if end := await refresh_tools(leg):
            return end
        assert isinstance(leg.definition, AgentDefinition)
        agent = leg.definition
    await check_brakes(leg, model=selected(agent, agent.model, leg.run).name)
    plan, guards = StepPlan(), None
    if asked := asked_before_call(agent):
        guards = await leg.guards(agent, asked)
        checked = await checked_call(guards, leg.run, effect.step)
        leg.carry(*checked.events)
        if checked.ending is not None:
            await leg.commit(checked.ending)
            return "ended"
    if agent.memory is not None:
        try:
            await recall(leg, agent)
        except ExecutionPolicyError as error:
            await leg.commit(Finished("failed", error=as_record(error)))
            return "ended"
    before = leg.carried
    may_send, end = await make_room(leg, selected(agent, agent.model, leg.run))
    if not may_send:
        return end
    if guards is not None and agent.prepare_step is not None:
        if leg.carried is not before:
            guards = await leg.guards(agent, 1)  # time has passed, and what was paid for is saved first
        events, plan = await prepared_call(guards, leg.run, effect.step)
        leg.carry(*events)
        if plan.model is not None or plan.messages is not None:
            may_send, end = await make_room(leg, selected(agent, plan.model or agent.model, leg.run))
            if not may_send:
                return end
    call = ModelCall(leg.gear, agent, leg.run, effect, leg.bindings, plan)
    return await make_call(leg, call, "model")


async def check_output(leg: Leg, text: str) -> LoopEnd | None:
    assert isinstance(leg.definition, AgentDefinition)
    assert leg.definition.output is not None
    await leg.check_may_start()
    hooks = leg.hooks()
    await leg.about_to_ask(hooks.limit_ms, "output")
    judged = await judge(leg.definition.output, text, hooks)
    events = await run_end(leg, judged, leg.run) if isinstance(judged, Finished) else (judged,)
    await leg.commit(*events)
    return "ended" if leg.committer.run.envelope.is_final else "turn"


async def turn_end(leg: Leg, run: Run) -> tuple[Event, ...]:
    agent, answered = leg.definition, answered_turn(run)
    if not isinstance(agent, AgentDefinition) or not agent.guardrails.on_tool_result:
        return (answered,)
    asked = len(agent.guardrails.on_tool_result) * len(run.open_calls)
    return await guarded_turn(await leg.guards(agent, asked), run, answered)


async def run_end(leg: Leg, ending: Finished, run: Run) -> tuple[Event, ...]:
    agent = leg.definition
    if ending.status != "completed" or not isinstance(agent, AgentDefinition):
        return (ending,)
    events: tuple[Event, ...] = (ending,)
    if agent.guardrails.on_output:
        events = await guarded_ending(await leg.guards(agent, len(agent.guardrails.on_output) + 1), run, ending)
    return events if agent.memory is None else await with_extraction(leg, *events)


def answered_turn(run: Run) -> TurnAnswered:
    """The event that ends a turn: plain renderings of the raw values that no projection replaced."""
    receipts = (run.receipts[call.call_id] for call in run.open_calls)
    return TurnAnswered(
        {receipt.call_id: render(receipt.value) for receipt in receipts if receipt.error is None and receipt.text is None}
    )
