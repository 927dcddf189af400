"""Before a batch of tool calls begins: which of them may run, which are refused, and which a person must agree to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from deuz_workers.core.change import ItemRow
from deuz_workers.core.effects import PlannedCall, RunCalls
from deuz_workers.core.events import CallStarted, Event
from deuz_workers.core.failure import describe, text_of
from deuz_workers.core.messages import ToolUsePart
from deuz_workers.core.pending_item import binding_of_call, item_of_call
from deuz_workers.core.run import Run
from deuz_workers.engine.contexts import Contexts
from deuz_workers.engine.rejection import Rejection, not_made, too_deep
from deuz_workers.engine.user_code import Broken, LimitPassed
from deuz_workers.errors import ToolArgumentsError
from deuz_workers.ports.definition import AgentDefinition, ToolCallRequest
from deuz_workers.ports.tool import Tool


@dataclass(frozen=True, slots=True)
class Gate:
    """What the batch may do. With `items` none of it starts before they are answered (CLT-008)."""

    opening: tuple[Event, ...]
    """To be saved before any effect begins."""
    running: tuple[PlannedCall, ...]
    """The first `tool_concurrency` of them begin with `opening`, the others as these end."""
    items: tuple[ItemRow, ...] = ()
    item_call_ids: tuple[str, ...] = ()
    fired: tuple[Event, ...] = ()
    """Of guardrails, with `items`; else they are part of `opening`."""
    delegated: tuple[PlannedCall, ...] = ()
    """Calls that other agents do, once those of `running` have ended."""


NO_RESPONSE = "No approval response."
CHANGED = "A guardrail changed the arguments after they were approved."
DENIED_HERE = "The approver of this agent did not allow it."


def start_of(planned: PlannedCall, tool: Tool) -> CallStarted:
    return CallStarted(planned.call.call_id, tool.name, tool.replay == "idempotent")


def predicates_ms(effect: RunCalls, agent: AgentDefinition, run: Run) -> int:
    """How long functions of the user's may take that decide about the calls; 0 where there are none."""
    tools = [agent.tools.get(planned.call.name) for planned in effect.calls if planned.action != "project"]
    asks_here = agent.approve_tool_call is not None
    asked = sum(tool.has_predicate + tool.is_scoped + asks_here for tool in tools if tool is not None)
    asked += len(agent.guardrails.on_tool_call) * len(tools)
    return asked * max((limit_ms(tool, run) for tool in tools if tool is not None), default=0)


def limit_ms(tool: Tool, run: Run) -> int:
    """Of each function of the user's that belongs to the tool."""
    return tool.timeout_ms or run.envelope.limits.tool_timeout_ms


async def gate(effect: RunCalls, agent: AgentDefinition, run: Run, contexts: Contexts) -> Gate:
    """Check every call that has not run: known tool, valid arguments, verdict, context, approval.

    Raises `CancelFirst` and `StepOver` where there is no time left to ask a predicate.
    """
    opening: list[Event] = []
    fired: list[Event] = []
    running: list[PlannedCall] = []
    delegated: list[PlannedCall] = []
    items: list[ItemRow] = []
    item_call_ids: list[str] = []
    run_id = run.envelope.run_id
    hands_over = False
    for planned in effect.calls:
        call = planned.call
        if planned.action == "project":
            running.append(planned)
            continue
        if planned.action == "lost":
            opening.append(
                Rejection(f"The run that did {call.name} is not waited for any more.", "child-failed").event(planned)
            )
            continue
        tool = agent.tools.get(call.name)
        if tool is not None and call.arguments is not None and agent.guardrails.on_tool_call:
            planned, guarded = await contexts.guards.of_call(planned, run)
            fired.extend(guarded.fired)
            call = planned.call
            if guarded.blocked is not None:
                opening.append(Rejection(guarded.blocked, "blocked", guarded.reason).event(planned))
                continue
        if not planned.is_as_approved(call.arguments):
            opening.append(Rejection.of_denial(CHANGED).event(planned))
            continue
        late = planned if planned.is_late else None
        if late is not None:
            planned = replace(planned, verdict="none", denial_reason=None)
        rejection = _rejection(planned, tool, agent) or too_deep(planned, tool, run)
        rejection = rejection or not_made(planned, tool, run, is_first=not hands_over) or await _misfit(tool, contexts)
        if rejection is not None:
            opening.append(rejection.event(planned))
            continue
        assert tool is not None
        assert call.arguments is not None
        denial: Rejection | None = None
        if planned.action == "again" and planned.verdict == "approved" and not tool.approval.is_given_by(planned.by):
            denial = Rejection.of_denial(NO_RESPONSE)
        asks = planned.action in ("start", "again") and planned.verdict == "none"
        if asks and await _needs_approval(planned, tool, agent, run, contexts):
            if agent.approve_tool_call is not None:
                denial = await _decided_here(agent, call, run, effect.step, contexts)
            elif late is not None:
                denial = _judged_late(late, tool)
            elif run.envelope.checkpoint.taken_up or planned.action == "again":
                denial = Rejection.of_denial(NO_RESPONSE)
            else:
                items.append(item_of_call(binding_of_call("approval", run_id, effect.step, call), tool.approval))
                item_call_ids.append(call.call_id)
        if denial is not None:
            opening.append(denial.event(planned))
            continue
        hands_over = hands_over or tool.transfers_to is not None
        if tool.is_client:
            items.append(item_of_call(binding_of_call("client_tool", run_id, effect.step, call)))
        if item_call_ids[-1:] == [call.call_id] or tool.is_client:
            continue
        if tool.delegation is not None:
            delegated.append(planned)
            continue
        running.append(planned)
        if len(running) <= run.envelope.limits.tool_concurrency:
            opening.append(start_of(planned, tool))
    if items:
        return Gate((), (), tuple(items), tuple(item_call_ids), tuple(fired))
    return Gate((*fired, *opening), tuple(running), delegated=tuple(delegated))


