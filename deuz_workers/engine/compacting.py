"""Making room in the history before a model call (CMP-001), and after a provider refused one as too long (CMP-005)."""

from __future__ import annotations

from deuz_workers.core.events import HistoryPruned, HistorySummarized
from deuz_workers.core.layers import Measure, foldable, pruned
from deuz_workers.engine.leg import Leg, LoopEnd
from deuz_workers.engine.paid_call import make_call
from deuz_workers.engine.summary_call import SummaryCall
from deuz_workers.ports.compaction import NO_POLICY, CompactionPolicy, window_of
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.model import Model


async def make_room(leg: Leg, model: Model) -> tuple[bool, LoopEnd | None]:
    """Leave out what the next request has no room for, as the agent's policy says. True: the request may be sent now.

    False: the leg goes on from what is carried, or is at its end; the summary failed, or its time or this worker's is over.
    """
    agent = leg.definition
    assert isinstance(agent, AgentDefinition)
    is_forced = leg.run.envelope.checkpoint.overflow == "refused"
    policy = agent.compaction or (NO_POLICY if is_forced else None)
    measure = None if policy is None else _measure(leg, agent, policy, model)
    if policy is None or measure is None or not (is_forced or measure.is_full(leg.run.history)):
        return True, None
    if is_forced:
        measure = measure.forced(leg.run.history)
    for layer in pruned(leg.run, measure):
        assert layer.layer != "summary"
        leg.carry(HistoryPruned(layer.layer, layer.compaction, layer.before_tokens, layer.after_tokens))
    run = leg.run
    fold = None if measure.is_enough(run.history) or not policy.summarize else foldable(run, measure, forced=is_forced)
    if fold is None:
        return True, None
    by = policy.summary_model or model
    call = SummaryCall(leg.gear, agent, run, leg.bindings, by, fold, measure, policy.summary_tokens)
    end = await make_call(leg, call, "summary")
    if end is not None or not (leg.carried and isinstance(leg.carried[-1], HistorySummarized)):
        return False, end
    await leg.check_may_start()
    if leg.stop.is_draining:
        await leg.commit()
        return False, "drained"
    return leg.ending_by_time(leg.run) is None, None


def _measure(leg: Leg, agent: AgentDefinition, policy: CompactionPolicy, model: Model) -> Measure | None:
    """None where nobody knows how large the window is, and no provider has said that it is too small."""
    run = leg.run
    fixed_bytes, calibration = leg.bindings.fixed_bytes(agent), run.envelope.calibration
    known = window_of(policy, model)
    if known is None and run.envelope.checkpoint.overflow != "refused":
        return None
    measure = Measure(known or 0, 0, 0, policy.keep_turns, fixed_bytes, calibration)
    window = known or max(1, measure.tokens(run.history.size_bytes))
    threshold = round(window * policy.threshold)
    return Measure(window, threshold, round(threshold * policy.target), policy.keep_turns, fixed_bytes, calibration)
