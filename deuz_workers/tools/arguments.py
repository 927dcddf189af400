"""The arguments of one tool: their schema, and the way from what a model sent to what the function takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from deuz_workers.errors import ConfigurationError, ToolArgumentsError
from deuz_workers.tools.problems import conversion_problems, first_line, one_text
from deuz_workers.tools.schema import JsonSchema, compile_schema, schemas_of, violations
from deuz_workers.tools.signature import MISSING, Parameter


class Arguments:
    """Checked against a JSON Schema first, then converted to the types of the parameters.

    The schema decides what a model may send, so that pydantic's leniency (the string "5" for an int) does not become part
    of the tool's contract.
    """

    def __init__(self, label: str, schema: JsonSchema, fields: Mapping[str, _Field] | None) -> None:
        """`fields` None: the arguments are passed on as they are."""
        self._label = label
        self._fields = fields
        self._validator = compile_schema(schema, f"tool '{label}': the schema of the parameters")
        self.schema = schema

    @classmethod
    def from_parameters(
        cls, label: str, parameters: tuple[Parameter, ...], descriptions: Mapping[str, str], names: Mapping[str, Any]
    ) -> Arguments:
        """`names` are local names that the parameters' types may use in annotations of their own.

        Raises: ConfigurationError, naming the parameter whose type has no JSON Schema.
        """
        fields = {parameter.name: _Field(label, parameter, names) for parameter in parameters}
        properties, definitions = schemas_of((name, field.adapter) for name, field in fields.items())
        for name, field in fields.items():
            if name in descriptions and "description" not in properties[name]:
                properties[name] = {**properties[name], "description": descriptions[name]}
            if field.default is not MISSING:
                properties[name] = {**properties[name], **field.default_in_schema()}
        schema: JsonSchema = {"type": "object", "properties": properties, "additionalProperties": False}
        if required := [name for name, field in fields.items() if field.default is MISSING]:
            schema["required"] = required
        if definitions:
            schema["$defs"] = definitions
        return cls(label, schema, fields)

    @classmethod
    def from_schema(cls, label: str, schema: Mapping[str, object]) -> Arguments:
        """Raises: ConfigurationError, when it is no JSON Schema of type object."""
        if schema.get("type") != "object":
            raise ConfigurationError(f"tool '{label}': the schema of the parameters must be of type 'object'")
        return cls(label, dict(schema), None)

    def converted(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Arguments for the function, none of them shared with `given`. Parameters that were not sent are left out.

        Raises: ToolArgumentsError, which says what to change and repeats no value.
        """
        plain = cast(dict[str, Any], _copy(given))
        if problems := violations(self._validator, plain):
            raise self._refusal(problems)
        if self._fields is None:
            return plain
        values: dict[str, Any] = {}
        for name, field in self._fields.items():
            if name not in plain:
                if isinstance(field.default, FieldInfo):
                    values[name] = field.default.get_default(call_default_factory=True)
                continue
            try:
                values[name] = field.adapter.validate_python(plain[name])
            except ValidationError as error:
                problems += conversion_problems(error, name)
            except Exception as error:  # a validator of the user's
                raise self._refusal([f"{name}: its validator raised {type(error).__name__}"]) from error
        if problems:
            raise self._refusal(problems)
        return values

    def with_defaults(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Like :meth:`converted`, with the defaults of the function filled in."""
        defaults = {name: field.default for name, field in (self._fields or {}).items() if field.default is not MISSING}
        return defaults | self.converted(given)

    def _refusal(self, problems: list[str]) -> ToolArgumentsError:
        return ToolArgumentsError(
            f"the arguments of '{self._label}' are not valid: {one_text(problems)}. Correct them and call the tool again.",
            tool=self._label,
        )


class _Field:
    """One parameter with its converter. A default that is pydantic's `Field(...)` counts as metadata."""

    def __init__(self, label: str, parameter: Parameter, names: Mapping[str, Any]) -> None:
        annotation: Any = parameter.annotation
        self.default = parameter.default
        if isinstance(self.default, FieldInfo):
            annotation = cast(Any, Annotated[annotation, self.default])
            if self.default.is_required():
                self.default = MISSING
        try:
            self.adapter: TypeAdapter[Any] = TypeAdapter(annotation)
            self.adapter.rebuild(_types_namespace=dict(names))  # does nothing to one that is complete
            self.adapter.json_schema()
        except Exception as error:  # pydantic raises many kinds, and a type may bring its own code
            raise ConfigurationError(
                f"tool '{label}': parameter '{parameter.name}': its type cannot be an argument: {first_line(error)}; "
                "use plain types, a dataclass, a TypedDict or a pydantic model"
            ) from error

    def default_in_schema(self) -> JsonSchema:
        """`default` where JSON can say it."""
        value = self.default.default if isinstance(self.default, FieldInfo) else self.default
        if value is PydanticUndefined:
            return {}
        try:
            return {"default": self.adapter.dump_python(value, mode="json", warnings="error")}
        except Exception:  # noqa: BLE001 - the default misses its annotation: nothing to tell a model
            return {}


def _copy(value: object) -> object:
    """A deep copy in plain dicts and lists: the function may change what it gets, the engine's record must not."""
    if isinstance(value, Mapping):
        return {name: _copy(item) for name, item in cast(Mapping[str, object], value).items()}
    if isinstance(value, list | tuple):
        return [_copy(item) for item in cast(list[object], value)]
    return value
