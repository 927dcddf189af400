"""An application in builds, `TEST_BUILD`: an agent that differs between them, one that does not, and one that only it has."""

from __future__ import annotations

import os

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.ports.tool import ToolContext
from deuz_workers.tools.decorator import tool
from tests.workers.agents import LONG, many, trace

BUILD = os.environ.get("TEST_BUILD", "")


@tool
def write(context: ToolContext, n: int) -> str:
    """Do something that must not happen twice."""
    trace("write", f"{context.idempotency_key} {context.run_id} {BUILD}")
    return f"wrote {n}"


def application(settings: Settings | None = None) -> Deuz:
    """The application; `settings` None: from the environment."""
    model = many("write")
    agents = [
        Agent("changed", model=model, tools=[write], limits=LONG, binding_id=BUILD or "client"),
        Agent("same", model=model, tools=[write], limits=LONG),
        Agent(f"only-{BUILD}", model=model, tools=[write], limits=LONG),
    ]
    return Deuz(agents, settings=settings)


app = application()
