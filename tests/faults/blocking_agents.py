"""An agent whose tool is a coroutine that blocks the event loop of its process, and one that does not."""

from __future__ import annotations

import os
import time
from pathlib import Path

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.ports.tool import ToolContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.tools.decorator import tool
from tests.workers.agents import TRACES, held, trace


@tool(name="block")
async def block(context: ToolContext, name: str) -> str:
    """Blocks until the file `<name>.go` appears; must not happen twice."""
    trace("block", f"{context.run_id} {os.getpid()}")
    while not (Path(os.environ[TRACES]) / f"{name}.go").exists():
        time.sleep(0.01)
    return "freed"


app = Deuz([Agent("blocker", model=held("block"), tools=[block]), Agent("quick", model=MockModel(["done"]))])
