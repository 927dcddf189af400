"""A graph whose result is known: leaves that answer with a number, reducers that add up, and one that creates more leaves."""

from __future__ import annotations

from collections.abc import Mapping

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.reducer import reducer
from deuz_workers.app.settings import Settings
from deuz_workers.app.swarm import Swarm, Task
from deuz_workers.core.dynamic_limits import DynamicLimits
from deuz_workers.core.task_request import TaskRequest
from deuz_workers.ports.definition import ReducerContext
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, reply

THINK_MS = 20
SPAWNED = 8


def number(request: ModelRequest) -> Entry:
    """The number that stands last in what it was asked."""
    digits = [word for word in request.messages[0].text.replace("<", " ").split() if word.isdigit()]
    return reply(digits[-1], delay_ms=THINK_MS)


@reducer
def add(results: Mapping[str, object]) -> int:
    """All that came before, as one number."""
    return sum(int(str(value)) for value in results.values())


@reducer
def grow(results: Mapping[str, object], context: ReducerContext) -> int:
    """Creates leaves that are worth one each, and their sum."""
    leaves = [TaskRequest(f"leaf-{place}", agent="leaf", prompt="1") for place in range(SPAWNED)]
    names = tuple(f"{context.task_id}/{leaf.key}" for leaf in leaves)
    context.spawn([*leaves, TaskRequest("sum", reducer="add", depends_on=names)])
    return 0


def graph(width: int) -> Swarm:
    """`width` leaves, one more level behind each, one join of all; and beside them a task that creates others."""
    first = [Task(f"a{place}", agent="leaf", prompt=str(place)) for place in range(width)]
    second = [Task(f"b{place}", reducer="add", depends_on=[f"a{place}"]) for place in range(width)]
    join = Task("join", reducer="add", depends_on=[task.task_id for task in second])
    return Swarm(
        "graph",
        [*first, *second, join, Task("grow", reducer="grow")],
        concurrency=48,
        dynamic=DynamicLimits(max_tasks=10_000, max_spawn_depth=1),
    )


def application(settings: Settings | None = None) -> Deuz:
    """For workers and for whoever watches them."""
    leaf = Agent("leaf", model=MockModel.function(number))
    return Deuz([leaf], reducers=[add, grow], settings=settings or Settings())


app = application()
