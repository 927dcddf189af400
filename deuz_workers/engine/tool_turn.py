"""The tools' part of a turn: asked for where they are gated, else begun and awaited together."""

from __future__ import annotations

from collections.abc import Sequence

from deuz_workers.core.delegation import depth_of
from deuz_workers.core.effects import PlannedCall, RunCalls
from deuz_workers.core.events import Finished, Suspended
from deuz_workers.core.run import Run
from deuz_workers.engine.calls import Calls
from deuz_workers.engine.contexts import Contexts
from deuz_workers.engine.delegating import delegate
from deuz_workers.engine.gate import Gate, gate, limit_ms, predicates_ms
from deuz_workers.engine.guards import Guards
from deuz_workers.engine.leg import MARGIN_MS, Leg, LoopEnd
from deuz_workers.engine.reducing import reduce
from deuz_workers.engine.restraint import HeldBack, check_brakes, draw_for_delegated, draw_for_tools
from deuz_workers.engine.tool_slots import ToolSlots
from deuz_workers.errors import ExecutionPolicyError, StoreUnavailableError, as_record
from deuz_workers.ports.definition import AgentDefinition, ReducerDefinition


async def run_calls(leg: Leg, effect: RunCalls, run: Run) -> LoopEnd | None:
    await leg.check_may_start()
    if isinstance(leg.definition, ReducerDefinition):
        await reduce(leg, leg.definition)
        return None
    assert leg.definition is not None
    if violation := forbidden(effect, leg.definition, run):
        await leg.commit(Finished("failed", error=as_record(violation)))
        return "ended"
    await check_brakes(leg, tools=[one.call.name for one in effect.calls if one.action != "project"])
    asking_ms = predicates_ms(effect, leg.definition, run)
    if asking_ms:
        await leg.about_to_ask(asking_ms, "approvals")
    given = await leg.run_context(leg.definition)
    guards = Guards(leg.definition, leg.hooks(), given.runtime)
    contexts = Contexts(leg.head, leg.definition, given, leg.hooks(), leg.stop, effect.step, guards, leg.gear.application)
    gated = await gate(effect, leg.definition, run, contexts)
    if leg.ending_by_time(leg.run):
        return None  # its time passed while user code was asked, so nothing begins
    if gated.items:
        await leg.commit(*gated.fired, Suspended(gated.items, gated.item_call_ids, leg.sooner_ms(None)))
        return "suspended"
    if not gated.running:
        leg.carry(*gated.opening)
        return await hand_over(leg, leg.definition, gated.delegated)
    longest = max(longest_ms(leg, planned) for planned in gated.running)
    slots = ToolSlots(leg.gear, longest + MARGIN_MS)
    try:
        return await execute(leg, leg.definition, gated, contexts, slots, longest)
    finally:
        await slots.close()


async def execute(
    leg: Leg, agent: AgentDefinition, gated: Gate, contexts: Contexts, slots: ToolSlots, longest: int
) -> LoopEnd | None:
    await draw_for_tools(leg, gated.running[: leg.run.envelope.limits.tool_concurrency], slots)
    if leg.carried or gated.opening:
        await leg.commit(*gated.opening)
    label = ",".join(planned.call.name for planned in gated.running)
    leg.hold_for(longest, label)

    async def may_begin(planned: Sequence[PlannedCall]) -> bool:
        leg.hold_for(longest, label)
        goes_on = leg.hold.may_start and not leg.stop.is_cancelled and not leg.stop.is_draining
        if not goes_on or leg.ending_by_time(leg.committer.run) is not None:
            return False
        try:
            await draw_for_tools(leg, planned, slots)
        except (HeldBack, StoreUnavailableError):
            return False
        return True

    calls = Calls(leg.gear, agent, leg.committer, leg.stop, contexts, may_begin, slots.ended)
    leg.carry(*await calls.run(gated.running))
    if calls.left_some and leg.stop.is_draining:
        await leg.commit()
        return "drained"
    return None if calls.left_some else await hand_over(leg, agent, gated.delegated)


async def hand_over(leg: Leg, agent: AgentDefinition, delegated: tuple[PlannedCall, ...]) -> LoopEnd | None:
    """Create the runs of delegated calls and wait for them, in one commit, which carries the outcomes of the other calls.

    So nobody is waited for before everything else of the turn is recorded, and from here on the run holds no worker.
    """
    if not delegated or leg.ending_by_time(leg.run):
        return None
    await leg.check_may_start()
    await draw_for_delegated(leg, delegated)
    await leg.commit(*delegate(leg.gear, agent, leg.run, delegated, leg.sooner_ms(None)))
    return "suspended"


def forbidden(effect: RunCalls, agent: AgentDefinition, run: Run) -> ExecutionPolicyError | None:
    """Why the policy of the run ends it instead of beginning these calls; None: it allows them."""
    calls = [planned.call for planned in effect.calls if planned.action != "project"]
    policy = run.envelope.policy.narrowed(agent.policy)
    if violation := policy.violation(calls, agent.tools):
        return violation
    if any(call.name in agent.tools and agent.tools[call.name].delegation is not None for call in calls):
        try:
            policy.check_depth(depth_of(run.envelope) + 1)
        except ExecutionPolicyError as error:
            return error
    return None


def longest_ms(leg: Leg, planned: PlannedCall) -> int:
    """Of what is called, the tool and what makes its text."""
    tool = leg.definition.tools.get(planned.call.name) if isinstance(leg.definition, AgentDefinition) else None
    if tool is None:
        return leg.committer.run.envelope.limits.tool_timeout_ms
    calls = (planned.action != "project") + tool.has_projection
    return limit_ms(tool, leg.committer.run) * calls
