"""What a function takes: the parameters the model fills in, and the ones that get the call's `ToolContext`."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, Union, cast

from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.tool import ToolContext

MISSING: Any = inspect.Parameter.empty

_REFUSED = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only, and a model passes arguments by name; remove the '/'",
    inspect.Parameter.VAR_POSITIONAL: (
        "takes any number of positional arguments, which no JSON Schema describes; use a parameter of type list, "
        "or functools.wraps in the decorator between"
    ),
    inspect.Parameter.VAR_KEYWORD: (
        "takes arguments of any name, so that nothing could tell a model which exist; use a parameter of type dict, "
        "or functools.wraps in the decorator between"
    ),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One that the model fills in. `default` is MISSING where the model must."""

    name: str
    annotation: Any
    default: Any


@dataclass(frozen=True, slots=True)
class Signature:
    parameters: tuple[Parameter, ...]
    context_names: tuple[str, ...]
    """Parameters that are given the call's `ToolContext`."""
    returns: Any
    """The annotation as written; resolve it with :func:`resolved` where it is needed. MISSING where there is none."""


def read_signature(function: Callable[..., Any], label: str, names: Mapping[str, Any], *, is_method: bool) -> Signature:
    """What `function` takes. `names` are local names that its annotations may use besides its module's globals.

    `is_method`: the first parameter is the receiver and not read.

    Raises: ConfigurationError, naming `label` and the parameter, for one that a model cannot fill in by name or whose
    annotation does not resolve.
    """
    read = signature_of(function, label)
    found = list(read.parameters.values())
    parameters: list[Parameter] = []
    context_names: list[str] = []
    for parameter in found[1:] if is_method else found:
        if parameter.kind in _REFUSED:
            raise ConfigurationError(f"tool '{label}': parameter '{parameter.name}' {_REFUSED[parameter.kind]}")
        annotation = resolved(function, parameter.annotation, f"tool '{label}': parameter '{parameter.name}'", names)
        if _is_context(annotation):
            context_names.append(parameter.name)
        else:
            parameters.append(Parameter(parameter.name, annotation, parameter.default))
    return Signature(tuple(parameters), tuple(context_names), read.return_annotation)


def resolved(function: Callable[..., Any], annotation: Any, where: str, names: Mapping[str, Any]) -> Any:
    """`annotation` with its strings evaluated; Any where it is missing.

    One at a time, so that the error names the place, and a return type that is imported for type checkers only does no harm.
    """
    if annotation is MISSING:
        return Any
    holder = cast(Callable[..., Any], SimpleNamespace(__annotations__={"it": annotation}))
    global_names = _globals(function)
    local_names = {"ToolContext": ToolContext} | dict(names)  # often imported for type checkers only
    local_names = {name: value for name, value in local_names.items() if name not in global_names or name in names}
    try:
        return typing.get_type_hints(holder, global_names, local_names, include_extras=True)["it"]
    except NameError as error:
        raise ConfigurationError(
            f"{where}: the annotation names '{error.name}', which is not defined where the function is; "
            "define or import it before the function, and not under TYPE_CHECKING"
        ) from error
    except Exception as error:  # an annotation is an expression of the user's
        raise ConfigurationError(f"{where}: the annotation cannot be read: {type(error).__name__}: {error}") from error


def signature_of(function: Callable[..., Any], label: str) -> inspect.Signature:
    """With annotations as written; on 3.14 those that do not resolve as forward references."""
    try:
        if sys.version_info >= (3, 14):
            import annotationlib

            return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
        return inspect.signature(function)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"tool '{label}': the signature cannot be read; wrap it in a function") from error


def _globals(function: Any) -> dict[str, Any]:
    """Names of the module in which the innermost function was written."""
    while True:
        function = without_partial(function)
        if hasattr(function, "__wrapped__") and not hasattr(function, "__signature__"):
            function = function.__wrapped__
        elif hasattr(function, "__globals__"):
            return function.__globals__
        elif hasattr(function, "__func__"):
            function = function.__func__
        elif isinstance(function.__call__, types.MethodType):
            function = function.__call__
        else:
            return {}


def without_partial(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = cast(Any, function).func
    return function


def _is_context(annotation: Any) -> bool:
    """`ToolContext`, also Annotated or optional."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _is_context(typing.get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return {arg for arg in typing.get_args(annotation) if arg is not type(None)} == {ToolContext}
    return annotation is ToolContext
