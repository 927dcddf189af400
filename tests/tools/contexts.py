"""The context of a tool call, for tests that start one by hand."""

from __future__ import annotations

from typing import Any

from deuz_workers.ports.signal import Signal
from deuz_workers.ports.tool import ToolContext


def context(signal: Signal | None = None, deps: Any = None) -> ToolContext:
    return ToolContext(
        scope="acme",
        run_id="run-1",
        agent="clerk",
        model_step=2,
        tool_call_id="call-1",
        tool_name="any",
        attempt=1,
        deadline_in_ms=None,
        signal=signal or Signal(),
        deps=deps,
    )
