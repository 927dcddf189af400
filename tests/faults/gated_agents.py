"""An agent whose one turn asks for three calls that a person has to allow, the last of which takes until it is let go."""

from __future__ import annotations

import time

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.ports.tool import ToolContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import call, calls
from deuz_workers.tools.decorator import tool
from tests.workers.agents import hold_again, trace


@tool(needs_approval=True)
def sign(context: ToolContext, name: str) -> str:
    """Do what a person has to allow, and what must not happen twice."""
    trace("sign", context.idempotency_key)
    return f"signed {name}"


@tool(needs_approval=True, replay="idempotent")
def wait(context: ToolContext, name: str) -> str:
    """The same, safe to repeat, and it begins when the others have ended."""
    time.sleep(0.5)
    return str(hold_again(context, name))


def application(settings: Settings | None = None) -> Deuz:
    turn = calls(call("sign", name="a"), call("sign", name="b"), call("wait", name="gate"))
    return Deuz([Agent("gated", model=MockModel([turn, "done"]), tools=[sign, wait])], settings=settings)


app = application()
