"""An agent whose tools have effects, each with a moment in which a death leaves it unknown whether it happened."""

from __future__ import annotations

import random
import time

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.tool import ToolContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, call, calls, reply
from deuz_workers.tools.decorator import tool
from tests.workers.agents import trace, turn_of, turns_of

THINK_MS = 60
WORK_S = 0.12


@tool
def send(context: ToolContext, n: int) -> str:
    """An effect that must not happen twice."""
    time.sleep(random.uniform(0, WORK_S))
    trace("send", f"{context.run_id} {context.model_step} {context.tool_call_id}")
    time.sleep(random.uniform(0, WORK_S))
    return f"sent {n}"


@tool(replay="idempotent")
def put(context: ToolContext, n: int) -> str:
    """An effect that its receiver recognises by the key."""
    time.sleep(random.uniform(0, WORK_S))
    trace("put", f"{context.run_id} {context.model_step} {context.tool_call_id} {context.idempotency_key}")
    time.sleep(random.uniform(0, WORK_S))
    return f"put {n}"


def answer(request: ModelRequest) -> Entry:
    """Puts twice, then sends, then does both at once, and so on, as many turns as the prompt says."""
    turn = turn_of(request)
    if turn > turns_of(request):
        return reply("done", delay_ms=THINK_MS)
    made = (call("put", n=turn), call("put", n=-turn)), (call("send", n=turn),), (call("put", n=turn), call("send", n=turn))
    entry = calls(*made[turn % 3])
    return reply("", *entry.calls, delay_ms=THINK_MS)


def application(settings: Settings | None = None) -> Deuz:
    return Deuz([Agent("effects", model=MockModel.function(answer), tools=[send, put])], settings=settings)


app = application()
