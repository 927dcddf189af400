"""An application whose model takes a while: as long, and for as many turns, as the prompt says."""

from __future__ import annotations

import asyncio

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.core.limits import Limits
from deuz_workers.core.usage import Budget
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.tools.decorator import tool
from tests.workers.agents import trace, turn_of

AGENT = "slow"


def prompt_for(turns: int, ms: int) -> str:
    """`turns` calls of the model, of `ms` milliseconds each."""
    return f"{turns} {ms}"


@tool(replay="idempotent")
async def nothing() -> None:
    """The smallest tool there is."""


def takes_its_time() -> MockModel:
    """Traces when it was asked and when it had its answer, under the request's id."""

    async def answer(request: ModelRequest) -> Entry:
        turns, ms = map(int, request.messages[0].text.split())
        trace("asked", request.request_id)
        await asyncio.sleep(ms / 1000)
        trace("answered", request.request_id)
        return "done" if turn_of(request) >= turns else calls(call("nothing"))

    return MockModel.function(answer)


def application(settings: Settings | None = None) -> Deuz:
    """The application; `settings` None: from the environment. Each run has a budget of its own, so that holds are kept."""
    budget = Budget.of(tokens=10_000_000)
    agent = Agent(
        AGENT, model=takes_its_time(), tools=[nothing], limits=Limits(max_steps=1_000), budget=budget, max_output_tokens=1_000
    )
    return Deuz([agent], settings=settings)


app = application()
