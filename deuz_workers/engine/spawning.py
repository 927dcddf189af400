"""The end of a swarm task, with the tasks that follow from it: asked for, checked as a set, created by the same commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from deuz_workers.core.dynamic_limits import MOST_TASKS
from deuz_workers.core.events import Event, Finished
from deuz_workers.core.evolve import evolve_all
from deuz_workers.core.failure import describe
from deuz_workers.core.run import Run
from deuz_workers.core.spawning import (
    TaskBinding,
    check_forms,
    check_requests,
    named_tasks,
    spawning,
    with_problem,
    with_spawning,
)
from deuz_workers.core.task_request import TaskRequest
from deuz_workers.engine.committer import TasksRefused
from deuz_workers.engine.user_code import Broken, LimitPassed
from deuz_workers.errors import SpawnRefusedError, as_record
from deuz_workers.ports.definition import AgentDefinition, FailureContext, ReducerDefinition, Registry, SpawnContext

if TYPE_CHECKING:
    from deuz_workers.engine.leg import Leg

NO_ROOM = "others took the last places that max_tasks leaves"


async def end_task(leg: Leg, events: tuple[Event, ...]) -> None:
    """Save the end of the task. One that may not create what it asks for fails with nothing created (DYN-007).

    Raises what a commit raises.
    """
    run = evolve_all(leg.run, events)
    if run.envelope.status == "completed":
        try:
            requests = await _asked_by(leg, run)
            run = evolve_all(leg.run, events)
            await leg.committer.save(await _with_tasks(leg, run, requests, has_failed=False))
            return
        except (SpawnRefusedError, TasksRefused) as refused:
            error = refused if isinstance(refused, SpawnRefusedError) else SpawnRefusedError(NO_ROOM)
            ended = next(place for place, event in enumerate(events) if isinstance(event, Finished))
            events = (*events[:ended], _failed(error))  # an extraction that would have followed does not
    await _save_failure(leg, events)


async def _save_failure(leg: Leg, events: tuple[Event, ...]) -> None:
    run = evolve_all(leg.run, events)
    hook = None if leg.own is None or run.envelope.cancelled else leg.own.on_failure
    if hook is None:
        await leg.committer.save(run)
        return
    if not leg.run.envelope.is_final:
        await leg.about_to_ask(leg.hooks().limit_ms, "on_failure")
        run = evolve_all(leg.run, events)
    envelope = run.envelope
    assert envelope.task_id is not None
    context = FailureContext(envelope.scope, envelope.run_id, envelope.task_id, envelope.error, envelope.reason)
    try:
        requests = await _listed(leg, "on_failure", await _asked(leg, "on_failure", hook, context))
        await leg.committer.save(await _with_tasks(leg, run, requests, has_failed=True))
    except SpawnRefusedError as refused:
        await leg.committer.save(with_problem(run, refused.message))
    except TasksRefused:
        await leg.committer.save(with_problem(run, NO_ROOM))


async def _asked_by(leg: Leg, run: Run) -> Sequence[TaskRequest]:
    """What the completed task asks for. What was paid for is saved before its agent's function is asked."""
    definition, envelope = leg.own, run.envelope  # what the task is bound to, whoever it was handed to
    if not isinstance(definition, AgentDefinition):
        return leg.requests
    if definition.spawn is None:
        return ()
    await leg.about_to_ask(leg.hooks().limit_ms, "spawn")
    assert envelope.task_id is not None
    context = SpawnContext(envelope.scope, envelope.run_id, envelope.task_id)
    return await _listed(leg, "spawn", await _asked(leg, "spawn", definition.spawn, envelope.output, context))


async def _asked(leg: Leg, label: str, function: Any, *given: object) -> object:
    try:
        return await leg.hooks().ask(label, function, *given)
    except Broken as broken:
        raise SpawnRefusedError(f"{label} raised {describe(broken.error)}") from None
    except LimitPassed:
        raise SpawnRefusedError(f"{label} took too long") from None


async def _listed(leg: Leg, label: str, given: object) -> Sequence[TaskRequest]:
    """Raises `SpawnRefusedError` for what is no list. To go through anything else, such as a generator, is to run user code."""
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise SpawnRefusedError(f"{label} returned a {type(given).__name__}; return a list of TaskRequest(...)")
    if isinstance(given, list | tuple):
        return cast("Sequence[TaskRequest]", tuple(cast("Sequence[object]", given)))
    return cast("Sequence[TaskRequest]", await _asked(leg, label, _taken, given))


def _taken(given: Iterable[object]) -> Sequence[object]:
    """All of it, or more than any swarm may have of what has no end."""
    return tuple(islice(given, MOST_TASKS + 1))


async def _with_tasks(leg: Leg, run: Run, requests: Sequence[TaskRequest], *, has_failed: bool) -> Run:
    if not requests:
        return run
    envelope, registry = run.envelope, leg.gear.registry
    assert envelope.swarm_rid is not None
    assert envelope.task_id is not None
    named = named_tasks(envelope.task_id, check_forms(envelope.task_id, requests))
    ground = await leg.gear.store.spawn_ground(envelope.swarm_rid, envelope.task_id, named)
    assert ground is not None
    check_requests(envelope.task_id, requests, ground, lambda kind, name: _knows(registry, kind, name), has_failed=has_failed)
    bindings = {name: _binding(registry, name) for name in ((request.agent or request.reducer or "") for request in requests)}
    rids = [leg.gear.ids.rid() for _ in requests]
    return with_spawning(run, spawning(envelope, requests, ground, bindings, rids))


def _knows(registry: Registry, kind: str, name: str) -> bool:
    return (registry.agent(name) if kind == "agent" else registry.reducer(name)) is not None


def _binding(registry: Registry, name: str) -> TaskBinding:
    found = registry.agent(name) or registry.reducer(name)
    return binding_of_task(found)


def binding_of_task(found: AgentDefinition | ReducerDefinition | None) -> TaskBinding:
    """What the run of a task gets from it; nothing is known of None."""
    match found:
        case AgentDefinition():
            return TaskBinding(found.limits, found.policy, found.budget, found.queue, found.concurrency_key)
        case ReducerDefinition():
            return TaskBinding(policy=found.policy, budget=found.budget)
        case None:
            return TaskBinding()


def _failed(error: SpawnRefusedError) -> Finished:
    return Finished("failed", error=as_record(error))
