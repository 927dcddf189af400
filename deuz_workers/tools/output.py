"""Types of a run's answer: pydantic models, dataclasses, TypedDicts, any type that pydantic knows, or a JSON Schema."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from deuz_workers.core.failure import text_of
from deuz_workers.errors import ConfigurationError, OutputError
from deuz_workers.ports.output import OutputMode
from deuz_workers.tools.problems import conversion_problems, first_line, one_text
from deuz_workers.tools.schema import JsonSchema, compile_schema, schemas_of, violations

WRAPPED = "value"
"""Property that holds an answer that is no object; models are asked for objects alone."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FENCED = re.compile(r"\A\s*```(?:json)?\s*\n(.*)\n\s*```\s*\Z", re.DOTALL)


class Output:
    """How the answer of a run is asked for and checked; implements `OutputType`.

    `Agent(output_type=Invoice)` is `Agent(output_type=Output(Invoice))`.
    """

    def __init__(
        self,
        schema: Any,
        *,
        validate: Callable[[Any], Any] | None = None,
        element: Callable[[Any], Any] | None = None,
        mode: OutputMode | None = None,
        name: str = "json_output",
    ) -> None:
        """
        Args:
            schema: a type, or a JSON Schema, which needs `validate`: it says what is seen, not what is true.
            validate: takes the typed or parsed answer, returns the one that is accepted (None keeps it), raises to reject it;
                the model reads the message and answers again. It may run twice for one answer: keep it free of effects.
            element: takes one element of an answer that is a list, while the rest is being written; returns the one that
                readers of a stream are shown (None keeps it), raises to withhold it. It decides nothing about the answer.
            mode: `json` asks for the format in the request, `tool` by one forced tool. None: as the model is known to do it.
            name: of the format and of that tool.

        Raises: ConfigurationError, for what cannot be meant.
        """
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"an output cannot be called {name!r}: 1 to 64 letters, digits, '_' and '-'")
        if mode is not None and mode not in get_args(OutputMode):
            raise ConfigurationError(f"the mode of output {name!r} is 'json' or 'tool', not {mode!r}")
        if validate is not None and (not callable(validate) or inspect.iscoroutinefunction(validate)):
            raise ConfigurationError(f"output {name!r}: validate is a plain function of the answer")
        if element is not None and (not callable(element) or inspect.iscoroutinefunction(element)):
            raise ConfigurationError(f"output {name!r}: element is a plain function of one element")
        self.name = name
        self.mode: OutputMode | None = mode
        self._validate = validate
        self._validate_element = element
        self._adapter: TypeAdapter[Any] | None = None
        self._element_adapter: TypeAdapter[Any] | None = None
        if isinstance(schema, Mapping):
            if validate is None:
                raise ConfigurationError(
                    f"output {name!r}: the schema is a plain JSON Schema, so give validate as well, or a type as the schema"
                )
            found = dict(cast(Mapping[str, Any], schema))
        else:
            self._adapter, found = _typed(name, schema)
            self._element_adapter = _element_adapter(schema)
        self._is_wrapped = found.get("type") != "object"
        self.schema: JsonSchema = _wrapped(found) if self._is_wrapped else found
        self._validator = compile_schema(self.schema, f"output {name!r}: the schema")

    @property
    def record(self) -> Mapping[str, object]:
        return {"name": self.name, "mode": self.mode, "schema": self.schema}

    @property
    def wrapper(self) -> str | None:
        return WRAPPED if self._is_wrapped else None

    def element(self, value: object) -> object:
        """Converted to the type of elements, where the schema is a list of a type, then what `element` makes of it.

        Raises: what pydantic or `element` raises.
        """
        if self._element_adapter is not None:
            value = self._element_adapter.validate_json(json.dumps(value))
        if self._validate_element is not None:
            shown = self._validate_element(value)
            value = value if shown is None else shown
        return value

    def accept(self, text: str) -> object:
        """Parsed, checked against the schema, converted to the type, then what `validate` makes of it.

        Raises: OutputError, which tells the model what to change.
        """
        value = _parsed(text)
        if problems := violations(self._validator, value):
            raise OutputError(one_text(problems))
        if self._is_wrapped:
            value = cast(dict[str, Any], value)[WRAPPED]
        try:
            if self._adapter is not None:
                value = self._adapter.validate_json(json.dumps(value))
            if self._validate is not None:
                accepted = self._validate(value)
                value = value if accepted is None else accepted
        except ValidationError as error:
            raise OutputError(one_text(conversion_problems(error))) from error
        except Exception as error:  # a validator of the user's
            raise OutputError(text_of(error) or type(error).__name__) from error
        return value

    def restore(self, stored: object) -> object:
        if self._adapter is None:
            return stored
        try:
            return self._adapter.validate_python(stored, by_alias=True, by_name=True)
        except Exception:  # noqa: BLE001 - `validate` returned something else, or the type has changed since
            return stored


def _typed(name: str, schema: Any) -> tuple[TypeAdapter[Any], JsonSchema]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(schema)
        schemas, definitions = schemas_of([(name, adapter)])
    except Exception as error:  # pydantic raises many kinds, and a type may bring its own code
        raise ConfigurationError(
            f"output {name!r}: no JSON Schema can be made of {schema!r}: {first_line(error)}; use a pydantic model, a "
            "dataclass, a TypedDict or plain types"
        ) from error
    found = schemas[name]
    if set(found) == {"$ref"}:
        found = dict(definitions[found["$ref"].rpartition("/")[2]])
    return adapter, found | ({"$defs": definitions} if definitions else {})


def _element_adapter(schema: Any) -> TypeAdapter[Any] | None:
    """For the elements of `list[T]` and its kind; None for every other type."""
    arguments = get_args(schema)
    if get_origin(schema) not in (list, set, frozenset, tuple) or not arguments or arguments[1:] not in ((), (...,)):
        return None
    return TypeAdapter(arguments[0])


def _wrapped(schema: JsonSchema) -> JsonSchema:
    """An object with one property; definitions stay at the top, where references point."""
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    made: JsonSchema = {
        "type": "object",
        "properties": {WRAPPED: inner},
        "required": [WRAPPED],
        "additionalProperties": False,
    }
    return made | ({"$defs": schema["$defs"]} if "$defs" in schema else {})


def _parsed(text: str) -> object:
    """The JSON in the text, which models that are not held to a format put into a fence."""
    fenced = _FENCED.match(text)
    try:
        return json.loads(fenced.group(1) if fenced else text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise OutputError(f"it is not JSON ({where})") from None


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
