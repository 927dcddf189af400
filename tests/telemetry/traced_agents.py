"""Agents of workers that write what an SDK collects to a file, a line for each span."""

from __future__ import annotations

import os
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.ports.tool import ToolContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import call, calls
from deuz_workers.tools.decorator import tool
from tests.workers.agents import TRACES, hold_again

if folder := os.environ.get(TRACES):
    file = (Path(folder) / f"spans-{os.getpid()}").open("a", buffering=1)
    exporter = ConsoleSpanExporter(out=file, formatter=lambda span: f"{span.to_json(indent=None)}\n")
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


@tool(replay="idempotent")
def wait(context: ToolContext, name: str) -> str:
    """Takes until it is let go."""
    return str(hold_again(context, name))


def application(settings: Settings | None = None) -> Deuz:
    turns = [calls(call("wait", name="one")), calls(call("wait", name="two")), "done"]
    return Deuz([Agent("traced", model=MockModel(turns), tools=[wait])], settings=settings)


app = application()
