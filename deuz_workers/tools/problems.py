"""What is wrong with a value, in words that tell a model what to change.

The words name places, expectations and JSON types and never repeat the value: messages of jsonschema and pydantic do, and
these texts go to logs and receipts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import pydantic
from jsonschema.exceptions import ValidationError, relevance

MAX_PROBLEMS = 5
"""The first few are usually all; a model that misread a schema altogether gains nothing from the fortieth."""
MAX_PROBLEM_CHARS = 240
_MAX_NAME_CHARS = 40
_MAX_CHOICES = 20

_JSON_TYPES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "boolean"),
    (type(None), "null"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)


def schema_problems(errors: Iterable[ValidationError]) -> list[str]:
    """One line for each error of a JSON Schema validation."""
    return [_line(error) for error in errors]


def conversion_problems(error: pydantic.ValidationError, *prefix: str | int) -> list[str]:
    """One line for each error of pydantic's; `prefix` is the place of the whole value."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [_placed([*prefix, *each["loc"]], each["msg"]) for each in found]


def one_text(problems: list[str]) -> str:
    """The problems in one line, at most :data:`MAX_PROBLEMS` of them."""
    distinct = [_shortened(problem, MAX_PROBLEM_CHARS) for problem in dict.fromkeys(problems)]
    more = len(distinct) - MAX_PROBLEMS
    return "; ".join(distinct[:MAX_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")


def _line(error: ValidationError) -> str:
    if error.validator in ("anyOf", "oneOf") and error.context:
        return _line_of_alternatives(error)
    if cast(object, error.validator) is None:  # the schema `false`, whose errors have no path
        return "something in it is never allowed"
    say = _SAYINGS.get(str(error.validator))
    text = say(error.validator_value, error.instance, error) if say else f"breaks the rule '{error.validator}' of the schema"
    return _placed(error.absolute_path, text)


def _line_of_alternatives(error: ValidationError) -> str:
    """All allowed types where every alternative misses by type, else what is wrong with the one that came closest."""
    alternatives = list(error.context or ())
    types = [alternative.validator_value for alternative in alternatives if _misses_by_type(alternative, error)]
    if len(types) == len(alternatives):
        return _placed(
            error.absolute_path, _say_type([name for each in types for name in _as_list(each)], error.instance, error)
        )
    return _line(max((each for each in alternatives if not _misses_by_type(each, error)), key=relevance))


def _misses_by_type(alternative: ValidationError, error: ValidationError) -> bool:
    return alternative.validator == "type" and len(alternative.absolute_path) == len(error.absolute_path)


def _say_type(expected: Any, value: Any, error: ValidationError) -> str:
    return f"must be {' or '.join(dict.fromkeys(_as_list(expected)))}, not {json_type(value)}"


def _say_required(expected: list[str], value: Mapping[str, Any], error: ValidationError) -> str:
    missing = [name for name in expected if name not in value]
    return f"{_names(missing)} {'is' if len(missing) == 1 else 'are'} missing"


def _say_extra(expected: Any, value: Mapping[str, Any], error: ValidationError) -> str:
    known = list(cast(Mapping[str, Any], error.schema).get("properties", {}))
    extra = [name for name in value if name not in known]
    verb = "is" if len(extra) == 1 else "are"
    return f"{_names(extra)} {verb} not known; " + (f"known are {_names(known)}" if known else "it takes none")


def _say_size(bound: str, unit: str) -> Callable[[Any, Any, ValidationError], str]:
    return lambda expected, value, error: f"must have {bound} {expected} {unit}, not {len(value)}"


def _say_value(relation: str) -> Callable[[Any, Any, ValidationError], str]:
    return lambda expected, value, error: f"must be {relation} {_json(expected)}"


def _say_enum(expected: list[Any], value: Any, error: ValidationError) -> str:
    choices = ", ".join(_json(choice) for choice in expected[:_MAX_CHOICES])
    return f"must be one of {choices}{', ...' if len(expected) > _MAX_CHOICES else ''}"


_SAYINGS: Mapping[str, Callable[[Any, Any, ValidationError], str]] = {
    "type": _say_type,
    "required": _say_required,
    "additionalProperties": _say_extra,
    "enum": _say_enum,
    "const": _say_value("exactly"),
    "minimum": _say_value("at least"),
    "maximum": _say_value("at most"),
    "exclusiveMinimum": _say_value("more than"),
    "exclusiveMaximum": _say_value("less than"),
    "multipleOf": _say_value("a multiple of"),
    "pattern": _say_value("a string that matches the pattern"),
    "format": _say_value("in the format"),
    "minLength": _say_size("at least", "characters"),
    "maxLength": _say_size("at most", "characters"),
    "minItems": _say_size("at least", "items"),
    "maxItems": _say_size("at most", "items"),
    "minProperties": _say_size("at least", "properties"),
    "maxProperties": _say_size("at most", "properties"),
    "uniqueItems": lambda expected, value, error: "must not contain an item twice",
}


def json_type(value: object) -> str:
    return next((name for kind, name in _JSON_TYPES if isinstance(value, kind)), type(value).__name__)


def _placed(path: Iterable[str | int], text: str) -> str:
    where = ""
    for step in path:
        if isinstance(step, int):
            where += f"[{step}]"
        else:
            where += ("." if where else "") + _shortened(step, _MAX_NAME_CHARS)
    return f"{where}: {text}" if where else text


def _names(names: list[str]) -> str:
    shown = ", ".join(f"'{_shortened(name, _MAX_NAME_CHARS)}'" for name in names[:_MAX_CHOICES])
    return shown + (", ..." if len(names) > _MAX_CHOICES else "")


def _as_list(found: Any) -> list[str]:
    return cast(list[str], found) if isinstance(found, list) else [str(found)]


def _json(value: object) -> str:
    return _shortened(json.dumps(value, ensure_ascii=False), _MAX_NAME_CHARS)


def first_line(error: BaseException) -> str:
    """Of an error about a type, which no model or user had a hand in."""
    return _shortened((str(error) or type(error).__name__).splitlines()[0].rstrip("."), MAX_PROBLEM_CHARS)


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
