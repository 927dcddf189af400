"""Tools of servers (MCP) in a step: what they offer joins the agent's own tools, and the run records what it goes on with.

A run goes on with other tools than it recorded only where its agent accepts that, and is not taken up with them while a call is
open that was chosen from the old ones: it is refused then and stays as it is, so that it can wait for the old ones. One whose
servers change while it goes on is stopped before its next model call, or records the new ones in the commit that admits it.
"""

from __future__ import annotations

from dataclasses import dataclass

from deuz_workers.core.catalog import (
    CATALOG_CHANGED,
    SETTING,
    Fingerprints,
    ToolDrift,
    across_resume,
    detect_tool_drift,
    mid_run,
    open_server_calls,
    recorded_catalog,
)
from deuz_workers.core.events import CatalogRecorded, Finished, Warned
from deuz_workers.core.run import Run
from deuz_workers.engine.leg import Leg, LoopEnd
from deuz_workers.errors import DeuzError, ExecutionPolicyError, McpUnavailableError, as_record
from deuz_workers.ports.catalog import NO_CATALOG, Catalogs
from deuz_workers.ports.definition import AgentDefinition

CLASH = "unsupported-tool"
"""Type of the warning about a tool that is not offered."""
ABOUT_CALLS = frozenset(("retry", "reconcile"))
"""Notes that take up a run which had stopped for calls whose outcome nobody knew."""


class CatalogRefused(Exception):
    """The run cannot go on here with what its servers offer now, and nothing of it was written."""

    def __init__(self, error: DeuzError) -> None:
        super().__init__()
        self.error = error


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look at the servers of a run's agent found."""

    was_suspended: bool
    unreachable: McpUnavailableError | None = None


async def look_at_servers(leg: Leg) -> Sight | None:
    """Servers are connected to, and the leg has their tools. None: the agent has none and the run recorded none.

    Nothing is written, and nothing is decided yet: what the run waits for may not have come.
    """
    agent, envelope = leg.own, leg.committer.run.envelope
    if not isinstance(agent, AgentDefinition) or envelope.is_final or leg.head.is_to_end:
        return None
    if agent.mcp is None and recorded_catalog(envelope.binding) is None:
        return None
    is_taken_up = envelope.status == "suspended" or any(note.kind in ABOUT_CALLS for note in leg.notes)
    try:
        leg.own = await leg.gear.catalogs.offered(agent)
    except McpUnavailableError as error:
        return Sight(is_taken_up, error)
    return Sight(is_taken_up)


async def settle_tools(leg: Leg, sight: Sight) -> LoopEnd | None:
    """Behind the inputs: the run goes on with these tools, which is carried, or has ended.

    Raises `CatalogRefused` where it cannot go on, with nothing written.
    """
    agent, envelope = leg.own, leg.run.envelope
    assert isinstance(agent, AgentDefinition)
    if envelope.cancelled or envelope.status == "suspended" or leg.ending_by_time(leg.run) is not None:
        return None
    if sight.unreachable is not None:
        if envelope.binding is not None:
            raise CatalogRefused(sight.unreachable)
        await leg.commit(Finished("failed", error=as_record(sight.unreachable)))
        return "ended"
    offered, recorded = fingerprints_of(agent), recorded_catalog(envelope.binding)
    if recorded is None:
        recording = (CatalogRecorded(offered),) if envelope.binding is not None else ()  # else `Bound` says it
        leg.carry(*recording, *clashes(agent))
        return None
    drift = detect_tool_drift(recorded, offered)
    if drift.is_empty or not (sight.was_suspended or agent.mcp is None):
        return None
    if refusal := refused(agent, leg.run, drift):
        raise CatalogRefused(refusal)
    leg.carry(CatalogRecorded(offered), Warned(SETTING, across_resume(drift, accepted=True)), *clashes(agent))
    return None


async def refresh_tools(leg: Leg) -> LoopEnd | None:
    """Before a model call of a run that has begun: what the servers offer now is what the run recorded, or the run is stopped,
    or records it in the commit that admits the call."""
    agent = leg.own
    assert isinstance(agent, AgentDefinition)
    recorded = recorded_catalog(leg.run.envelope.binding)
    if agent.mcp is None or recorded is None:
        return None
    accepts = agent.mcp.on_change == "accept"
    leg.own = agent = await leg.gear.catalogs.offered(agent)
    offered = fingerprints_of(agent)
    if offered == recorded:
        return None
    drift = detect_tool_drift(recorded, offered)
    if accepts:
        leg.carry(CatalogRecorded(offered), Warned(SETTING, mid_run(drift, accepted=True)), *clashes(agent))
        return None
    warning = Warned(SETTING, mid_run(drift, accepted=False))
    await leg.commit(warning, Finished("stopped", CATALOG_CHANGED, drift.to_record()))
    return "ended"


async def check_resume(catalogs: Catalogs, agent: AgentDefinition, run: Run) -> None:
    """A resume by hand, before it writes anything: the run can go on with what the servers offer now.

    Raises `ExecutionPolicyError` with the code `mcp_catalog_changed` for a run that cannot, `McpUnavailableError`.
    """
    recorded = recorded_catalog(run.envelope.binding)
    if agent.mcp is None and recorded is None:
        return
    agent = await catalogs.offered(agent)
    drift = detect_tool_drift(recorded or {}, fingerprints_of(agent))
    if recorded is not None and not drift.is_empty and (refusal := refused(agent, run, drift)):
        raise refusal


def refused(agent: AgentDefinition, run: Run, drift: ToolDrift) -> ExecutionPolicyError | None:
    """Why the run cannot be taken up with other tools; None: its agent accepts them, and nothing of the old ones is open."""
    sentence = across_resume(drift, accepted=False)
    if agent.mcp is None or agent.mcp.on_change == "stop":
        return changed(run, sentence)
    if waiting := open_server_calls(run):
        return changed(run, f"{sentence} It cannot be accepted while calls of {', '.join(sorted(set(waiting)))} are open.")
    return None


def changed(run: Run, sentence: str) -> ExecutionPolicyError:
    return ExecutionPolicyError(sentence, code="mcp_catalog_changed", run_id=run.envelope.run_id)


def fingerprints_of(agent: AgentDefinition) -> Fingerprints:
    return (agent.catalog or NO_CATALOG).fingerprints


def clashes(agent: AgentDefinition) -> tuple[Warned, ...]:
    return tuple(Warned(SETTING, sentence, CLASH) for sentence in (agent.catalog or NO_CATALOG).clashes)
