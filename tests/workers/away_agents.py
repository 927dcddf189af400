"""Two agents in two queues whose model, one and the same, is away; every request that reaches it leaves a trace."""

from __future__ import annotations

import os

from deuz_workers import Agent, Deuz, Limits, MockModel, ModelUnavailableError, Settings
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.script import Entry
from tests.workers.agents import trace


def answer(request: ModelRequest) -> Entry:
    trace("away", str(os.getpid()))
    return ModelUnavailableError("away", status=503)


def application(settings: Settings | None = None) -> Deuz:
    first, once = MockModel.function(answer, model="away"), Limits(max_retries=0)
    return Deuz(
        [
            Agent("here", model=first, limits=once),
            Agent("there", model=first, fallback_models=[MockModel(["done"], model="other")], queue="other", limits=once),
        ],
        settings=settings,
    )


app = application()
