"""A Python function as a tool."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from types import FunctionType, MethodType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast, overload

from deuz_workers.errors import ConfigurationError, DeadlinePassed, Interruption, ToolError
from deuz_workers.ports.tool import ToolContext
from deuz_workers.tools.arguments import Arguments
from deuz_workers.tools.declared import DeclaredTool
from deuz_workers.tools.options import Options
from deuz_workers.tools.projection import Projection
from deuz_workers.tools.scope import Scope
from deuz_workers.tools.signature import without_partial
from deuz_workers.tools.threads import THREADS, ToolThreads

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
Q = ParamSpec("Q")

Receiver = Literal["instance", "class"]

Enter = Callable[[Callable[..., Any], dict[str, Any], ToolContext], Callable[[], Any]]
"""From function, converted arguments and context to the call without arguments."""


class FunctionTool(DeclaredTool, Generic[P, R]):
    """Implements `Tool`, and is called like the function it was made from.

    Made by `tool` and `tool_from_schema`. One made from a method is bound like a method: `shop.buy` is the tool that an agent
    gets, `Shop.buy` has no `self` and refuses to run.
    """

    def __init__(
        self,
        function: Callable[P, R],
        options: Options,
        arguments: Arguments,
        projection: Projection,
        scope: Scope,
        *,
        enter: Enter,
        receiver: Receiver | None = None,
        threads: ToolThreads = THREADS,
    ) -> None:
        super().__init__(options, arguments, projection)
        functools.update_wrapper(cast(Callable[..., Any], self), function)
        self._function: Callable[..., R] = function
        self._is_coroutine = is_coroutine_function(function)
        self._scope = scope
        self._enter = enter
        self._receiver: Receiver | None = receiver
        self._threads = threads

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type) -> FunctionTool[P, R]: ...
    @overload
    def __get__(self: FunctionTool[Concatenate[S, Q], R], instance: S, owner: type | None = None) -> FunctionTool[Q, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> FunctionTool[P, R]: ...  # a static or class method
    def __get__(self, instance: Any, owner: type | None = None) -> FunctionTool[Any, R]:
        receiver = owner if self._receiver == "class" else instance
        if self._receiver is None or receiver is None:
            return self
        bound = copy.copy(self)
        bound.__dict__.update(_function=MethodType(self._function, receiver), _receiver=None)
        return bound

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    @property
    def replay(self) -> Literal["idempotent"] | None:
        return self._options.replay

    @property
    def timeout_ms(self) -> int | None:
        return self._options.timeout_ms

    @property
    def is_client(self) -> bool:
        return False

    @property
    def is_scoped(self) -> bool:
        return self._scope.is_declared

    def read_context(self, value: Any) -> Any:
        return self._scope.read(value)

    async def run(self, arguments: Mapping[str, object], context: ToolContext) -> object:
        """Call the function with converted arguments: a coroutine function on the loop, any other in a thread.

        What it raises comes out as it is, except what would end more than this call: SystemExit, KeyboardInterrupt from a
        thread, and a cancellation that nobody asked for become a ToolError. Cancelling ends an async function; a sync one
        goes on in its thread, where it can see `context.signal`, and its outcome is dropped. One whose time has passed is
        waited for a little longer (PTH-019).

        Raises: ToolArgumentsError, before anything is called.
        """
        if self._receiver is not None:
            raise ConfigurationError(
                f"tool '{self.name}' is a method; give the agent the one of an instance: instance.{self.name}"
            )
        call = self._enter(self._function, self._arguments.converted(arguments), context)
        try:
            result = await call() if self._is_coroutine else await self._threads.call(self.name, call, _time_is_over(context))
            # A plain function around a coroutine function returns its coroutine, which belongs on the loop.
            return await cast(Awaitable[object], result) if inspect.isawaitable(result) else result
        except SystemExit as error:  # raised in a task it would end the loop, and every run of the process
            raise ToolError(f"the tool '{self.name}' raised SystemExit; tools end by returning", tool=self.name) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling() == 0:
                raise ToolError(f"the tool '{self.name}' waited for something that was cancelled", tool=self.name) from error
            raise


def _time_is_over(context: ToolContext) -> Callable[[], bool]:
    """Whether the call is cancelled because its limit has passed, and for nothing else."""

    def is_over() -> bool:
        try:
            context.signal.raise_if_set()
        except DeadlinePassed:
            return True
        except Interruption:
            return False
        return False

    return is_over


def is_coroutine_function(function: Any) -> bool:
    function = without_partial(function)
    if not isinstance(function, FunctionType | MethodType) and callable(function):
        function = function.__call__
    return inspect.iscoroutinefunction(function)
