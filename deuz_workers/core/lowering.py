"""The codec's careful half: any supported value to dicts with str keys, lists and scalars that JSON keeps exactly."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable
from enum import Enum
from pathlib import PurePath
from typing import Any, NoReturn, cast

from deuz_workers.core.tagged import MARK, PAYLOAD, WRITERS, read_tagged, tagged
from deuz_workers.errors import CodecError

MAX_DEPTH = 100
"""Containers inside each other, at most. A level costs up to three levels of JSON and five Python frames, so the codec alone
stays well below Python's limit of 1,000 frames; JSON that people exchange rarely passes 20 levels."""

_LONGEST_KEY_IN_PATH = 40
_CONTAINERS = (dict, list, tuple, set, frozenset)
_COMES_BACK_EQUAL = frozenset({str, bool, type(None), *WRITERS})

_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_INSIDE_PAIR = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")


def is_kept_by_json(text: str) -> bool:
    """False when two lone surrogates stand side by side: a JSON parser reads them as one character."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE_PAIR.search(text) is None
    return True


class Room:
    """What a text may take. Counts a lower bound while the value is walked, so that a huge one is refused early."""

    __slots__ = ("_at_least", "_limit")

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit = sys.maxsize if limit_bytes is None else limit_bytes
        self._at_least = 0

    def take(self, size_bytes: int) -> None:
        self._at_least += size_bytes
        if self._at_least > self._limit:
            self._refuse("at least ", self._at_least)

    def check(self, size_bytes: int) -> None:
        if size_bytes > self._limit:
            self._refuse("", size_bytes)

    def _refuse(self, bound: str, size_bytes: int) -> NoReturn:
        raise CodecError(
            f"the value takes {bound}{size_bytes} bytes as text, the limit is {self._limit}; "
            "store it elsewhere and pass a reference, or pass a part of it",
            size_bytes=size_bytes,
            limit_bytes=self._limit,
        )


class _RefusedError(Exception):
    """Why a value cannot be stored. Collects the path, innermost step first, on its way up."""

    def __init__(self, reason: str, value: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.type_name = type_name(value)
        self.steps: list[str] = []


class Lowering:
    """One pass over one value. `encoder` says whether keys are sorted."""

    __slots__ = ("_ancestors", "_encoder", "_room")

    def __init__(self, encoder: json.JSONEncoder, room: Room) -> None:
        self._encoder = encoder
        self._room = room
        self._ancestors: set[int] = set()

    def lower(self, value: object) -> object:
        """Raises: CodecError, whose `fields` are `path` and `type`."""
        try:
            return self._lower(value)
        except _RefusedError as refused:
            path = "$" + "".join(reversed(refused.steps))
            raise CodecError(f"{path}: {refused.reason}", path=path, type=refused.type_name) from refused.__cause__

    def _lower(self, value: object) -> object:
        kind = type(value)
        if kind is str:
            return self._lower_str(cast(str, value))
        if kind is bool or value is None:
            return value
        if kind in WRITERS:
            return self._lower_scalar(kind, value)
        if kind in _CONTAINERS:
            return self._lower_container(kind, value, value)
        return self._lower_plainer(value)

    def _lower_str(self, text: str) -> object:
        self._room.take(len(text))
        return text if is_kept_by_json(text) else tagged("str", _INSIDE_PAIR.split(text))

    def _lower_scalar(self, kind: type, value: object) -> object:
        if isinstance(value, bytes | bytearray):
            self._room.take(len(value) * 4 // 3)
        try:
            return WRITERS[kind](value)
        except ValueError as error:
            raise _RefusedError(f"the {type_name(value)} cannot be stored: {error}", value) from None
        except Exception as error:  # a tzinfo is the caller's code
            raise _RefusedError(f"the {type_name(value)} cannot be stored: {type_name(error)} was raised", value) from error

    def _lower_plainer(self, value: object) -> object:
        """What comes back as something plainer; the list is in the docstring of the codec."""
        if isinstance(value, Enum):
            return self._within(".value", value.value)
        if isinstance(value, PurePath):
            return self._lower_str(str(value))
        kind = type(value)
        if hasattr(kind, "__pydantic_serializer__") and hasattr(kind, "model_dump"):
            return self._lower_container(dict, value, _dump_model(value))
        if dataclasses.is_dataclass(kind):
            return self._lower_container(dict, value, _dump_dataclass(value))
        for base in kind.__mro__:
            if base is str:
                return self._lower_str(str.__str__(cast(str, value)))
            if base in WRITERS:
                return self._lower_scalar(base, value)
            if base in _CONTAINERS:
                return self._lower_container(base, value, value)
        raise _RefusedError(
            f"a value of type {type_name(value)} cannot be stored; "
            "pass plain data (dict, list, str, bytes, datetime, Decimal ...), a dataclass or a pydantic model",
            value,
        )

    def _lower_container(self, kind: type, owner: object, content: Any) -> object:
        if id(owner) in self._ancestors:
            raise _RefusedError(f"the {type_name(owner)} contains itself; pass a value without cycles", owner)
        if len(self._ancestors) == MAX_DEPTH:
            raise _RefusedError(f"nested more than {MAX_DEPTH} levels deep; pass a flatter value", owner)
        self._ancestors.add(id(owner))
        try:
            if kind is list:
                return self._items(content)
            if kind is tuple:
                return tagged("tuple", self._items(content))
            if kind is dict:
                # Only a pydantic RootModel is written as a dict and has other content.
                return self._dict(content) if isinstance(content, dict) else self._lower(content)
            return self._set(kind.__name__, content)
        finally:
            self._ancestors.discard(id(owner))

    def _items(self, values: Iterable[object]) -> list[object]:
        lowered = [self._within(f"[{place}]", item) for place, item in enumerate(values)]
        self._room.take(len(lowered))
        return lowered

    def _set(self, tag: str, members: Iterable[object]) -> object:
        # Sorted, because the order of a set differs from process to process.
        lowered = tagged(tag, sorted((self._within("{*}", member) for member in members), key=self._encoder.encode))
        self._check_members(members, lowered)
        return lowered

    def _dict(self, content: dict[object, object]) -> object:
        self._room.take(len(content))
        if MARK not in content and all(type(key) is str and is_kept_by_json(key) for key in content):
            return {cast(str, key): self._within(_step(key), item) for key, item in content.items()}
        pairs = [[self._within(".keys()", key), self._within(_step(key), item)] for key, item in content.items()]
        self._check_members(content, tagged("dict", [[key, None] for key, _ in pairs]))
        if self._encoder.sort_keys:
            pairs.sort(key=lambda pair: self._encoder.encode(pair[0]))
        return tagged("dict", pairs)

    def _check_members(self, members: Iterable[object], lowered: dict[str, object]) -> None:
        """Keys and members that come back plainer may have become equal to each other, or cannot be hashed any more."""
        if all(type(member) in _COMES_BACK_EQUAL for member in members):
            return
        expected = len(cast(list[object], lowered[PAYLOAD]))
        try:
            read = json.loads(self._encoder.encode(lowered), object_hook=read_tagged)
        except ValueError:
            read = ()
        if len(read) != expected:
            raise _RefusedError(
                f"the {type_name(members)} cannot be stored: once its keys or members come back as plain data, "
                "two are the same or one cannot be hashed; pass a list",
                members,
            )

    def _within(self, step: str, value: object) -> object:
        try:
            return self._lower(value)
        except _RefusedError as refused:
            refused.steps.append(step)
            raise


def _dump_model(model: Any) -> object:
    try:
        return model.model_dump(warnings=False)
    except Exception as error:  # its serializers are the caller's code
        raise _RefusedError(f"model_dump() of {type_name(model)} raised {type_name(error)}", model) from error


def _dump_dataclass(instance: Any) -> dict[str, object]:
    try:
        return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}
    except Exception as error:  # a field may be a property
        raise _RefusedError(f"a field of {type_name(instance)} raised {type_name(error)}", instance) from error


def _step(key: object) -> str:
    """The key as a step of a path: `.when`, `["a b"]`, `[5]`; shortened, and a type where the key is no str or int."""
    if isinstance(key, str):
        if key.isascii() and key.isidentifier() and len(key) <= _LONGEST_KEY_IN_PATH:
            return f".{key}"
        return f"[{json.dumps(key[:_LONGEST_KEY_IN_PATH])}]"
    if isinstance(key, int) and abs(key) < 10**_LONGEST_KEY_IN_PATH:
        return f"[{int.__index__(key)}]"
    return f"[{type_name(key)}]"


def type_name(value: object) -> str:
    """`list`, `decimal.Decimal`, `shop.models.Order`: the type of `value` as somebody who must find it would write it."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
