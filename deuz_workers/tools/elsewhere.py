"""Tools whose calls are answered and not run here: by a client, or by a run of another agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.tool import ToolContext
from deuz_workers.tools.declared import DeclaredTool


class ElsewhereTool(DeclaredTool):
    """What follows for a `Tool` from there being no function."""

    done_by: str
    """Ends a sentence about who does it, and what that means for a caller."""

    @property
    def replay(self) -> None:
        return None

    @property
    def timeout_ms(self) -> None:
        return None

    @property
    def is_scoped(self) -> bool:
        return False

    def read_context(self, value: Any) -> Any:
        """Nothing is read."""
        return value

    async def run(self, arguments: Mapping[str, object], context: ToolContext) -> object:
        """Raises: it runs elsewhere."""
        raise ConfigurationError(f"tool '{self.name}' is {self.done_by}")
