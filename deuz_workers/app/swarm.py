"""Swarms as an application writes them: a graph of tasks, each an agent with a prompt or a reducer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Literal, cast

from deuz_workers.app.agent import Agent, check_policy
from deuz_workers.app.conversation import Content, GivenMessage, first_messages
from deuz_workers.app.names import check_name
from deuz_workers.app.order import Options, budget_record, message_rows, shared_record, when
from deuz_workers.app.reducer import Reducer
from deuz_workers.app.registry import AppRegistry
from deuz_workers.app.stored_runs import MOST_SLOTS
from deuz_workers.core.codec import digest
from deuz_workers.core.dynamic_limits import DynamicLimits
from deuz_workers.core.envelope import AgentRunEnvelope, encode_body
from deuz_workers.core.graph import check_graph, ranks
from deuz_workers.core.messages import message_to_record
from deuz_workers.core.names import run_scope_key
from deuz_workers.core.policy import NO_POLICY, ExecutionPolicy
from deuz_workers.core.shared_budget import SharedBudget, shared_keys
from deuz_workers.core.spawning import SwarmBounds, task_envelope
from deuz_workers.core.task_request import MOST_TIMEOUT_MS, are_task_ids, is_timeout
from deuz_workers.core.usage import Budget, check_budget
from deuz_workers.engine.spawning import binding_of_task
from deuz_workers.errors import ConfigurationError, SwarmDefinitionError
from deuz_workers.ports.runtime import Ids
from deuz_workers.ports.store import NewRun, NewSwarm, NewTask


class Task:
    """One node of a swarm. Its run has the id `<swarm's run id>/<task id>`."""

    def __init__(
        self,
        task_id: str,
        *,
        agent: str | Agent | None = None,
        reducer: str | Reducer | None = None,
        prompt: Content | None = None,
        messages: Iterable[GivenMessage] | None = None,
        depends_on: Sequence[str] = (),
        after: Sequence[str] = (),
        timeout_ms: int | None = None,
        budget: Budget | None = None,
        queue: str | None = None,
    ) -> None:
        """Exactly one of `agent` and `reducer`.

        It begins when all tasks in `depends_on` have completed and all in `after` have ended, in whatever way. An agent starts
        from `prompt` or `messages`, and the results of those that completed as one more message; with results it needs neither.
        `timeout_ms`: of one attempt, from its slot on; what follows an answer is another. `budget`: of this task, beside the
        swarm's and no more than its agent's. `queue`: None is the swarm's, else the agent's.

        Raises SwarmDefinitionError, naming the task.
        """
        for name, listed in (("depends_on", depends_on), ("after", after)):
            if not are_task_ids(listed):
                raise SwarmDefinitionError(f"task {task_id!r}: {name} is a list of task ids, not {listed!r}")
        if timeout_ms is not None and not is_timeout(timeout_ms):
            raise SwarmDefinitionError(
                f"task {task_id!r}: timeout_ms is a whole number from 1 to {MOST_TIMEOUT_MS}, not {timeout_ms!r}"
            )
        try:
            self.task_id = check_name("a task", task_id)
            self.queue = queue if queue is None else check_name("a queue", queue)
            self.budget = budget if budget is None else check_budget(f"task {task_id!r}", budget)
            if (agent is None) == (reducer is None):
                raise ConfigurationError("name an agent or a reducer, exactly one of them")
            if reducer is not None and (prompt is not None or messages is not None):
                raise ConfigurationError("a reducer gets the results of other tasks; it takes no prompt and no messages")
            needs_words = agent is not None and not ((depends_on or after) and prompt is None and messages is None)
            self.messages = first_messages(prompt, messages) if needs_words else ()
        except SwarmDefinitionError:
            raise
        except ConfigurationError as error:
            raise SwarmDefinitionError(f"task {task_id!r}: {error.message}") from None
        self.kind: Literal["agent", "reducer"] = "agent" if agent is not None else "reducer"
        bound = agent if agent is not None else cast("str | Reducer", reducer)
        self.binding = bound if isinstance(bound, str) else bound.name
        self.depends_on = tuple(dict.fromkeys(depends_on))
        self.after = tuple(dict.fromkeys(after))
        self.timeout_ms = timeout_ms

    def __repr__(self) -> str:
        return f"<Task {self.task_id!r} {self.kind} {self.binding!r}>"


def _lower(one: Budget | None, other: Budget | None) -> Budget | None:
    """What both allow."""
    if one is None or other is None:
        return one or other
    tokens = [limit for limit in (one.tokens, other.tokens) if limit is not None]
    micros = [limit for limit in (one.usd_micros, other.usd_micros) if limit is not None]
    return Budget(min(tokens, default=None), min(micros, default=None))


class Swarm:
    """A graph of tasks. One object may be run any number of times."""

    def __init__(
        self,
        name: str,
        tasks: Iterable[Task],
        *,
        concurrency: int = 5,
        budget: Budget | None = None,
        queue: str | None = None,
        policy: ExecutionPolicy = NO_POLICY,
        dynamic: DynamicLimits | None = None,
    ) -> None:
        """`concurrency`: tasks that run at a time, over the whole pool. `budget`: what all tasks together may spend.

        `policy`: what every task may do, beside what its agent's says, also those that are created later. `dynamic`: how many
        tasks may be created by others; None: none.

        Raises SwarmDefinitionError: no tasks, a repeated id, a dependency that is no task, a cycle, a bad concurrency.
        """
        self.name = check_name("a swarm", name)
        self.tasks = tuple(tasks)
        self.queue = queue if queue is None else check_name("a queue", queue)
        self.budget = budget if budget is None else check_budget(f"swarm {name!r}", budget)
        for task in self.tasks:
            if not isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance] - what users pass
                raise SwarmDefinitionError(f"swarm {name!r}: a {type(task).__name__} is no task; pass Task(...)")
        if type(concurrency) is not int or not 1 <= concurrency <= MOST_SLOTS:
            raise SwarmDefinitionError(
                f"swarm {name!r}: concurrency is a whole number from 1 to {MOST_SLOTS}, not {concurrency!r}"
            )
        self.concurrency = concurrency
        self.policy = check_policy(f"swarm {name!r}", policy) or NO_POLICY
        self.dynamic = dynamic
        if dynamic is not None and len(self.tasks) > dynamic.max_tasks:
            raise SwarmDefinitionError(f"swarm {name!r} has {len(self.tasks)} tasks; max_tasks is {dynamic.max_tasks}")
        check_graph(name, self._edges())

    def __repr__(self) -> str:
        return f"<Swarm {self.name!r}, {len(self.tasks)} tasks>"

    def check_bindings(self, registry: AppRegistry) -> None:
        """Raises SwarmDefinitionError for a task whose agent or reducer the application does not know."""
        if registry.is_client:
            return
        for task in self.tasks:
            known = registry.agent(task.binding) if task.kind == "agent" else registry.reducer(task.binding)
            if known is None:
                names = sorted(found.name for found in (registry.agents if task.kind == "agent" else registry.reducers))
                raise SwarmDefinitionError(
                    f"task {task.task_id!r} of swarm {self.name!r}: there is no {task.kind} {task.binding!r}; "
                    f"the application knows {', '.join(names) or 'none'}"
                )

    def new_run(self, ids: Ids, registry: AppRegistry, options: Options, trace: str | None = None) -> tuple[NewRun, NewSwarm]:
        """The rows of one run of this swarm; `trace`: see `AgentRunEnvelope`."""
        rid = ids.rid()
        run_id = options.run_id or str(rid)
        budget = options.budget or self.budget
        shared = options.shared
        scopes = ((run_scope_key(rid),) if budget else ()) + shared_keys(shared)
        policy = self.policy.narrowed(options.policy)
        own = AgentRunEnvelope(
            rid, options.scope, run_id, "swarm", self.name, scopes=scopes, shared=shared, policy=policy, trace=trace
        )
        head = NewRun(
            rid,
            options.scope,
            run_id,
            "swarm",
            self.name,
            encode_body(own),
            queue=options.queue or self.queue or "default",
            priority=options.priority,
            start=when("start_at", options.start_at),
            deadline=when("deadline", options.deadline),
            tags=dict(options.tags),
            idempotency_key=options.idempotency_key,
            input_digest=self._digest(budget, shared, policy),
            budget=budget,
            trace=trace,
        )
        order = ranks(self._edges())
        bounds = SwarmBounds(policy, scopes, shared, trace)
        tasks = tuple(
            NewTask(
                task.task_id,
                self._task_run(ids, registry, task, head, bounds),
                task.depends_on,
                order[task.task_id],
                task.after,
                task.timeout_ms,
            )
            for task in self.tasks
        )
        return head, NewSwarm(self.concurrency, tasks, self.dynamic)

    def _task_run(self, ids: Ids, registry: AppRegistry, task: Task, head: NewRun, bounds: SwarmBounds) -> NewRun:
        rid = ids.rid()
        known = registry.agent(task.binding) if task.kind == "agent" else registry.reducer(task.binding)
        binding = binding_of_task(known)
        binding = replace(binding, budget=_lower(task.budget, binding.budget))
        envelope = task_envelope(head.scope, head.run_id, task.task_id, rid, task.kind, task.binding, binding, bounds)
        return NewRun(
            rid,
            head.scope,
            envelope.run_id,
            task.kind,
            task.binding,
            encode_body(envelope),
            message_rows([message_to_record(message) for message in task.messages]),
            queue=task.queue or (head.queue if head.queue != "default" else binding.queue),
            priority=head.priority,
            deadline=head.deadline,
            tags=head.tags,
            concurrency_key=binding.concurrency_key,
            budget=binding.budget,
        )

    def _edges(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(task.task_id, tuple(dict.fromkeys((*task.depends_on, *task.after)))) for task in self.tasks]

    def _digest(self, budget: Budget | None, shared: tuple[SharedBudget, ...], policy: ExecutionPolicy) -> str:
        tasks = [
            {
                "id": task.task_id,
                "kind": task.kind,
                "binding": task.binding,
                "messages": [message_to_record(message) for message in task.messages],
                "depends_on": sorted(task.depends_on),
                "budget": budget_record(task.budget),
                **({"after": sorted(task.after)} if task.after else {}),
                **({} if task.timeout_ms is None else {"timeout_ms": task.timeout_ms}),
            }
            for task in self.tasks
        ]
        asked: dict[str, object] = {
            "swarm": self.name,
            "tasks": tasks,
            "slots": self.concurrency,
            "budget": budget_record(budget),
        }
        if record := policy.to_record():
            asked["policy"] = record
        if self.dynamic is not None:
            asked["dynamic"] = asdict(self.dynamic)
        return digest({**asked, **shared_record(shared)})