def _judged_late(planned: PlannedCall, tool: Tool) -> Rejection | None:
    """Of a verdict that came when the turn had been taken up, by somebody whom no door has looked at (APR-012)."""
    if planned.verdict == "denied":
        return Rejection.of_denial(planned.denial_reason)
    return None if tool.approval.is_given_by(planned.by) else Rejection.of_denial(NO_RESPONSE)


def _rejection(planned: PlannedCall, tool: Tool | None, agent: AgentDefinition) -> Rejection | None:
    """None where the call may go on."""
    call = planned.call
    if tool is None:
        known = ", ".join(sorted(agent.tools)) or "none"
        return Rejection(f"There is no tool named {call.name!r}. Available tools: {known}.", "unknown-tool")
    if call.arguments is None:
        text = f"The arguments of {call.name} are not a JSON object. Send the call again with valid JSON."
        return Rejection(text, "invalid-arguments")
    try:
        tool.validate(call.arguments)
    except ToolArgumentsError as error:
        return Rejection(text_of(error), "invalid-arguments")
    except BaseException as error:  # noqa: BLE001 - a validator of the user's; nothing is awaited here
        return Rejection(f"The arguments of {call.name} could not be checked: {describe(error)}", "invalid-arguments")
    return Rejection.of_denial(planned.denial_reason) if planned.verdict == "denied" else None


async def _misfit(tool: Tool | None, contexts: Contexts) -> Rejection | None:
    """The application's value for the tool is not what the tool declares."""
    problem = await contexts.problem(tool) if tool is not None else None
    if tool is None or problem is None:
        return None
    return Rejection(f"The context of {tool.name} is not valid: {problem}. The tool cannot be used.", "invalid-context")


async def _needs_approval(planned: PlannedCall, tool: Tool, agent: AgentDefinition, run: Run, contexts: Contexts) -> bool:
    """What the policy or the predicate says; True where that does not say it in time (APR-002, PTH-005)."""
    arguments: Mapping[str, object] = planned.call.arguments or {}
    if tool.name in run.envelope.policy.narrowed(agent.policy).required_approvals:
        return True
    if not tool.has_predicate:
        return tool.needs_approval(arguments)
    stop = contexts.stop
    signal = stop.signal()
    context = contexts.of(planned, tool, signal, run, 1)
    hooks = replace(contexts.hooks, limit_ms=limit_ms(tool, run))
    try:
        return bool(await hooks.ask(tool.name, lambda: bool(tool.needs_approval(arguments, context))))
    except (Broken, LimitPassed):
        return True
    finally:
        stop.forget(signal)


async def _decided_here(agent: AgentDefinition, call: ToolUsePart, run: Run, step: int, contexts: Contexts) -> Rejection | None:
    """The verdict of the agent's own approver: what is not plainly allowed is denied, also when it raises (APR-003)."""
    approver, envelope = agent.approve_tool_call, run.envelope
    assert approver is not None
    request = ToolCallRequest(
        envelope.scope, envelope.run_id, agent.name, step, call.call_id, call.name, call.arguments or {}, agent.deps
    )
    hooks = replace(contexts.hooks, limit_ms=limit_ms(agent.tools[call.name], run))
    try:
        allowed = await hooks.ask(call.name, approver, request)
    except (Broken, LimitPassed):
        allowed = False
    return None if allowed is True else Rejection.of_denial(DENIED_HERE)
