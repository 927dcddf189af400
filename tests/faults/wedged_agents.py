"""An agent whose tool blocks the event loop for ever when it runs for the first time, with limits to match a test."""

from __future__ import annotations

import os
import time
from pathlib import Path

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.engine import leg
from deuz_workers.ports.tool import ToolContext
from deuz_workers.tools.decorator import tool
from tests.workers.agents import TRACES, held, trace

leg.MARGIN_MS = 300


@tool(name="stick", replay="idempotent", timeout_ms=500)
async def stick(context: ToolContext, name: str) -> str:
    """Never returns, the first time."""
    trace("stick", f"{context.idempotency_key} {os.getpid()}")
    if not (Path(os.environ[TRACES]) / f"{name}.go").exists():
        time.sleep(3_600)
    return "freed"


app = Deuz([Agent("sticky", model=held("stick"), tools=[stick])])
