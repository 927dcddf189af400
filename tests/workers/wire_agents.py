"""An agent for each wire, streamed and not, whose models are at the URL that the environment names."""

from __future__ import annotations

import itertools
import os

from typing_extensions import TypedDict

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.core.limits import Limits
from deuz_workers.ports.tool import ToolContext
from deuz_workers.tools.decorator import tool
from tests.providers.wires import WIRES
from tests.workers.agents import trace

MODEL_ROOT = "TEST_MODEL_ROOT"
"""Environment variable: scheme, host and port of the model server."""
AGENTS = [f"{wire}-{how}" for wire, how in itertools.product(WIRES, ("streamed", "whole"))]


class Bill(TypedDict):
    cents: int


@tool
def pay(context: ToolContext, usd: int, to: str = "") -> str:
    """Pays."""
    trace("pay", f"{context.run_id} {usd} {to}")
    return "paid"


@tool(needs_approval=True)
def sign(context: ToolContext, name: str) -> str:
    """Signs what a person has to allow."""
    trace("sign", f"{context.run_id} {name}")
    return f"signed {name}"


def application(settings: Settings | None = None) -> Deuz:
    """All of them; each also as one whose answer is typed."""
    agents: list[Agent] = []
    for name in AGENTS:
        wire, _, how = name.partition("-")
        root = os.environ.get(MODEL_ROOT, "http://127.0.0.1:9")
        made = WIRES[wire]
        model = made.make("m", root + made.path, stream=how == "streamed", max_retries=0)
        agents.append(Agent(name, model=model, tools=[pay, sign], limits=Limits(max_retries=5)))
        agents.append(Agent(f"{name}-typed", model=model, tools=[pay], output_type=Bill))
    return Deuz(agents, settings=settings)


app = application()
