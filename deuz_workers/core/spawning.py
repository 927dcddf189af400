"""Tasks that a task creates with its own end: which ones it may, and what their rows are. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast
from uuid import UUID

from deuz_workers.core.change import MessageRow, SpawnedTask, Spawning, Waits
from deuz_workers.core.codec import encode
from deuz_workers.core.dynamic_limits import DynamicLimits
from deuz_workers.core.envelope import AgentRunEnvelope, decode_body, encode_body
from deuz_workers.core.graph import find_cycle, ranks
from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import message_to_record, user
from deuz_workers.core.names import run_scope_key, swarm_run_id, task_run_id
from deuz_workers.core.policy import NO_POLICY, ExecutionPolicy
from deuz_workers.core.run import Run
from deuz_workers.core.shared_budget import SharedBudget
from deuz_workers.core.successor import successor
from deuz_workers.core.task_request import MOST_TIMEOUT_MS, TaskRequest, are_task_ids, is_timeout
from deuz_workers.core.usage import Budget
from deuz_workers.errors import SpawnRefusedError

_KEY = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_TASK_ID = re.compile(r"[A-Za-z0-9._:/-]+")
"""Of tasks of a definition and of those that tasks created."""
MAX_TASK_ID_CHARS = 1_000
"""With the swarm's own id it names the run of the task; an index row of Postgres takes 2,700 bytes."""


@dataclass(frozen=True, slots=True)
class TaskBinding:
    """What the run of a task gets from the agent or reducer that it is bound to."""

    limits: Limits = field(default_factory=Limits)
    policy: ExecutionPolicy = NO_POLICY
    budget: Budget | None = None
    queue: str = "default"
    concurrency_key: str | None = None


@dataclass(frozen=True, slots=True)
class SpawnGround:
    """What a task that may create others has to know, of one moment."""

    total: int
    """Tasks of the swarm."""
    depth: int
    """Of the task."""
    limits: DynamicLimits | None
    """None: tasks of this swarm create none."""
    body: str
    """Of the swarm's own head: what all its tasks may do and spend."""
    queue: str
    existing: frozenset[str]
    """Of the tasks that were asked about."""


def named_tasks(parent: str, requests: Sequence[TaskRequest]) -> tuple[str, ...]:
    """Ids of which it matters whether they exist; without what can be none, since not every store can be asked for that."""
    named = [f"{parent}/{request.key}" for request in requests]
    named += [up for request in requests for up in (*request.depends_on, *request.after)]
    return tuple(task_id for task_id in dict.fromkeys(named) if _TASK_ID.fullmatch(task_id))


def check_forms(parent: str, requests: Sequence[object]) -> Sequence[TaskRequest]:
    """The requests, each of which could be one. Raises `SpawnRefusedError`, which names what is wrong."""
    for request in requests:
        _check_request(parent, request)
    return cast("Sequence[TaskRequest]", requests)


def check_requests(
    parent: str,
    requests: Sequence[TaskRequest],
    ground: SpawnGround,
    knows: Callable[[str, str], bool],
    *,
    has_failed: bool,
) -> None:
    """Raises `SpawnRefusedError`, which names what is wrong, unless all of `requests` may become tasks.

    `knows`: whether an agent or reducer ("agent", name) is registered. `has_failed`: the task that asks has, and asks for what
    follows that.
    """
    limits = ground.limits
    if limits is None:
        raise SpawnRefusedError(f"task {parent!r} asked for further tasks; its swarm has no `dynamic` limits, so it is fixed")
    _check_limits(parent, len(requests), ground, limits)
    keys = [request.key for request in requests]
    new = {f"{parent}/{key}": request for key, request in zip(keys, requests, strict=True)}
    counted = Counter(keys)
    for key in keys:
        if counted[key] > 1 or f"{parent}/{key}" in ground.existing:
            raise SpawnRefusedError(f"task {parent!r} asked for key {key!r}, which is taken; every task has an id of its own")
    for task_id, request in new.items():
        kind = "agent" if request.agent is not None else "reducer"
        name = request.agent or request.reducer or ""
        if not knows(kind, name):
            raise SpawnRefusedError(f"task {task_id!r}: there is no {kind} {name!r} here")
        for up in (*request.depends_on, *request.after):
            if up != parent and up not in new and up not in ground.existing:
                raise SpawnRefusedError(f"task {task_id!r} waits for {up!r}, which is no task of the swarm; use the full id")
        if has_failed and parent in request.depends_on:
            raise SpawnRefusedError(f"task {task_id!r} depends on {parent!r}, which has failed; it would never begin")
        if len(task_id) > MAX_TASK_ID_CHARS:
            raise SpawnRefusedError(f"the id of task {task_id[:60]!r}... is longer than {MAX_TASK_ID_CHARS} characters")
    if cycle := find_cycle(_edges_among(new)):
        raise SpawnRefusedError(f"the tasks wait for each other: {' -> '.join((*cycle, cycle[0]))}")


def spawning(
    envelope: AgentRunEnvelope,
    requests: Sequence[TaskRequest],
    ground: SpawnGround,
    bindings: Mapping[str, TaskBinding],
    rids: Sequence[UUID],
) -> Spawning:
    """The rows for the ending commit of the task of `envelope`. `bindings`: by name of agent or reducer; `rids`: one each."""
    parent = envelope.task_id or ""
    new = {f"{parent}/{request.key}": request for request in requests}
    order = ranks(_edges_among(new))
    tasks: list[SpawnedTask] = []
    for (task_id, request), rid in zip(new.items(), rids, strict=True):
        binding = bindings[request.agent or request.reducer or ""]
        own = task_envelope(
            envelope.scope,
            swarm_run_id(envelope.run_id),
            task_id,
            rid,
            "agent" if request.agent is not None else "reducer",
            request.agent or request.reducer or "",
            binding,
            SwarmBounds.from_body(ground.body),
        )
        words = () if request.prompt is None else (MessageRow(0, encode(message_to_record(user(request.prompt)))),)
        tasks.append(
            SpawnedTask(
                task_id,
                rid,
                own.run_id,
                "agent" if request.agent is not None else "reducer",
                own.agent,
                encode_body(own),
                words,
                ground.queue if ground.queue != "default" else binding.queue,
                ground.total + order[task_id],
                ground.depth + 1,
                request.timeout_ms,
                binding.concurrency_key,
                binding.budget,
            )
        )
    waits = [Waits(up, task_id, soft) for task_id, request in new.items() for up, soft in _upstream(request).items()]
    return Spawning(tuple(tasks), tuple(waits))


