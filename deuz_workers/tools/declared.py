"""What a tool says of itself, wherever it is executed."""

from __future__ import annotations

from collections.abc import Mapping

from deuz_workers.core.approval import Approval
from deuz_workers.ports.model import ToolSpec
from deuz_workers.ports.tool import Delegation, ToolContext
from deuz_workers.tools.arguments import Arguments
from deuz_workers.tools.options import Options
from deuz_workers.tools.projection import Projection


class DeclaredTool:
    """The part of `Tool` that follows from options, arguments and projection."""

    def __init__(self, options: Options, arguments: Arguments, projection: Projection) -> None:
        self._options = options
        self._arguments = arguments
        self._projection = projection
        self._spec = ToolSpec(options.name, options.description, arguments.schema)

    @property
    def name(self) -> str:
        return self._options.name

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    @property
    def has_projection(self) -> bool:
        return not self._projection.is_plain

    @property
    def max_result_bytes(self) -> int:
        return self._options.max_result_bytes

    @property
    def has_predicate(self) -> bool:
        return not isinstance(self._options.when_approval, bool)

    @property
    def approval(self) -> Approval:
        return self._options.approval

    @property
    def delegation(self) -> Delegation | None:
        return None

    @property
    def transfers_to(self) -> str | None:
        return None

    def needs_approval(self, arguments: Mapping[str, object], context: ToolContext | None = None) -> bool:
        """The predicate gets the converted arguments, defaults included; True where it or the conversion raises."""
        return self._options.asks_for(lambda: self._arguments.with_defaults(arguments), context)

    def validate(self, arguments: Mapping[str, object]) -> None:
        """Raises ToolArgumentsError, which tells the model what to change and repeats no value."""
        self._arguments.converted(arguments)

    def project(self, value: object) -> str:
        return self._projection.text(value)
