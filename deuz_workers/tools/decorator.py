"""`@tool` and `tool_from_schema`: the two ways to make a tool of a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload

from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.tool import ToolContext
from deuz_workers.tools.arguments import Arguments
from deuz_workers.tools.docstring import read_docstring
from deuz_workers.tools.function import FunctionTool, Receiver
from deuz_workers.tools.options import MAX_RESULT_BYTES, NeedsApproval, Options
from deuz_workers.tools.projection import Convert, Projection
from deuz_workers.tools.scope import Scope
from deuz_workers.tools.signature import MISSING, Signature, read_signature, resolved, signature_of, without_partial

P = ParamSpec("P")
R = TypeVar("R")


@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    replay: Literal["idempotent"] | None = None,
    needs_approval: NeedsApproval = False,
    timeout_ms: int | None = None,
    output_schema: Any | None = None,
    validate_result: Convert | None = None,
    to_model_output: Convert | None = None,
    context_schema: Any | None = None,
    validate_context: Convert | None = None,
    max_result_bytes: int = MAX_RESULT_BYTES,
) -> FunctionTool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    replay: Literal["idempotent"] | None = None,
    needs_approval: NeedsApproval = False,
    timeout_ms: int | None = None,
    output_schema: Any | None = None,
    validate_result: Convert | None = None,
    to_model_output: Convert | None = None,
    context_schema: Any | None = None,
    validate_context: Convert | None = None,
    max_result_bytes: int = MAX_RESULT_BYTES,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    replay: Literal["idempotent"] | None = None,
    needs_approval: NeedsApproval = False,
    timeout_ms: int | None = None,
    output_schema: Any | None = None,
    validate_result: Convert | None = None,
    to_model_output: Convert | None = None,
    context_schema: Any | None = None,
    validate_context: Convert | None = None,
    max_result_bytes: int = MAX_RESULT_BYTES,
) -> Any:
    """A tool from a function, whose annotations and docstring become the schema that the model sees.

    Every parameter is an argument of the model's, except those annotated `ToolContext`, which get the call's context.

    Args:
        name: what the model calls it; the function's name if not given.
        description: what the model is told; the docstring without its parameters if not given.
        replay: `idempotent` if the call may run again after an interruption, because the other side recognises
            `ToolContext.idempotency_key` or because a repetition changes nothing. Otherwise an interrupted call waits for
            somebody to find out what happened.
        needs_approval: True, or a function of the converted arguments (one mapping), and of the call's `ToolContext` if it
            takes two, that says whether a person must agree.
        timeout_ms: limit of one call; the run's `tool_timeout_ms` if not given.
        output_schema: type of the result, checked before the model sees it; or a JSON Schema, which needs `validate_result`.
            Not given, the return annotation serves where one of the next two is.
        validate_result: takes the result, returns the one to go on with (None keeps it), raises to reject it.
        to_model_output: takes the accepted result and returns what the model gets instead.
        context_schema: type of the tool's own entry of `tools_context`. A tool that declares it finds the checked value as
            `ToolContext.context`, and neither dependencies nor the run's own context.
        validate_context: takes that value, returns the one to go on with (None keeps it), raises to reject it.
        max_result_bytes: stored size above which the result is refused.

    Raises: ConfigurationError, naming the function and the parameter, for what cannot be a tool.
    """
    frame = inspect.currentframe()
    # Annotations under `from __future__ import annotations` may name what is local to where the decorator stands.
    names = dict(frame.f_back.f_locals) if frame is not None and frame.f_back is not None else {}
    make = functools.partial(
        _make,
        names=names,
        name=name,
        description=description,
        make_options=functools.partial(
            Options,
            replay=replay,
            needs_approval=needs_approval,
            timeout_ms=timeout_ms,
            max_result_bytes=max_result_bytes,
        ),
        output_schema=output_schema,
        validate_result=validate_result,
        to_model_output=to_model_output,
        context_schema=context_schema,
        validate_context=validate_context,
    )
    return make if function is None else make(function)


def tool_from_schema(
    name: str,
    description: str,
    parameters: Mapping[str, object],
    function: Callable[[dict[str, Any], ToolContext], R | Awaitable[R]],
    *,
    replay: Literal["idempotent"] | None = None,
    needs_approval: NeedsApproval = False,
    timeout_ms: int | None = None,
    output_schema: Any | None = None,
    validate_result: Convert | None = None,
    to_model_output: Convert | None = None,
    context_schema: Any | None = None,
    validate_context: Convert | None = None,
    max_result_bytes: int = MAX_RESULT_BYTES,
) -> FunctionTool[[dict[str, Any], ToolContext], R | Awaitable[R]]:
    """A tool whose parameters are a JSON Schema instead of a signature.

    `function` gets the checked arguments in a dict of its own, and the context. The options are those of :func:`tool`.

    Raises: ConfigurationError, for what cannot be a tool.
    """
    return FunctionTool(
        function,
        Options(name, description, replay, needs_approval, timeout_ms, max_result_bytes),
        Arguments.from_schema(name, parameters),
        Projection(name, output_schema, validate_result, to_model_output),
        Scope(name, context_schema, validate_context),
        enter=lambda call, values, context: functools.partial(call, values, context),
    )


def _make(
    function: Any,
    *,
    names: Mapping[str, Any],
    name: str | None,
    description: str | None,
    make_options: Callable[[str, str], Options],
    output_schema: Any | None,
    validate_result: Convert | None,
    to_model_output: Convert | None,
    context_schema: Any | None,
    validate_context: Convert | None,
) -> FunctionTool[..., Any]:
    function, receiver = _unwrapped(function)
    described = without_partial(function)
    label = name or getattr(described, "__name__", None) or type(described).__name__
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"tool '{label}' yields; a tool returns one result, for example a list")
    signature = read_signature(function, label, names, is_method=receiver is not None)
    doc = read_docstring(inspect.getdoc(described), [parameter.name for parameter in signature.parameters])
    if output_schema is None and (validate_result or to_model_output):
        output_schema = _result_type(function, signature, label, names)
    return FunctionTool(
        function,
        make_options(label, doc.description if description is None else description),
        Arguments.from_parameters(label, signature.parameters, doc.parameters, names),
        Projection(label, output_schema, validate_result, to_model_output),
        Scope(label, context_schema, validate_context),
        enter=lambda call, values, context: functools.partial(
            call, **values, **dict.fromkeys(signature.context_names, context)
        ),
        receiver=receiver,
    )


def _unwrapped(function: Any) -> tuple[Callable[..., Any], Receiver | None]:
    """The function to call and what it must be bound to first."""
    if isinstance(function, staticmethod):
        return cast(Callable[..., Any], function.__func__), None
    if isinstance(function, classmethod):
        return cast(Any, function).__func__, "class"
    if isinstance(function, FunctionTool):
        raise ConfigurationError(f"'{function.name}' is a tool already; decorate the function once")
    if not callable(function):
        raise ConfigurationError(f"a {type(function).__name__} cannot be a tool; decorate a function")
    return function, _receiver(function)


def _receiver(function: Callable[..., Any]) -> Receiver | None:
    """Written in a class body, with a first parameter called self: it is a method, to be bound to an instance."""
    around, _, own_name = getattr(function, "__qualname__", "").rpartition(".")
    if not around or around.endswith("<locals>") or inspect.ismethod(function):
        return None
    first = next(iter(signature_of(function, own_name).parameters), None)
    if first == "cls":
        raise ConfigurationError(f"tool '{own_name}': write @tool above @classmethod, so that it is bound like one")
    return "instance" if first == "self" else None


def _result_type(function: Callable[..., Any], signature: Signature, label: str, names: Mapping[str, Any]) -> Any | None:
    if signature.returns in (MISSING, None, "None"):
        return None
    found = resolved(function, signature.returns, f"tool '{label}': the return type", names)
    return None if found in (Any, type(None)) else found
