"""From the raw result of a tool to the text that the model gets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from jsonschema.protocols import Validator
from pydantic import TypeAdapter, ValidationError

from deuz_workers.core.codec import decode, encode
from deuz_workers.core.failure import describe
from deuz_workers.core.render import readable, render
from deuz_workers.errors import CodecError, ConfigurationError, ToolResultError
from deuz_workers.tools.problems import conversion_problems, first_line, one_text
from deuz_workers.tools.schema import compile_schema, violations

Convert = Callable[[Any], Any]


class Projection:
    """`output_schema`, then `validate_result`, then `to_model_output`, then `render`; each where it is given."""

    def __init__(
        self, label: str, output_schema: Any | None, validate_result: Convert | None, to_model_output: Convert | None
    ) -> None:
        """Raises: ConfigurationError, for a schema or function that cannot be used.

        A plain JSON Schema (TSC-001) must come with `validate_result`: it says what is seen, not what is true.
        """
        for option, function in (("validate_result", validate_result), ("to_model_output", to_model_output)):
            if inspect.iscoroutinefunction(function):
                raise ConfigurationError(f"tool '{label}': {option} must be a plain function, not a coroutine function")
        self._label = label
        self._checker: Validator | None = None
        self._adapter: TypeAdapter[Any] | None = None
        self._validate_result = validate_result
        self._to_model_output = to_model_output
        if isinstance(output_schema, Mapping):
            if validate_result is None:
                raise ConfigurationError(
                    f"tool '{label}': output_schema is a plain JSON Schema, so give validate_result as well, "
                    "or a type as the schema"
                )
            self._checker = compile_schema(cast(Mapping[str, Any], output_schema), f"tool '{label}': output_schema")
        elif output_schema is not None:
            self._adapter = _adapter(label, output_schema)

    @property
    def is_plain(self) -> bool:
        return (self._checker, self._adapter, self._validate_result, self._to_model_output) == (None, None, None, None)

    def text(self, value: object) -> str:
        """The model's text for the raw `value`, live or read back from a receipt.

        Functions of the user's get what `output_schema`, if it is a type, makes of the stored value, otherwise the stored
        value itself: plain data, the same when the projection is repeated without the tool.

        Raises: ToolResultError, when the value cannot be stored, misses the schema or `validate_result` raises; what
        `to_model_output` raises comes out as it is.
        """
        if self.is_plain:
            return self._render(value)
        try:
            value = decode(encode(value))
        except CodecError as error:
            raise self._refusal(str(error)) from error
        value = self._validated(value)
        return self._render(value if self._to_model_output is None else self._to_model_output(value))

    def _validated(self, value: object) -> object:
        if self._checker is not None and (problems := violations(self._checker, readable(value))):
            raise self._refusal(one_text(problems))
        try:
            if self._adapter is not None:
                # By name: that is how the codec writes the fields of a model.
                value = self._adapter.validate_python(value, by_alias=True, by_name=True)
            if self._validate_result is not None:
                accepted = self._validate_result(value)
                value = value if accepted is None else accepted  # a function that only checks returns nothing
        except ValidationError as error:
            raise self._refusal(one_text(conversion_problems(error))) from error
        except Exception as error:  # a validator of the user's
            raise self._refusal(describe(error)) from error
        return value

    def _render(self, value: object) -> str:
        try:
            return render(value)
        except CodecError as error:
            raise self._refusal(str(error)) from error

    def _refusal(self, problem: str) -> ToolResultError:
        return ToolResultError(f"the result of '{self._label}' is not valid: {problem}", tool=self._label)


def _adapter(label: str, output_schema: Any) -> TypeAdapter[Any]:
    if isinstance(output_schema, TypeAdapter):
        return cast(TypeAdapter[Any], output_schema)
    try:
        return TypeAdapter(output_schema)
    except Exception as error:  # pydantic raises many kinds, and a type may bring its own code
        raise ConfigurationError(
            f"tool '{label}': results of type {output_schema!r} cannot be validated: {first_line(error)}; "
            "give output_schema a dataclass, a TypedDict, a pydantic model or plain types"
        ) from error
