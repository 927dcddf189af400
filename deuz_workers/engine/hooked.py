"""Moments of a run at which hooks have a say, as events: before a model call, at the end of a turn, at the end of the run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deuz_workers.core.events import Event, Finished, HistoryRewritten, InputChecked, TurnAnswered, Warned
from deuz_workers.core.evolve import evolve_all
from deuz_workers.core.run import Run
from deuz_workers.engine.answer import judge
from deuz_workers.engine.guards import Guards, newest_input, replaced, with_text
from deuz_workers.errors import HookError
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.guard import StepPlan


@dataclass(frozen=True, slots=True)
class Checked:
    """What hooks changed before a model call, and the end of the run where there is none."""

    events: tuple[Event, ...] = ()
    ending: Finished | None = None


def asked_before_call(agent: AgentDefinition) -> int:
    """How many functions that are."""
    return len(agent.guardrails.on_input) + len(agent.stop_when) + (agent.prepare_step is not None)


async def checked_call(guards: Guards, run: Run, step: int) -> Checked:
    """The input's guardrails once per leg, then the conditions that end the tool loop; before anything is paid for."""
    agent = guards.agent
    events: tuple[Event, ...] = ()
    place = newest_input(run)
    if agent.guardrails.on_input and not run.envelope.checkpoint.input_checked and place is not None:
        guarded = await guards.look("on_input", run.history[place].text, run)
        events = (*guarded.fired, InputChecked())
        if guarded.blocked is not None:
            details = {"guardrail": guarded.by, "reason": guarded.reason}
            return Checked(events, Finished("stopped", "guardrail:input", details))
        if guarded.is_rewritten:
            message = with_text(run.history[place], guarded.value)
            events = (*events, HistoryRewritten(replaced(run, place, message), place, _is_remembered(agent, run)))
    if not is_of_loop(agent, run):
        return Checked(events)
    condition = await guards.stop_condition(evolve_all(run, events), step)
    if condition is None:
        return Checked(events)
    return Checked(events, Finished("stopped", "stop-condition", {"condition": condition}))


async def prepared_call(guards: Guards, run: Run, step: int) -> tuple[tuple[Event, ...], StepPlan]:
    """What `prepare_step` makes of a call of the tool loop. It sees the history as it would be sent."""
    agent = guards.agent
    if agent.prepare_step is None or not is_of_loop(agent, run):
        return (), StepPlan()
    plan = await guards.prepared(run, step)
    events: tuple[Event, ...] = ()
    if plan.messages is not None and list(plan.messages) != list(run.history):
        events = (HistoryRewritten(tuple(plan.messages), None, _is_remembered(agent, run)),)
    unknown = sorted({*(plan.active_tools or ())} - agent.tools.keys())
    warnings = [Warned("activeTools", f"active_tools names {name!r}, which the agent does not have") for name in unknown]
    return (*events, *warnings), plan


def _is_remembered(agent: AgentDefinition, run: Run) -> bool:
    """What is said in the run is asked for once it is completed."""
    known, memory = run.envelope.memory, agent.memory
    if known is not None:
        return known.extracts
    return memory is not None and memory.extracts and run.envelope.parent is None


def is_of_loop(agent: AgentDefinition, run: Run) -> bool:
    """The next call is not one that asks for the final answer, which hooks of the loop have no part in (FIN-014)."""
    return run.envelope.phase != "finalizing" and not (agent.output is not None and not agent.tools)


async def guarded_turn(guards: Guards, run: Run, answered: TurnAnswered) -> tuple[Event, ...]:
    """The end of the turn, with the results of calls that ran as guardrails let the model have them."""
    fired: list[Event] = []
    texts: dict[str, str] = {}
    withheld: set[str] = set()
    for call in run.open_calls:
        receipt = run.receipts[call.call_id]
        if not receipt.has_run:
            continue
        text = receipt.error or receipt.text or answered.texts.get(call.call_id, "")
        guarded = await guards.look("on_tool_result", text, run, call)
        fired.extend(guarded.fired)
        if guarded.blocked is not None:
            texts[call.call_id] = guarded.blocked
            withheld.add(call.call_id)
        elif guarded.is_rewritten:
            texts[call.call_id] = guarded.value
    return (*fired, replace(answered, guarded=texts, withheld=frozenset(withheld)))


async def guarded_ending(guards: Guards, run: Run, ending: Finished) -> tuple[Event, ...]:
    """The end of a completed run; what guardrails make of its answer stands in the history too."""
    place = len(run.history) - 1
    guarded = await guards.look("on_output", run.history[place].text, run)
    if guarded.blocked is not None:
        message = with_text(run.history[place], guarded.blocked)
        ending = Finished("stopped", "guardrail:output", {"guardrail": guarded.by, "reason": guarded.reason})
    elif guarded.is_rewritten:
        message = with_text(run.history[place], guarded.value)
        ending = await _ending_with(guards, guarded.value, ending)
    else:
        return (ending,)
    rewritten = HistoryRewritten(replaced(run, place, message), place, _is_remembered(guards.agent, run))
    return (*guarded.fired, rewritten, ending)


async def _ending_with(guards: Guards, text: str, ending: Finished) -> Finished:
    """With another text as the answer; a typed one has to be of its type still."""
    if guards.agent.output is None:
        return replace(ending, output=text)
    judged = await judge(guards.agent.output, text, guards.hooks)
    if not isinstance(judged, Finished):
        raise HookError(f"a guardrail rewrote the answer to one that is not of its type: {judged.problem}")
    return judged
