"""The OpenAPI document, made from the operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from deuz_workers.gateway.operation import Operation
from deuz_workers.gateway.problems import MEDIA_TYPE
from deuz_workers.gateway.records import Problem

REF = "#/components/schemas/{model}"


def openapi(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """Version 3.1. Every operation says what it takes, what it answers, and that all else is a problem."""
    wanted: list[tuple[type[BaseModel], JsonSchemaMode]] = [(Problem, "serialization")]
    for one in operations:
        if one.answer is not None:
            wanted.append((one.answer, "serialization"))
        if one.body is not None:
            wanted.append((one.body, "validation"))
    refs, shared = models_json_schema(list(dict.fromkeys(wanted)), ref_template=REF, by_alias=True)
    paths: dict[str, Any] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, refs)
    return {
        "openapi": "3.1.0",
        "info": {"title": "deuz_workers gateway", "version": version, "description": "Durable agent runs over HTTP."},
        "paths": paths,
        "components": {
            "schemas": shared.get("$defs", {}),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "ticket": {"type": "apiKey", "in": "query", "name": "ticket"},
            },
        },
    }


def _operation(one: Operation, refs: Any) -> dict[str, Any]:
    content: dict[str, Any] = {one.media: {}}
    if one.answer is not None:
        content = {one.media: {"schema": refs[one.answer, "serialization"]}}
    elif one.media != "application/json":
        content = {one.media: {"schema": {"type": "string"}}}
    problem = {MEDIA_TYPE: {"schema": refs[Problem, "serialization"]}}
    made: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.summary,
        "parameters": [*_path(one), *_query(one), *_headers(one)],
        "responses": {
            str(one.status): {"description": "As asked.", "content": content},
            "default": {"description": "What kept it from being done.", "content": problem},
        },
        "security": {
            "open": [],
            "token": [{"token": []}],
            "operator": [{"token": []}],
            "ticket": [{"token": []}, {"ticket": []}],
        }[one.access],
    }
    if one.body is not None:
        made["requestBody"] = {
            "required": any(field.is_required() for field in one.body.model_fields.values()),
            "content": {"application/json": {"schema": refs[one.body, "validation"]}},
        }
    return made


def _path(one: Operation) -> list[dict[str, Any]]:
    names = [segment[1:-1] for segment in one.segments if segment.startswith("{")]
    schema = {"type": "string", "minLength": 1, "maxLength": 1024}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]


def _query(one: Operation) -> list[dict[str, Any]]:
    if one.access == "open":
        return []
    schema = one.query.model_json_schema()
    found: list[dict[str, Any]] = []
    for name, field in schema.get("properties", {}).items():
        if name == "ticket":  # said as a security scheme
            continue
        field.pop("title", None)
        found.append({"name": name, "in": "query", "required": False, "schema": _not_null(field)})
    return found


def _not_null(field: dict[str, Any]) -> dict[str, Any]:
    """A parameter is left out, and never null."""
    options = [option for option in field.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) != 1:
        return field
    return {name: value for name, value in field.items() if name not in ("anyOf", "default")} | options[0]


def _headers(one: Operation) -> list[dict[str, Any]]:
    if one.is_idempotent:
        schema = {"type": "string", "minLength": 1, "maxLength": 512, "pattern": "^[!-~]+$"}
        return [{"name": "Idempotency-Key", "in": "header", "required": False, "schema": schema}]
    if one.access == "ticket":
        about = "Number of the newest frame that the reader has."
        return [
            {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"}, "description": about}
        ]
    return []
