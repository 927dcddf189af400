"""JSON Schemas: made from types, checked, and compiled into a validator."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from referencing import Registry
from referencing.exceptions import Unresolvable

from deuz_workers.errors import ConfigurationError
from deuz_workers.tools.problems import schema_problems

JsonSchema = dict[str, Any]

_HOLDS_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "dependentSchemas")
_HOLDS_SCHEMAS = ("items", "additionalProperties", "anyOf", "oneOf", "allOf", "prefixItems", "not", "contains", "propertyNames")


def compile_schema(schema: Mapping[str, Any], where: str) -> Validator:
    """A validator of JSON values.

    It fetches nothing: a `$ref` outside the schema would let whoever wrote the schema make this process send requests.

    Raises: ConfigurationError, starting with `where`, when it is no JSON Schema (2020-12).
    """
    try:
        Draft202012Validator.check_schema(schema, format_checker=FormatChecker(()))  # patterns may be another language's
    except SchemaError as error:
        at = "/".join(str(step) for step in error.absolute_path) or "the root"
        raise ConfigurationError(f"{where} is not a valid JSON Schema: at {at}: {error.message[:200]}") from error
    return _Validator(schema, registry=cast(Any, Registry)())


def violations(validator: Validator, value: object) -> list[str]:
    """What is wrong with `value`, one line each, in words for a model; nothing where it fits."""
    try:
        return schema_problems(validator.iter_errors(cast(Any, value)))
    except Unresolvable:
        return ["it cannot be checked, because the schema refers to something outside itself"]
    except RecursionError:
        return ["it is nested too deeply, or the schema refers to itself without an end"]
    except re.error:
        return ["it cannot be checked, because the schema names properties by a pattern that is not readable"]


def _check_pattern(validator: Any, pattern: str, value: object, schema: object) -> Iterator[ValidationError]:
    """As JSON Schema says, except for patterns that Python cannot read (`\\p{L}` of Rust and JavaScript): those are left to
    pydantic, or to the server that the schema came from."""
    with contextlib.suppress(re.error):
        if validator.is_type(value, "string") and not re.search(pattern, cast(str, value)):
            yield ValidationError("does not match")


_Validator: Any = extend(Draft202012Validator, {"pattern": _check_pattern})


class _WithoutTitles(GenerateJsonSchema):
    """Titles repeat the names and cost tokens in every request; one that the user wrote is kept."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schemas_of(adapters: Iterable[tuple[str, TypeAdapter[Any]]]) -> tuple[dict[str, JsonSchema], JsonSchema]:
    """The schema of every adapter, by its name, and the definitions they share.

    Objects with named properties take no others unless their type says so: an argument that a model made up is reported to
    it instead of being dropped. Raises what pydantic raises for types that JSON cannot express.
    """
    inputs = [(name, "validation", adapter) for name, adapter in adapters]
    made, shared = TypeAdapter.json_schemas(cast(Any, inputs), schema_generator=_WithoutTitles)
    definitions: JsonSchema = shared.get("$defs", {})
    for name, definition in definitions.items():
        _tidy(definition)
        if definition.get("title") == name:
            del definition["title"]
    schemas = {name: schema for (name, _), schema in cast(dict[tuple[str, str], JsonSchema], made).items()}
    for schema in schemas.values():
        _tidy(schema)
    return schemas, definitions


def _tidy(schema: Any) -> None:
    """Close objects, in place, down to the leaves."""
    if isinstance(schema, list):
        for each in cast(list[Any], schema):
            _tidy(each)
    if not isinstance(schema, dict):
        return
    schema = cast(JsonSchema, schema)
    if schema.get("type") == "object" and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    for key in _HOLDS_SCHEMAS_BY_NAME:
        for each in cast(JsonSchema, schema.get(key, {})).values():
            _tidy(each)
    for key in _HOLDS_SCHEMAS:
        _tidy(schema.get(key))
