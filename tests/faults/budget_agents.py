"""An agent each of whose calls costs exactly what is reserved for it, and is written down when it is sent."""

from __future__ import annotations

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.core.limits import Limits
from deuz_workers.core.usage import Budget, Usage
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, call, calls, reply
from deuz_workers.tools.decorator import tool
from tests.workers.agents import trace, turn_of, turns_of

THINK_MS = 800
CALL_TOKENS = 100
USED = Usage(60, 40)


@tool(replay="idempotent")
def note(n: int) -> str:
    """Nothing but a reason for another turn."""
    return f"noted {n}"


def answer(request: ModelRequest) -> Entry:
    """As many turns as the prompt says."""
    trace("sent", request.request_id)
    turn = turn_of(request)
    if turn > turns_of(request):
        return reply("done", usage=USED, delay_ms=THINK_MS)
    return reply("", *calls(call("note", n=turn)).calls, usage=USED, delay_ms=THINK_MS)


def application(settings: Settings | None = None) -> Deuz:
    agent = Agent(
        "spender",
        model=MockModel.function(answer),
        tools=[note],
        execution_estimate=Budget.of(tokens=CALL_TOKENS),
        limits=Limits(max_retries=0, max_reruns=0),
    )
    return Deuz([agent], settings=settings)


app = application()