@dataclass(frozen=True, slots=True)
class SwarmBounds:
    """What all tasks of a swarm may do and spend together."""

    policy: ExecutionPolicy = NO_POLICY
    scopes: tuple[str, ...] = ()
    shared: tuple[SharedBudget, ...] = ()
    trace: str | None = None
    """What they are part of for whoever collects traces."""

    @classmethod
    def from_body(cls, body: str) -> SwarmBounds:
        """Of the body of the swarm's own head. Raises `CodecError`."""
        record = decode_body(body)
        policy = record.get("policy")
        return cls(
            NO_POLICY if policy is None else ExecutionPolicy.from_record(cast("Mapping[str, object]", policy)),
            tuple(cast("list[str]", record.get("scopes", []))),
            tuple(map(SharedBudget.from_record, cast("list[Mapping[str, object]]", record.get("shared", [])))),
            cast("str | None", record.get("trace")),
        )


def task_envelope(
    scope: str,
    swarm: str,
    task_id: str,
    rid: UUID,
    kind: Literal["agent", "reducer"],
    name: str,
    binding: TaskBinding,
    bounds: SwarmBounds,
) -> AgentRunEnvelope:
    """The run of a task as it is created: it may do what the swarm and its binding allow, and spends from both (SVR-001)."""
    return AgentRunEnvelope(
        rid,
        scope,
        task_run_id(swarm, task_id),
        kind,
        name,
        limits=binding.limits,
        scopes=((run_scope_key(rid),) if binding.budget else ()) + bounds.scopes,
        shared=bounds.shared,
        policy=bounds.policy.narrowed(binding.policy),
        trace=bounds.trace,
    )


def with_spawning(run: Run, spawned: Spawning) -> Run:
    """The ending run, whose commit also creates these tasks."""
    return successor(run, unsaved=replace(run.unsaved, spawning=spawned))


def with_problem(run: Run, problem: str) -> Run:
    """The failing run, whose error also says what became of its follow-up (CPN-002)."""
    envelope = run.envelope
    error = dict(envelope.error or {"name": "SwarmTaskStopped", "message": f"the task was stopped: {envelope.reason}"})
    return successor(run, envelope=successor(envelope, error={**error, "on_failure": problem}))


def _check_request(parent: str, request: object) -> None:
    if not isinstance(request, TaskRequest):
        raise SpawnRefusedError(f"task {parent!r} asked for a {type(request).__name__}; ask with TaskRequest(...)")
    key = cast(object, request.key)
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise SpawnRefusedError(f"task {parent!r} asked for key {key!r}: up to 128 letters, digits and '._:-'")
    if (request.agent is None) == (request.reducer is None):
        raise SpawnRefusedError(f"task {parent!r}, key {key!r}: name an agent or a reducer, exactly one of them")
    for name in ("depends_on", "after"):
        ups: object = getattr(request, name)
        if not are_task_ids(ups):
            raise SpawnRefusedError(f"task {parent!r}, key {key!r}: {name} is a list of task ids, not {ups!r}")
    prompt = cast(object, request.prompt)
    if prompt is not None and (request.agent is None or not isinstance(prompt, str) or not prompt):
        raise SpawnRefusedError(f"task {parent!r}, key {key!r}: a prompt is a text for an agent, not {prompt!r}")
    if request.agent is not None and prompt is None and not (request.depends_on or request.after):
        raise SpawnRefusedError(f"task {parent!r}, key {key!r}: an agent needs a prompt or results to start from")
    limit: object = request.timeout_ms
    if limit is not None and not is_timeout(limit):
        raise SpawnRefusedError(
            f"task {parent!r}, key {key!r}: timeout_ms is a whole number from 1 to {MOST_TIMEOUT_MS}, not {limit!r}"
        )


def _check_limits(parent: str, count: int, ground: SpawnGround, limits: DynamicLimits) -> None:
    if ground.depth + 1 > limits.max_spawn_depth:
        raise SpawnRefusedError(f"task {parent!r} is {ground.depth} deep; max_spawn_depth is {limits.max_spawn_depth}")
    if limits.max_spawn_per_task is not None and count > limits.max_spawn_per_task:
        raise SpawnRefusedError(f"task {parent!r} asked for {count}; max_spawn_per_task is {limits.max_spawn_per_task}")
    if ground.total + count > limits.max_tasks:
        raise SpawnRefusedError(
            f"task {parent!r} asked for {count} more than the {ground.total} tasks there are; max_tasks is {limits.max_tasks}"
        )


def _edges_among(new: Mapping[str, TaskRequest]) -> list[tuple[str, tuple[str, ...]]]:
    return [(task_id, tuple(up for up in _upstream(request) if up in new)) for task_id, request in new.items()]


def _upstream(request: TaskRequest) -> dict[str, bool]:
    """What it waits for; True: only for its end. What stands in both lists has to complete."""
    return {**dict.fromkeys(request.after, True), **dict.fromkeys(request.depends_on, False)}
