"""The reference run of the fault points: tools side by side, an approval, a client's call, a typed answer, two models."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from deuz_workers import Settings, client_tool
from deuz_workers.app.agent import Agent
from deuz_workers.app.connections import store_of
from deuz_workers.app.deuz import Deuz
from deuz_workers.errors import ModelUnavailableError
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.tool import ToolContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.tools.decorator import tool
from tests.faults.killing_store import KillingStore
from tests.workers.agents import TRACES, trace

POINT = "TEST_POINT"
"""Variable that names where the worker dies; none: it does not."""


@dataclass
class Answer:
    total: int


def _done(name: str, context: ToolContext) -> str:
    trace(name, f"{context.run_id} {context.model_step} {context.tool_call_id}")
    return name


@tool
async def send(context: ToolContext, n: int) -> str:
    """An effect that must not happen twice."""
    return _done("send", context)


@tool(replay="idempotent")
async def put(context: ToolContext, n: int) -> str:
    """An effect that its receiver recognises."""
    return _done("put", context)


@tool(needs_approval=True)
async def pay(context: ToolContext, n: int) -> str:
    """An effect that a person has to allow, and that must not happen twice."""
    return _done("pay", context)


ask = client_tool("ask", "Asks.", {"type": "object", "properties": {}})
SCRIPT = (
    calls(call("send", n=1), call("put", n=2)),
    calls(call("send", n=3), call("pay", n=4), call("ask")),
    "enough",
    '{"total": 4}',
)


def away_from_turn_2(request: ModelRequest) -> Entry:
    """Asks to be left alone for so long that the next candidate is called."""
    _, step, attempt = request.request_id.split(":")
    trace("first", f"{request.request_id.partition(':')[0]} {step} {attempt}")
    return SCRIPT[0] if step == "1" else ModelUnavailableError("away", status=503, retry_after_ms=60_000)


def application(settings: Settings | None = None) -> Deuz:
    """For a worker whose environment names a point, over a store that kills it there."""
    agent = Agent(
        "reference",
        model=MockModel.function(away_from_turn_2, model="first"),
        fallback_models=[MockModel(SCRIPT, model="second")],
        tools=[send, put, pay, ask],
        output_type=Answer,
    )
    point = os.environ.get(POINT)
    if not point:
        return Deuz([agent], settings=settings)
    settings = settings or Settings()
    mark = Path(os.environ[TRACES]) / f"killed {point}"
    return Deuz([agent], settings=settings, store=KillingStore(store_of(settings), point, mark).as_store)


app = application()
