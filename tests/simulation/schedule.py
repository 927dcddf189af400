"""One schedule: its seed draws a scenario, faults and an order; what came of it is compared with a schedule without faults."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache

from deuz_workers.core.approval_token import ApprovalSigner
from deuz_workers.core.change import FINAL
from deuz_workers.core.failure import place_of
from deuz_workers.ports.runtime import Clock
from deuz_workers.testing.virtual.faults import Faults
from deuz_workers.testing.virtual.watched import Database, WatchedSqlite
from deuz_workers.testing.virtual.witness import Witness
from deuz_workers.testing.virtual.world import World
from tests.simulation.happenings import happenings
from tests.simulation.judging import Form, Forms, chat_form, form_of, judge
from tests.simulation.people import SCOPE, People, read
from tests.simulation.plan import Plan
from tests.simulation.scenarios import Scenario, scenario

MOST_MS = 400_000
"""After which a schedule that still has work is a failure: only the sweep is heard in the end, once for each step."""


@contextmanager
def _silence() -> Generator[None]:
    """A schedule is full of what is worth a line elsewhere."""
    log = logging.getLogger("deuz_workers")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@dataclass(slots=True)
class Verdict:
    """Why a schedule failed, empty if it did not."""

    plan: Plan
    wrong: list[str] = field(default_factory=lambda: list[str]())
    met: list[str] = field(default_factory=lambda: list[str]())
    turns: int = 0
    deaths: int = 0
    ends: Counter[str] = field(default_factory=lambda: Counter[str]())
    passed_ms: int = 0

    def __str__(self) -> str:
        plan = self.plan
        lines = [f"seed {plan.seed}: {plan.kind} {plan.variant}, {plan.profile}", *(f"  {what}" for what in self.wrong)]
        lines += ["  what happened:", *(f"    {what}" for what in self.met)]
        lines.append(f"  replay: python -m tests.simulation --seed {plan.seed}{' --postgres' * plan.is_crowded}")
        return "\n".join(lines)


def signer_of(made: Scenario) -> ApprovalSigner | None:
    return ApprovalSigner("a secret of a simulation, told to nobody", ttl_s=3_600) if made.signed else None


@cache
def calm_forms(kind: str, variant: int) -> Forms:
    """How every run of a scenario ends when nothing goes wrong and nobody cancels or writes."""
    made = scenario(kind, variant)
    world = World(0, made.agents, made.reducers, Faults(slow=0, until_ms=0), window=64, signer=signer_of(made))
    people = People(world, made)
    forms: dict[str, Form] = {}

    async def play() -> None:
        await people.order()
        world.start()
        world.fate.quiet = True
        await people.attend()
        for run_id in made.run_ids:
            if run_id not in made.below or await world.store.head(SCOPE, run_id) is not None:
                forms[run_id] = {**form_of(await read(world, run_id)), **await chat_form(world, run_id)}

    try:
        world.loop.run(play(), most_turns=50_000)
    finally:
        world.close()
    assert not world.complaints, world.complaints
    return forms


def play(
    plan: Plan, trace: Callable[[str], None] | None = None, make_database: Callable[[Clock, Witness], Database] = WatchedSqlite
) -> Verdict:
    """Let one schedule happen, and judge it. `trace` hears what arrives at servers; without it nothing is logged."""
    with nullcontext() if trace else _silence():
        return _played(plan, trace, make_database)


def _played(plan: Plan, trace: Callable[[str], None] | None, make_database: Callable[[Clock, Witness], Database]) -> Verdict:
    made, calm = scenario(plan.kind, plan.variant), calm_forms(plan.kind, plan.variant)
    world = World(
        plan.seed,
        made.agents,
        made.reducers,
        plan.faults,
        plan.roles,
        sweeps=plan.sweeps,
        window=plan.window,
        signer=signer_of(made),
        make_database=make_database,
        trace=trace,
    )
    world.settings = replace(world.settings, step_turns=plan.step_turns)
    people = People(world, made)
    verdict = Verdict(plan)
    try:
        world.loop.run(_play(world, people, made, plan, calm, verdict), most_turns=400_000)
    except AssertionError as error:
        verdict.wrong.append(f"{error!r} at {place_of(error)}")
    finally:
        verdict.wrong += world.complaints + [repr(error) for error in world.loop.failures]
        verdict.met, verdict.turns, verdict.deaths, verdict.ends = world.fate.met, world.loop.turns, world.deaths, world.ends
        verdict.passed_ms = world.clock.monotonic_ms()
        world.close()
    return verdict


async def _play(world: World, people: People, made: Scenario, plan: Plan, calm: Forms, verdict: Verdict) -> None:
    world.start()
    await people.order()
    start, loop = world.loop.start, world.loop
    coming = [loop.create_task(happening) for happening in happenings(world, people, made, plan)]
    attending = start(loop.outside, people.attend(), "people")
    while not attending.done():
        await world.clock.sleep_ms(1_000)
        if world.clock.monotonic_ms() > MOST_MS:
            verdict.wrong.append("still not over:")
            for run_id in made.run_ids:
                head = await world.store.head(SCOPE, run_id)
                if head is not None and head.status not in FINAL:
                    verdict.wrong.append(
                        f"  {run_id} {head.status} parked={head.parked} due={head.due_in_ms} wake={head.wake_seq} "
                        f"seen={head.seen_seq} open={head.open_items} attempts={head.attempts} mid={head.mid_step}"
                    )
            attending.cancel()
            return
    for happening in coming:
        happening.cancel()
    attending.result()
    await judge(world, people, made, plan, calm, verdict.wrong)
