"""Calls that other agents do: the runs that the suspending commit creates, and what they inherit where they are executed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from deuz_workers.core.change import Bell, Head
from deuz_workers.core.codec import encode
from deuz_workers.core.delegation import Delegate, delegated
from deuz_workers.core.effects import PlannedCall
from deuz_workers.core.events import CallDelegated, Event, Suspended
from deuz_workers.core.names import narrowing_id, run_lease_key
from deuz_workers.core.narrowing import narrowing_record
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.run import Run
from deuz_workers.core.shared_budget import SharedBudget
from deuz_workers.engine.gear import Gear
from deuz_workers.errors import LeaseStoreUnavailableError
from deuz_workers.ports.definition import AgentDefinition, Registry

CANCEL_BATCH = 500
"""Delegated runs that one statement cancels."""


def delegate(
    gear: Gear, agent: AgentDefinition, run: Run, calls: Sequence[PlannedCall], due_in_ms: int | None
) -> tuple[Event, ...]:
    """What the commit that suspends `run` on these calls has to save; their runs are created by it.

    `due_in_ms`: when it is looked at again, whether they have ended or not.
    """
    made = [_delegated(gear, agent, run, planned) for planned in calls]
    return (*made, Suspended(tuple(event.item for event in made), (), due_in_ms))


def _delegated(gear: Gear, agent: AgentDefinition, run: Run, planned: PlannedCall) -> CallDelegated:
    call, delegation = planned.call, agent.tools[planned.call.name].delegation
    assert delegation is not None
    known = gear.registry.agent(delegation.agent)
    to = Delegate(delegation.agent, budget=delegation.budget, concurrency_key=delegation.concurrency_key)
    to = replace(to, is_quiet=delegation.stream == "none")
    if known is not None:
        to = replace(to, limits=known.limits, policy=known.policy.narrowed(agent.policy))
    prompt = (call.arguments or {}).get("prompt")
    return delegated(run.envelope, run.step, call, prompt if isinstance(prompt, str) else "", to, gear.ids.rid())


@dataclass(slots=True)
class Inherited:
    """Agents as they are executed below others: with the guardrails of calls and results, and the approver, of all above.

    Functions are never stored, so a process that does not know one of those above cannot execute the run.
    """

    registry: Registry
    _made: dict[tuple[str, ...], tuple[tuple[AgentDefinition, ...], AgentDefinition]] = field(
        default_factory=dict[tuple[str, ...], tuple[tuple[AgentDefinition, ...], AgentDefinition]]
    )

    def of(self, agent: AgentDefinition, run: Run) -> AgentDefinition | None:
        """`agent` itself for a run that nobody delegated; None where one above is not known here (CHD-002)."""
        parent = run.envelope.parent
        if parent is None:
            return agent
        above = [self.registry.agent(name) for name in parent.path]
        known = tuple(one for one in above if one is not None)
        if len(known) < len(above):
            return None
        path = (*parent.path, agent.name)
        kept = self._made.get(path)
        if kept is None or any(one is not other for one, other in zip(kept[0], (*known, agent), strict=True)):
            kept = self._made[path] = ((*known, agent), _below(known, agent))
        return kept[1]


def _below(above: tuple[AgentDefinition, ...], agent: AgentDefinition) -> AgentDefinition:
    """Guardrails from the root's down, each once; the nearest approver decides."""
    rails = {
        hook: tuple(dict.fromkeys(rail for one in (*above, agent) for rail in getattr(one.guardrails, hook)))
        for hook in ("on_tool_call", "on_tool_result")
    }
    approver = next((one.approve_tool_call for one in (agent, *reversed(above)) if one.approve_tool_call is not None), None)
    return replace(agent, guardrails=replace(agent.guardrails, **rails), approve_tool_call=approver)


async def narrow_children(gear: Gear, run: Run, policy: ExecutionPolicy, shared: tuple[SharedBudget, ...]) -> tuple[Bell, ...]:
    """A note for every run that `run` waits for; returns those that have to look.

    Stored before what narrows `run` itself counts as seen: a death in here leaves that unseen, and whoever looks next goes on.
    What a run was told already, by whoever narrowed the one above, is not written again.
    """
    envelope, bells = run.envelope, list[Bell]()
    body = encode(narrowing_record(policy, shared))
    for below in await gear.store.tree(envelope.scope, envelope.run_id):
        if below.parent_rid == envelope.rid:
            once = narrowing_id(below.rid, body)
            noted = await gear.store.add_note(envelope.scope, below.run_id, "policy", body, note_id=once)
            bells.extend(() if noted is None else (noted.bell,))
    return tuple(bells)


async def cancel_children(gear: Gear, head: Head) -> tuple[Bell, ...]:
    """Work after the end: a cancel for every delegated run that goes on; returns those that have to look.

    A death in here leaves the ended run due, and whoever looks at it next goes on.
    """
    bells: list[Bell] = []
    more = True
    while more:
        cascade = await gear.store.cancel_children(head.rid, CANCEL_BATCH)
        bells.extend(cascade.bells)
        more = cascade.more
    for bell in bells:
        try:
            await gear.leases.signal(run_lease_key(bell.scope, bell.run_id), "cancel")
        except LeaseStoreUnavailableError:
            break  # their next commits find the notes
    return tuple(bells)
