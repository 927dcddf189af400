"""Transfers as tools: a call hands the run over to another agent, which goes on with the conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from deuz_workers.core.handoff import transferred
from deuz_workers.ports.tool import ToolContext
from deuz_workers.tools.arguments import Arguments
from deuz_workers.tools.declared import DeclaredTool
from deuz_workers.tools.options import NeedsApproval, Options
from deuz_workers.tools.projection import Projection

REASON: Mapping[str, object] = {
    "type": "object",
    "properties": {"reason": {"type": "string", "description": "Why, for whoever takes over."}},
    "additionalProperties": False,
}


class TransferTool(DeclaredTool):
    """Implements `Tool`. `target`: the agent itself where it is known, so that its application finds it.

    A call has no effect of its own: that another agent drives the run is part of the commit that saves its result, so it may be
    repeated.
    """

    def __init__(self, options: Options, arguments: Arguments, projection: Projection, to: str, target: Any = None) -> None:
        super().__init__(options, arguments, projection)
        self._to = to
        self.target = target

    def __repr__(self) -> str:
        return f"<transfer to agent {self._to}>"

    @property
    def transfers_to(self) -> str:
        return self._to

    @property
    def replay(self) -> Literal["idempotent"]:
        return "idempotent"

    @property
    def timeout_ms(self) -> None:
        return None

    @property
    def is_client(self) -> bool:
        return False

    @property
    def is_scoped(self) -> bool:
        return False

    def read_context(self, value: Any) -> Any:
        """Nothing is read."""
        return value

    async def run(self, arguments: Mapping[str, object], context: ToolContext) -> object:
        """The text that the model is told."""
        return transferred(self._to, arguments.get("reason"))


def transfer_tool(
    to: str,
    *,
    name: str | None = None,
    description: str | None = None,
    needs_approval: NeedsApproval = False,
    target: Any = None,
) -> TransferTool:
    """The tool that hands a run over to the agent `to`. See `app.handoffs.handoff`.

    Raises `ConfigurationError` for what cannot be meant.
    """
    name = name or f"transfer_to_{to.replace('.', '_')}"
    description = description or f"Hands the conversation over to the agent {to}, who goes on with it."
    return TransferTool(
        Options(name, description, "idempotent", needs_approval),
        Arguments.from_schema(name, REASON),
        Projection(name, None, None, None),
        to,
        target,
    )
