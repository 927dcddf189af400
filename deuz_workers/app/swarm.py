"""Swarms as an application writes them: a graph of tasks, each an agent with a prompt or a reducer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from deuz_workers.app.agent import Agent
from deuz_workers.app.conversation import Content, GivenMessage, first_messages
from deuz_workers.app.names import check_name
from deuz_workers.app.order import Options, budget_record, message_rows, shared_record, when
from deuz_workers.app.reducer import Reducer
from deuz_workers.app.registry import AppRegistry
from deuz_workers.core.change import RunKind
from deuz_workers.core.codec import digest
from deuz_workers.core.envelope import AgentRunEnvelope, encode_body
from deuz_workers.core.graph import check_graph, ranks
from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import message_to_record
from deuz_workers.core.names import run_scope_key, task_run_id
from deuz_workers.core.shared_budget import SharedBudget, shared_keys
from deuz_workers.core.usage import Budget, check_budget
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
        budget: Budget | None = None,
        queue: str | None = None,
    ) -> None:
        """Exactly one of `agent` and `reducer`.

        An agent starts from `prompt` or `messages`, and the results of the tasks in `depends_on` as one more message; with
        results it needs neither. `budget`: of this task, beside the swarm's. `queue`: None is the swarm's, else the agent's.

        Raises SwarmDefinitionError, naming the task.
        """
        if isinstance(depends_on, str):
            raise SwarmDefinitionError(f"task {task_id!r}: depends_on is a list of task ids, not the text {depends_on!r}")
        try:
            self.task_id = check_name("a task", task_id)
            self.queue = queue if queue is None else check_name("a queue", queue)
            self.budget = budget if budget is None else check_budget(f"task {task_id!r}", budget)
            if (agent is None) == (reducer is None):
                raise ConfigurationError("name an agent or a reducer, exactly one of them")
            if reducer is not None and (prompt is not None or messages is not None):
                raise ConfigurationError("a reducer gets the results of other tasks; it takes no prompt and no messages")
            needs_words = agent is not None and not (depends_on and prompt is None and messages is None)
            self.messages = first_messages(prompt, messages) if needs_words else ()
        except SwarmDefinitionError:
            raise
        except ConfigurationError as error:
            raise SwarmDefinitionError(f"task {task_id!r}: {error.message}") from None
        self.kind: RunKind = "agent" if agent is not None else "reducer"
        bound = agent if agent is not None else cast("str | Reducer", reducer)
        self.binding = bound if isinstance(bound, str) else bound.name
        self.depends_on = tuple(dict.fromkeys(depends_on))

    def __repr__(self) -> str:
        return f"<Task {self.task_id!r} {self.kind} {self.binding!r}>"


class Swarm:
    """A fixed graph of tasks. One object may be run any number of times."""

    def __init__(
        self, name: str, tasks: Iterable[Task], *, concurrency: int = 5, budget: Budget | None = None, queue: str | None = None
    ) -> None:
        """`concurrency`: tasks that run at a time, over the whole pool. `budget`: what all tasks together may spend.

        Raises SwarmDefinitionError: no tasks, a repeated id, a dependency that is no task, a cycle, a bad concurrency.
        """
        self.name = check_name("a swarm", name)
        self.tasks = tuple(tasks)
        self.queue = queue if queue is None else check_name("a queue", queue)
        self.budget = budget if budget is None else check_budget(f"swarm {name!r}", budget)
        for task in self.tasks:
            if not isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance] - what users pass
                raise SwarmDefinitionError(f"swarm {name!r}: a {type(task).__name__} is no task; pass Task(...)")
        if type(concurrency) is not int or concurrency < 1:
            raise SwarmDefinitionError(f"swarm {name!r}: concurrency is a whole number from 1, not {concurrency!r}")
        self.concurrency = concurrency
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

    def new_run(
        self, ids: Ids, agents: Mapping[str, Agent], options: Options, trace: str | None = None
    ) -> tuple[NewRun, NewSwarm]:
        """The rows of one run of this swarm; `trace`: see `AgentRunEnvelope`."""
        rid = ids.rid()
        run_id = options.run_id or str(rid)
        budget = options.budget or self.budget
        shared = options.shared
        scopes = ((run_scope_key(rid),) if budget else ()) + shared_keys(shared)
        head = NewRun(
            rid,
            options.scope,
            run_id,
            "swarm",
            self.name,
            encode_body(
                AgentRunEnvelope(rid, options.scope, run_id, "swarm", self.name, scopes=scopes, shared=shared, trace=trace)
            ),
            queue=options.queue or self.queue or "default",
            priority=options.priority,
            start=when("start_at", options.start_at),
            deadline=when("deadline", options.deadline),
            tags=dict(options.tags),
            idempotency_key=options.idempotency_key,
            input_digest=self._digest(budget, shared),
            budget=budget,
            trace=trace,
        )
        order = ranks(self._edges())
        tasks = tuple(
            NewTask(task.task_id, self._task_run(ids, agents, task, head, scopes, shared), task.depends_on, order[task.task_id])
            for task in self.tasks
        )
        return head, NewSwarm(self.concurrency, tasks)

    def _task_run(
        self,
        ids: Ids,
        agents: Mapping[str, Agent],
        task: Task,
        head: NewRun,
        scopes: tuple[str, ...],
        shared: tuple[SharedBudget, ...],
    ) -> NewRun:
        rid = ids.rid()
        run_id = task_run_id(head.run_id, task.task_id)
        known = agents.get(task.binding) if task.kind == "agent" else None
        budget = task.budget or (known.budget if known else None)
        envelope = AgentRunEnvelope(
            rid,
            head.scope,
            run_id,
            task.kind,
            task.binding,
            limits=known.limits if known else Limits(),
            scopes=((run_scope_key(rid),) if budget else ()) + scopes,
            shared=shared,
            trace=head.trace,
        )
        return NewRun(
            rid,
            head.scope,
            run_id,
            task.kind,
            task.binding,
            encode_body(envelope),
            message_rows([message_to_record(message) for message in task.messages]),
            queue=task.queue or (head.queue if head.queue != "default" else known.queue if known else "default"),
            priority=head.priority,
            deadline=head.deadline,
            tags=head.tags,
            concurrency_key=known.concurrency_key if known else None,
            budget=budget,
        )

    def _edges(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(task.task_id, task.depends_on) for task in self.tasks]

    def _digest(self, budget: Budget | None, shared: tuple[SharedBudget, ...]) -> str:
        tasks = [
            {
                "id": task.task_id,
                "kind": task.kind,
                "binding": task.binding,
                "messages": [message_to_record(message) for message in task.messages],
                "depends_on": sorted(task.depends_on),
                "budget": budget_record(task.budget),
            }
            for task in self.tasks
        ]
        asked = {"swarm": self.name, "tasks": tasks, "slots": self.concurrency, "budget": budget_record(budget)}
        return digest({**asked, **shared_record(shared)})
