"""A run whose processes die at any moments ends as it would have ended without: the same history, the same effects, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deuz_workers.core.codec import encode
from deuz_workers.core.run import Run
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.tool import ToolContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.simulation import SCOPE, Simulation
from deuz_workers.tools.decorator import tool
from tests.outcome import outcome_of


@dataclass
class Board:
    """What happened outside, by idempotency key: the only memory that survives every death."""

    effects: Counter[str] = field(default_factory=lambda: Counter[str]())
    values: dict[str, object] = field(default_factory=lambda: dict[str, object]())
    keys_seen: dict[str, set[tuple[int, str]]] = field(default_factory=lambda: dict[str, set[tuple[int, str]]]())

    def happen(self, context: ToolContext, value: object) -> object:
        key = context.idempotency_key
        self.effects[key] += 1
        self.values[key] = value
        self.keys_seen.setdefault(key, set()).add((context.model_step, context.tool_call_id))
        return value


def agent_on(board: Board, script: tuple[tuple[str, ...], ...]) -> AgentDefinition:
    """An agent that calls the tools named by `script`, turn after turn, and then says done."""

    @tool
    async def pay(amount: int, ctx: ToolContext) -> dict[str, object]:
        """Not idempotent: happens at most once."""
        await asyncio.sleep(0)
        return board.happen(ctx, {"paid": amount, "key": ctx.idempotency_key})  # pyright: ignore[reportReturnType]

    @tool(replay="idempotent")
    async def put(amount: int, ctx: ToolContext) -> str:
        """Idempotent: may happen again under the same key."""
        return str(board.happen(ctx, f"put {amount}"))

    @tool(to_model_output=lambda value: f"shown: {value}")
    async def show(amount: int, ctx: ToolContext) -> int:
        """Not idempotent, and its result is projected by code of the user's."""
        return board.happen(ctx, amount)  # pyright: ignore[reportReturnType]

    @tool
    async def fail(amount: int, ctx: ToolContext) -> None:
        """Raises after its effect."""
        board.happen(ctx, None)
        raise ValueError(f"no {amount}")

    turns: list[Any] = [calls(*(call(name, amount=place) for place, name in enumerate(turn))) for turn in script]
    model = MockModel([*turns, "done"])
    tools = {made.name: made for made in (pay, put, show, fail)}
    return AgentDefinition("worker", model, instructions="work", tools=tools)


def final_form(run: Run) -> Mapping[str, object]:
    """What a run came to, and what it left open."""
    envelope = run.envelope
    return outcome_of(run) | {"open": (envelope.checkpoint.open_call, envelope.verdicts, envelope.scopes)}


def reconciler(simulation: Simulation, board: Board) -> Callable[[Run], Awaitable[None]]:
    """What a person would do about a parked run: look outside, record what happened, allow what did not."""

    async def reconcile(run: Run) -> None:
        step = run.envelope.checkpoint.step
        found: dict[str, object] = {}
        allowed: list[str] = []
        for receipt in run.interrupted:
            key = f"r/{step}/{receipt.call_id}"
            if key not in board.effects:
                allowed.append(receipt.call_id)
            elif receipt.tool == "fail":
                place = next(use.arguments for use in run.open_calls if use.call_id == receipt.call_id)
                found[receipt.call_id] = {"output": f"ValueError: no {(place or {})['amount']}", "is_error": True}
            else:
                found[receipt.call_id] = {"output": board.values[key]}
        if found:
            await simulation.store.add_note(SCOPE, "r", "reconcile", encode({"results": found}))
        if allowed:
            await simulation.store.add_note(SCOPE, "r", "retry", encode({"tool_call_ids": allowed}))

    return reconcile


async def play(script: tuple[tuple[str, ...], ...], deaths: frozenset[int]) -> tuple[Run, Board, Simulation]:
    board = Board()
    simulation = Simulation({"worker": agent_on(board, script)}, deaths)
    await simulation.enqueue("worker", "r")
    return await simulation.run("r", reconciler(simulation, board)), board, simulation


SCRIPTS = st.lists(
    st.lists(st.sampled_from(("pay", "put", "show", "fail")), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3
).map(tuple)


PARTS = 5
"""So that several test processes share a thousand schedules, which take more than a minute."""


@pytest.mark.parametrize("part", range(PARTS))
@settings(max_examples=1_000 // PARTS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCRIPTS, st.frozensets(st.integers(0, 60), max_size=5))
def test_deaths_change_nothing_but_how_long_it_takes(
    part: int, script: tuple[tuple[str, ...], ...], deaths: frozenset[int]
) -> None:
    """Up to five deaths, before and after any commit and effect: the same final envelope, no unsafe effect twice."""
    quiet, _, calm = asyncio.run(play(script, frozenset()))
    run, board, simulation = asyncio.run(play(script, deaths))
    assert simulation.deaths_met == len([death for death in deaths if death < simulation.points])
    assert final_form(run) == final_form(quiet)
    assert len(board.keys_seen) == sum(map(len, script))
    assert all(len(identities) == 1 for identities in board.keys_seen.values())
    names = {f"r/{turn}/{place}": name for turn, tools in enumerate(script, 1) for place, name in enumerate(tools)}
    idempotent = sum(1 for name in names.values() if name == "put")
    repeated = [key for key, count in board.effects.items() if count > 1]
    assert len(repeated) <= idempotent
    assert all(board.values[key] == f"put {key}" or str(board.values[key]).startswith("put ") for key in repeated)
    assert calm.points > 0


def test_a_three_call_turn_survives_a_death_at_every_single_point() -> None:
    """One death at each point of the run in turn: one result per call, each effect once except where it is idempotent."""
    script = (("pay", "put", "show"),)
    quiet, _, calm = asyncio.run(play(script, frozenset()))
    for point in range(calm.points):
        run, board, simulation = asyncio.run(play(script, frozenset({point})))
        assert simulation.deaths_met == 1, calm.places[point]
        assert final_form(run) == final_form(quiet), calm.places[point]
        assert [len(message.tool_results) for message in run.history if message.role == "tool"] == [3]
        assert all(count == 1 or board.values[key] == "put 1" for key, count in board.effects.items()), calm.places[point]
