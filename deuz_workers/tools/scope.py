"""What a tool declares its own context to be."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter, ValidationError

from deuz_workers.errors import ConfigurationError, ToolContextError
from deuz_workers.tools.problems import conversion_problems, first_line, one_text


class Scope:
    """`context_schema`, then `validate_context`; each where it is given."""

    def __init__(self, label: str, context_schema: Any | None, validate_context: Callable[[Any], Any] | None) -> None:
        """Raises: ConfigurationError, for a type or function that cannot be used."""
        if inspect.iscoroutinefunction(validate_context):
            raise ConfigurationError(f"tool '{label}': validate_context must be a plain function, not a coroutine function")
        self._label = label
        self._validate = validate_context
        self._adapter: TypeAdapter[Any] | None = None
        if context_schema is not None:
            try:
                self._adapter = TypeAdapter(context_schema)
            except Exception as error:  # pydantic raises many kinds
                raise ConfigurationError(
                    f"tool '{label}': context_schema is no type that a context can have: {first_line(error)}"
                ) from error

    @property
    def is_declared(self) -> bool:
        return self._adapter is not None or self._validate is not None

    def read(self, value: Any) -> Any:
        """The context that calls get. None from `validate_context` keeps the value.

        Raises: ToolContextError, which names places and repeats no value; what `validate_context` raises comes out as it is.
        """
        try:
            if self._adapter is not None:
                value = self._adapter.validate_python(value)
        except ValidationError as error:
            raise ToolContextError(one_text(conversion_problems(error)), tool=self._label) from None
        if self._validate is None:
            return value
        accepted = self._validate(value)
        return value if accepted is None else accepted
