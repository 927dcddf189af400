"""What a schedule plays: runs and swarms of a few kinds, each in many variants. A variant is the same in every schedule."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from deuz_workers.app.swarm import Swarm, Task
from deuz_workers.core.delegation import child_run_id
from deuz_workers.core.dynamic_limits import DynamicLimits
from deuz_workers.core.task_request import TaskRequest
from deuz_workers.core.usage import Budget
from deuz_workers.errors import ModelRequestError, ModelUnavailableError
from deuz_workers.ports.definition import AgentDefinition, FailureContext, ReducerContext, ReducerDefinition, SpawnContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, ScriptedCall, attempts, call, calls
from deuz_workers.tools.agent import delegating_tool
from tests.simulation.agents import random_agent
from tests.simulation.tools import TOOLS

VARIANTS = 12
ENGINE = "engine"
"""The kind with random agents; its variants have no end."""
Turns = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Order:
    """A run to be enqueued."""

    agent: str
    run_id: str
    deadline_ms: int | None = None
    budget: Budget | None = None
    concurrency_key: str | None = None
    has_chat: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    agents: Mapping[str, AgentDefinition]
    orders: tuple[Order, ...] = ()
    swarm: Swarm | None = None
    reducers: Mapping[str, ReducerDefinition] = field(default_factory=lambda: dict[str, ReducerDefinition]())
    cancels: tuple[str, ...] = ()
    """Runs that somebody cancels at some time."""
    mails: tuple[str, ...] = ()
    """Runs that somebody writes to at some time."""
    denies: bool = False
    """The person says no."""
    answers: bool = True
    crowd: bool = False
    """Several people answer, see `crowd`, instead of one."""
    quarrels: bool = False
    """They do not agree, so that nobody can say how its runs end."""
    retries_failed: bool = False
    """Runs that failed for a cause which passes are taken up again."""
    signed: bool = False
    """Approvals need a token."""
    poisoned: frozenset[str] = frozenset()
    """Runs that end on a quarantine item."""
    has_timers: bool = False
    """Something of it comes due by the clock alone, so that it needs the sweep."""
    below: tuple[str, ...] = ()
    """Runs that others delegate or create, where these come so far."""

    @property
    def run_ids(self) -> tuple[str, ...]:
        ids = [order.run_id for order in self.orders]
        if self.swarm is not None:
            ids += ["s", *(f"s/{task.task_id}" for task in self.swarm.tasks)]
        return (*ids, *self.below)


def agent(name: str, turns: Turns, *, flaky: bool = False, text: str = "done") -> AgentDefinition:
    """An agent that calls these tools, turn after turn, and then says `text`. `flaky`: every turn fails at first."""
    script: list[Entry] = [calls(*_calls(turn)) for turn in turns]
    script += [text, text]  # what is said while it answers is answered too
    if flaky:
        script = [attempts(ModelUnavailableError("busy"), ModelUnavailableError("busy"), entry) for entry in script]
    tools = {used: TOOLS[used] for used in sorted({used for turn in turns for used in turn})}
    return AgentDefinition(name, MockModel(script), instructions="work", tools=tools)


def _calls(turn: tuple[str, ...]) -> list[ScriptedCall]:
    return [call(name, amount=place) for place, name in enumerate(turn)]


def _turns(draw: random.Random, names: tuple[str, ...], most: int = 3) -> Turns:
    return tuple(tuple(draw.choice(names) for _ in range(draw.randint(1, 3))) for _ in range(draw.randint(1, most)))


SAFE = ("pay", "put", "show", "fail")


def _text(draw: random.Random) -> Scenario:
    """Nothing but words."""
    many = draw.randint(1, 4)
    return Scenario("text", {"a": agent("a", ())}, tuple(Order("a", f"r{number}") for number in range(many)))


def _tools(draw: random.Random) -> Scenario:
    """Turns of one to three tools side by side."""
    agents = {name: agent(name, _turns(draw, SAFE)) for name in ("a", "b")}
    budget = Budget(tokens=1_000_000)
    return Scenario("tools", agents, (Order("a", "r0", budget=budget), Order("b", "r1"))[: draw.randint(1, 2)])


def _retries(draw: random.Random) -> Scenario:
    """A model that is busy at first."""
    return Scenario(
        "retries", {"a": agent("a", _turns(draw, SAFE, 2), flaky=True)}, (Order("a", "r0"), Order("a", "r1")), has_timers=True
    )


def _approval(draw: random.Random) -> Scenario:
    """Calls that a person must agree to, beside others."""
    turns = (*_turns(draw, SAFE, 1), ("wire", *_turns(draw, (*SAFE, "wire", "ask"), 1)[0][:2]))
    return Scenario("approval", {"a": agent("a", turns)}, (Order("a", "r0"), Order("a", "r1")), denies=draw.random() < 0.3)


def _cancel(draw: random.Random) -> Scenario:
    """Somebody cancels, whatever is going on."""
    flaky = draw.random() < 0.5
    agents = {"a": agent("a", _turns(draw, (*SAFE, "wire", "stall"))), "b": agent("b", _turns(draw, SAFE), flaky=flaky)}
    agents["c"] = agent("c", ())
    orders = (Order("a", "r0"), Order("b", "r1"), Order("c", "r2"))
    return Scenario("cancel", agents, orders, cancels=("r0", "r1", "r2"), has_timers=flaky)


def _mail(draw: random.Random) -> Scenario:
    """Somebody writes to the run, whatever is going on."""
    turns = _turns(draw, (*SAFE, "wire"), 2)
    return Scenario(
        "mail",
        {"a": agent("a", turns), "b": agent("b", (("wire",),))},
        (Order("a", "r0"), Order("b", "r1")),
        mails=("r0", "r1"),
    )


def _deadline(draw: random.Random) -> Scenario:
    """Nobody answers, and the time of the run passes."""
    return Scenario(
        "deadline",
        {"a": agent("a", (*_turns(draw, ("put", "pay"), 1), ("wire", "put")))},
        (Order("a", "r0", deadline_ms=draw.randint(20_000, 30_000)),),
        answers=False,
        has_timers=True,
    )


def _poison(draw: random.Random) -> Scenario:
    """One run kills every process that steps it, beside others that do not."""
    agents = {"a": agent("a", _turns(draw, ("put",), 2)), "bad": agent("bad", (("poison", "put"),))}
    orders = (Order("bad", "bad"), Order("a", "r0"), Order("a", "r1"))
    return Scenario("poison", agents, orders, poisoned=frozenset(("bad",)), has_timers=True)


def _swarm(draw: random.Random) -> Scenario:
    """Three to six tasks, the last one a reducer."""
    return _of_tasks(draw, "swarm", agent("a", _turns(draw, SAFE, 1)))


def _swarm_waits(draw: random.Random) -> Scenario:
    """Some tasks wait for a person."""
    return _of_tasks(draw, "swarm_waits", agent("a", (("put", "wire"),)))


def _swarm_cancelled(draw: random.Random) -> Scenario:
    """Somebody cancels the whole."""
    made = _of_tasks(draw, "swarm_cancelled", agent("a", _turns(draw, (*SAFE, "stall"), 2)))
    return Scenario(made.name, made.agents, (), made.swarm, made.reducers, cancels=("s",))


def _swarm_fails(draw: random.Random) -> Scenario:
    """A task fails, and what depends on it never runs."""
    return _of_tasks(draw, "swarm_fails", agent("a", (("put",),)), breaks=True)


def _of_tasks(draw: random.Random, name: str, working: AgentDefinition, *, breaks: bool = False) -> Scenario:
    many = draw.randint(2, 5)
    tasks: list[Task] = []
    for number in range(many):
        before = [task.task_id for task in tasks]
        depends_on = draw.sample(before, draw.randint(0, min(2, len(before))))
        bound = "broken" if breaks and number == draw.randint(0, 1) else "a" if draw.random() < 0.7 else "b"
        tasks.append(Task(f"t{number}", agent=bound, prompt="go", depends_on=depends_on))
    tasks.append(Task("end", reducer="join", depends_on=[task.task_id for task in tasks]))
    agents = {
        "a": working,
        "b": agent("b", (), text="plain"),
        "broken": AgentDefinition("broken", MockModel([ModelRequestError("never")])),
    }
    reducers = {"join": ReducerDefinition("join", _join, replay_safe=draw.random() < 0.7)}
    return Scenario(name, agents, (), Swarm("s", tasks, concurrency=draw.randint(1, 3)), reducers)


def _swarm_grows(draw: random.Random) -> Scenario:
    """Tasks create others, with their completion or their failure, and some wait for whatever becomes of others."""
    tasks: list[Task] = []
    for number in range(draw.randint(2, 4)):
        before = [task.task_id for task in tasks]
        depends_on = draw.sample(before, draw.randint(0, min(2, len(before))))
        after = draw.sample(before, draw.randint(0, min(2, len(before))))
        bound = draw.choice(("plan", "plan", "broken", "a"))
        tasks.append(Task(f"t{number}", agent=bound, prompt="go", depends_on=depends_on, after=after))
    tasks.append(Task("split", reducer="split", depends_on=[tasks[0].task_id] if draw.random() < 0.3 else []))
    tasks.append(Task("end", reducer="join", after=[task.task_id for task in tasks]))
    asked = (TaskRequest("x", agent="a", prompt="go"), TaskRequest("y", reducer="join", after=("split/x", "t0")))

    async def split(results: Mapping[str, object], context: ReducerContext) -> object:
        context.spawn(asked)
        return len(results)

    def planned(output: object, context: SpawnContext) -> list[TaskRequest]:
        return [
            TaskRequest("n", agent="a", prompt="go"),
            TaskRequest("m", reducer="join", depends_on=(f"{context.task_id}/n",)),
        ]

    def undone(context: FailureContext) -> list[TaskRequest]:
        return [TaskRequest("undo", reducer="join", after=(context.task_id,))]

    agents = {
        "a": agent("a", _turns(draw, SAFE, 1)),
        "plan": replace(agent("plan", (), text="plain"), spawn=planned),
        "broken": AgentDefinition("broken", MockModel([ModelRequestError("never")]), on_failure=undone),
    }
    reducers = {
        "join": ReducerDefinition("join", _join),
        "split": ReducerDefinition("split", split, replay_safe=draw.random() < 0.7),
    }
    made = Swarm("s", tasks, concurrency=draw.randint(1, 3), dynamic=DynamicLimits(max_tasks=50, max_spawn_depth=2))
    below = [f"s/{task.task_id}/{key}" for task in tasks for key in _KEYS[task.binding]]
    cancels = ("s",) if draw.random() < 0.25 else ()
    return Scenario("swarm_grows", agents, (), made, reducers, below=tuple(below), cancels=cancels)


_KEYS: Mapping[str, tuple[str, ...]] = {"plan": ("n", "m"), "broken": ("undo",), "split": ("x", "y"), "a": (), "join": ()}
"""Of tasks that a task creates, by what it is bound to."""


def _engine(draw: random.Random) -> Scenario:
    """Random agents with everything that an agent can have, alone or as tasks of a swarm."""
    soon = draw.random() < 0.25
    kind = draw.random()
    quarrels = 0.45 < kind < 0.6
    fails = quarrels and draw.random() < 0.5
    agents = {name: random_agent(draw, name, soon=soon, fails=fails) for name in ("a", "g")}
    signed = draw.random() < 0.4
    if kind < 0.15:
        made = _of_tasks(draw, "engine", agents["a"])
        return replace(made, crowd=True, signed=signed, has_timers=True)
    key = "door" if draw.random() < 0.15 else None
    orders = tuple(
        Order(name, f"r{number}", budget=Budget(tokens=10_000_000) if draw.random() < 0.6 else None, concurrency_key=key)
        for number, name in enumerate(draw.choices(("a", "g"), k=draw.choice((1, 1, 2))))
    )
    ids = tuple(order.run_id for order in orders)
    orders = tuple(replace(order, has_chat=draw.random() < 0.5) for order in orders)
    return Scenario(
        "engine",
        agents,
        orders,
        cancels=ids[:1] if kind > 0.85 else (),
        mails=ids if 0.6 < kind < 0.8 else (),
        quarrels=quarrels,
        retries_failed=fails,
        crowd=True,
        signed=signed,
        has_timers=True,
    )


def _delegating(draw: random.Random) -> Scenario:
    """Two calls that another agent does, beside a tool; alone or as tasks of a swarm. Some wait for a person."""
    below = agent("below", _turns(draw, (*SAFE, "wire"), 2), text="from below")
    asks = calls(call("below", prompt="one"), call(draw.choice(SAFE), amount=1), call("below", prompt="two"))
    tools = {name: TOOLS[name] for name in SAFE} | {"below": BELOW}
    root = AgentDefinition("a", MockModel([asks, "done"]), instructions="delegate", tools=tools)
    denies = draw.random() < 0.3
    if draw.random() < 0.3:
        made = _of_tasks(draw, "delegating", root)
        assert made.swarm is not None
        roots = [f"s/{task.task_id}" for task in made.swarm.tasks if task.binding == "a"]
        ids = tuple(child for above in roots for child in _children_of(above))
        return replace(made, agents={**made.agents, "below": below}, below=ids, denies=denies)
    orders = (Order("a", "r0", budget=Budget(tokens=1_000_000)), Order("a", "r1"))[: draw.randint(1, 2)]
    ids = tuple(child for order in orders for child in _children_of(order.run_id))
    return Scenario("delegating", {"a": root, "below": below}, orders, below=ids, denies=denies)


def _delegating_cancelled(draw: random.Random) -> Scenario:
    """Somebody cancels the root, and with it the tree."""
    made = _delegating(draw)
    return replace(made, cancels=("s",) if made.swarm is not None else tuple(order.run_id for order in made.orders))


BELOW = delegating_tool("below", name="below", description="Asks another agent.")


def _children_of(run_id: str) -> tuple[str, str]:
    return child_run_id(run_id, "below", 1, "call_1_1"), child_run_id(run_id, "below", 1, "call_1_3")


async def _join(results: Mapping[str, object], context: ReducerContext) -> object:
    return sorted(results.items())


KINDS: Mapping[str, Callable[[random.Random], Scenario]] = {
    made.__name__.lstrip("_"): made
    for made in (
        _text,
        _tools,
        _retries,
        _approval,
        _cancel,
        _mail,
        _deadline,
        _poison,
        _swarm,
        _swarm_waits,
        _swarm_cancelled,
        _swarm_fails,
        _swarm_grows,
        _delegating,
        _delegating_cancelled,
        _engine,
    )
}
SMALL = tuple(kind for kind in KINDS if kind != ENGINE)


@cache
def scenario(kind: str, variant: int) -> Scenario:
    return KINDS[kind](random.Random(f"{kind} {variant}"))
