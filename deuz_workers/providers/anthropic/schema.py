"""A JSON Schema as the Messages API takes it for `output_config.format`; pure.

The API compiles the schema and refuses what it cannot compile. Vendor facts, read 2026-11 from
https://platform.claude.com/docs/en/build-with-claude/structured-outputs and the `anthropic` package 2.14.0, which rewrites the
schemas of its own users alike: objects are closed (`additionalProperties: false`); there are no bounds on numbers, strings and
lists but `minItems` 0 and 1; of `format` a few names. What is taken out is told in the description, and checked by us when the
answer is there. An object with free keys cannot be said at all: closed, it would always be empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from deuz_workers.errors import ModelRequestError

KEPT = frozenset({"$ref", "$defs", "type", "enum", "const", "anyOf", "allOf", "title", "properties", "required", "items"})
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
SAID_OTHERWISE = frozenset(
    {"description", "default", "additionalProperties", "oneOf", "definitions", "$schema", "discriminator"}
)
"""Neither kept nor told: each is treated below, or says nothing about what is accepted."""


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with closed objects, and with what the API does not compile moved into descriptions.

    Raises: `ModelRequestError`, for an object with free keys.
    """
    made = {name: value for name, value in schema.items() if name in KEPT}
    told: dict[str, Any] = {name: value for name, value in schema.items() if name not in KEPT | SAID_OTHERWISE}
    if "oneOf" in schema and "anyOf" not in schema:
        made["anyOf"] = schema["oneOf"]
    for name in ("anyOf", "allOf"):
        if isinstance(made.get(name), list):
            made[name] = [_inner(one) for one in cast(list[Any], made[name])]
    for name in ("$defs", "properties"):
        if isinstance(made.get(name), Mapping):
            made[name] = {key: _inner(one) for key, one in cast(Mapping[str, Any], made[name]).items()}
    if "items" in made:
        made["items"] = _inner(made["items"])
    if made.get("type") == "object" or "properties" in made:
        if not made.get("properties") and schema.get("additionalProperties", True) is not False:
            raise ModelRequestError(
                "the output type has an object with free keys, which output_config.format cannot say; "
                "list its keys, or ask by a tool: output_mode='tool'",
                code="unsupported_schema",
            )
        made["additionalProperties"] = False
        made.setdefault("properties", {})
    if told.get("format") in FORMATS:
        made["format"] = told.pop("format")
    if told.get("minItems") in (0, 1):
        made["minItems"] = told.pop("minItems")
    described = [str(schema["description"])] if schema.get("description") else []
    described += [", ".join(f"{name}: {value}" for name, value in told.items())] if told else []
    if described:
        made["description"] = "\n".join(described)
    return made


def _inner(schema: object) -> object:
    return strict_schema(cast(Mapping[str, Any], schema)) if isinstance(schema, Mapping) else schema
