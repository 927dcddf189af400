"""What a tool's author decides about it, apart from the function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from deuz_workers.core.approval import ANYBODY, Approval, When
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.tool import ToolContext

MAX_RESULT_BYTES = 5_000_000
"""Results are rows of a database and messages to a model; what is larger belongs into files or objects of its own."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What OpenAI and Anthropic accept as the name of a tool (API references, function.name and tools[].name)."""

NeedsApproval = bool | Callable[[Mapping[str, Any]], object] | Callable[[Mapping[str, Any], ToolContext], object] | Approval
"""True, or a function of the converted arguments, and of the call's context if it takes two, or both with its terms."""


@dataclass(frozen=True, slots=True)
class Options:
    """Raises ConfigurationError for a value that cannot be meant."""

    name: str
    description: str
    replay: Literal["idempotent"] | None = None
    needs_approval: NeedsApproval = False
    timeout_ms: int | None = None
    max_result_bytes: int = MAX_RESULT_BYTES

    @property
    def asks_with_context(self) -> bool:
        """The predicate takes the call's context beside the arguments: it has a second place without a default."""
        asked = self.when_approval
        if isinstance(asked, bool):
            return False
        try:
            places = list(inspect.signature(asked).parameters.values())
        except (TypeError, ValueError):  # a builtin without a signature
            return False
        positional = [place for place in places if place.kind in (place.POSITIONAL_ONLY, place.POSITIONAL_OR_KEYWORD)]
        return len(positional) > 1 and positional[1].default is inspect.Parameter.empty

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"a tool cannot be called {self.name!r}: 1 to 64 letters, digits, '_' and '-'; give it another with name="
            )
        if self.replay not in (None, "idempotent"):
            raise ConfigurationError(f"tool '{self.name}': replay is 'idempotent' or not given, not {self.replay!r}")
        asked = self.when_approval
        if not isinstance(asked, bool) and (not callable(asked) or inspect.iscoroutinefunction(asked)):
            raise ConfigurationError(
                f"tool '{self.name}': needs_approval is True, False, a plain function of the arguments, or an Approval"
            )
        for option, value in (("timeout_ms", self.timeout_ms), ("max_result_bytes", self.max_result_bytes)):
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigurationError(f"tool '{self.name}': {option} is a whole number from 1, not {value!r}")

    @property
    def approval(self) -> Approval:
        return self.needs_approval if isinstance(self.needs_approval, Approval) else ANYBODY

    @property
    def when_approval(self) -> When:
        """Which calls need an approval."""
        return self.needs_approval.when if isinstance(self.needs_approval, Approval) else self.needs_approval

    def asks_for(self, arguments: Callable[[], Mapping[str, Any]], context: ToolContext | None = None) -> bool:
        """A call with these arguments needs an approval; also where the function or making the arguments raises."""
        asked = self.when_approval
        if isinstance(asked, bool):
            return asked
        try:
            return bool(asked(*(arguments(), context)[: 2 if self.asks_with_context else 1]))
        except Exception:  # noqa: BLE001 - APR-002: whoever cannot say that it is safe needs a person
            return True
