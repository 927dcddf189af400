"""The loop: a leg carries out what `decide` orders until the turn is over.

Streaming, embedded and Celery are this loop with other hands.
"""

from __future__ import annotations

import logging

from deuz_workers.core.candidate import ask_for_output
from deuz_workers.core.decide import decide
from deuz_workers.core.effects import (
    AnswerTurn,
    AskForOutput,
    AwaitAnswers,
    CallModel,
    CheckOutput,
    ConductSwarm,
    Effect,
    ExtractMemory,
    Finish,
    GatherInputs,
    Nothing,
    Reconcile,
    RunCalls,
    VerifyCandidate,
)
from deuz_workers.core.events import Finished, OutputAsked, Waited
from deuz_workers.core.run import Run
from deuz_workers.engine.committer import CancelFirst, StepOver
from deuz_workers.engine.conduct import conduct_swarm, settled
from deuz_workers.engine.extracting import extract
from deuz_workers.engine.inputs import given_inputs
from deuz_workers.engine.intake import close_expired, fold_inbox, judge_old_receipts, narrow_policy, take_in
from deuz_workers.engine.leg import Leg, LoopEnd
from deuz_workers.engine.model_turn import call_model, check_output, run_end, turn_end
from deuz_workers.engine.offering import look_at_servers, settle_tools
from deuz_workers.engine.restraint import HeldBack, check_brakes, hold_back, read_controls
from deuz_workers.engine.slot import lacks_slot, take_slot
from deuz_workers.engine.taken_answers import next_expiry_ms
from deuz_workers.engine.tool_turn import run_calls
from deuz_workers.engine.verification import verify
from deuz_workers.errors import HookError, as_record

log = logging.getLogger(__name__)


async def advance(leg: Leg, turns: int) -> LoopEnd:
    """Go on until `turns` turns are answered, or nothing more can be done now.

    Raises `StepOver` when the run is somebody else's, `CatalogRefused`, and store errors.
    """
    sight = await look_at_servers(leg)
    if await close_expired(leg):
        return "suspended"
    await take_in(leg)
    if sight is not None and (end := await settle_tools(leg, sight)):
        return end
    judge_old_receipts(leg)
    narrow_policy(leg)
    if leg.run.envelope.policy.deadline_ms is not None:
        await read_controls(leg)  # with the store's time, by which the deadline is judged
    while True:
        if leg.stop.is_lost:
            raise StepOver("the lease is gone")
        try:
            if leg.committer.sees_cancel or leg.stop.is_cancelled:
                await fold_inbox(leg)
            run = leg.run
            effect = leg.ending_by_time(run) or decide(run)
            if leg.definition is None and not isinstance(effect, Finish | Nothing | ConductSwarm):
                raise StepOver("nobody here knows the agent, and the run does not end")
            if run.due_in_ms and not isinstance(effect, Finish | Nothing):
                await leg.commit()
                return "waiting"
            try:
                if lacks_slot(leg, effect):
                    await check_brakes(leg)
                    if not await take_slot(leg):
                        return "waiting"  # with nothing saved: whoever has a slot reads notes and answers again
                end = await carry_out(leg, effect, run)
            except HookError as error:
                await leg.commit(Finished("failed", error=as_record(error)))
                return "ended"
            except HeldBack as held:
                return await hold_back(leg, held)
        except CancelFirst:
            await fold_inbox(leg)
            continue
        if end == "turn":
            turns -= 1
            if turns > 0 and not leg.stop.is_draining and not leg.committer.sees_inputs:
                continue
        if end is not None:
            return end


async def carry_out(leg: Leg, effect: Effect, run: Run) -> LoopEnd | None:
    match effect:
        case GatherInputs():
            assert leg.head.swarm_rid is not None
            assert leg.head.task_id is not None
            leg.carry(await given_inputs(leg.gear.store, leg.head.swarm_rid, leg.head.task_id))
            return None
        case CallModel():
            return await call_model(leg, effect)
        case AskForOutput():
            await leg.commit(OutputAsked(ask_for_output()))
            return "turn"
        case CheckOutput(text):
            return await check_output(leg, text)
        case VerifyCandidate():
            return await verify(leg, effect)
        case RunCalls():
            return await run_calls(leg, effect, run)
        case AnswerTurn():
            await leg.commit(*await turn_end(leg, run))
            return "ended" if leg.committer.run.envelope.is_final else "turn"
        case Reconcile(unknown):
            return await park(leg, len(unknown))
        case AwaitAnswers():
            if leg.carried or (leg.head.due_in_ms is not None and leg.head.due_in_ms <= 0):
                await leg.commit(Waited(leg.sooner_ms(next_expiry_ms(leg.items))))
            return "suspended"
        case ConductSwarm():
            return await conduct(leg, run)
        case Finish(ending):
            await leg.commit(*await run_end(leg, ending, run))
            return "ended"
        case ExtractMemory():
            return await extract(leg)
        case Nothing():
            await leg.commit()
            return "ended"


async def park(leg: Leg, unknown: int) -> LoopEnd:
    """Take the run out of the schedule; the stored record stays as it is (REC-001, REC-014).

    Notes that did not say what became of every effect are saved as heard first, else they would wake the run for ever.
    """
    await leg.commit()
    envelope = leg.committer.run.envelope
    if not await leg.gear.store.park(envelope.rid, envelope.revision, "tool-reconciliation-required"):
        raise StepOver("an input arrived before the run was parked")
    log.warning("run_parked run=%s unknown_effects=%d", envelope.run_id, unknown)
    return "parked"


async def conduct(leg: Leg, run: Run) -> LoopEnd:
    conducted = await conduct_swarm(leg.gear, run)
    leg.bells.extend(conducted.bells)
    await leg.commit(Waited() if conducted.ending is None else conducted.ending)
    if conducted.is_still:
        leg.bells.extend(await settled(leg.gear, run.envelope.rid))
    return "waiting" if conducted.ending is None else "ended"
