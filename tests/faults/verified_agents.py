"""An agent whose answers wait for a verifier that says when it begins and goes on when a file appears."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.verify import Verified, VerifyContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry
from tests.workers.agents import TRACES, nothing, trace


def answer(request: ModelRequest) -> Entry:
    trace("asked", request.request_id)
    return '{"value": 42}'


def verify(output: int, context: VerifyContext) -> Verified:
    """Traces run, candidate, attempt and process."""
    text = hashlib.sha256(context.text.encode()).hexdigest()
    trace("verify", f"{context.run_id} {text} {context.attempt} {os.getpid()}")
    go = Path(os.environ[TRACES]) / "verdict.go"
    while not go.exists():
        time.sleep(0.01)
    return Verified()


def application(settings: Settings | None = None) -> Deuz:
    quick = Agent("quick", model=MockModel.function(lambda request: "done"), tools=[nothing])
    return Deuz([Agent("verified", model=MockModel.function(answer), output_type=int, verify=verify), quick], settings=settings)


app = application()
