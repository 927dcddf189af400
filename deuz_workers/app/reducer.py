"""Reducers: plain functions as tasks of a swarm."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, overload

from deuz_workers.app.agent import check_policy
from deuz_workers.app.names import check_name
from deuz_workers.core.policy import NO_POLICY, ExecutionPolicy
from deuz_workers.core.usage import Budget, check_budget
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.definition import OnFailure, Reduce, ReducerContext, ReducerDefinition


class Reducer:
    """A function that joins the results of the tasks before it, found by its name in every process."""

    def __init__(
        self,
        name: str,
        function: Callable[..., object],
        *,
        replay_safe: bool = True,
        timeout_ms: int = 900_000,
        max_result_bytes: int = 5_000_000,
        policy: ExecutionPolicy = NO_POLICY,
        budget: Budget | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        """`replay_safe` False: one that died half way is not run again before somebody has looked.

        `policy` and `budget` bound what it starts itself, beside those of its swarm. `on_failure` takes a `FailureContext`
        where it fails and returns `TaskRequest`s, which become tasks with its end.

        Raises ConfigurationError, naming the reducer and the value.
        """
        self.name = check_name("a reducer", name)
        if not callable(function):
            raise ConfigurationError(f"reducer {name!r}: a {type(function).__name__} is no function")
        for what, value in (("timeout_ms", timeout_ms), ("max_result_bytes", max_result_bytes)):
            if type(value) is not int or value < 1:
                raise ConfigurationError(f"reducer {name!r}: {what} is a whole number from 1, not {value!r}")
        self._function = function
        if on_failure is not None and not callable(on_failure):
            raise ConfigurationError(f"reducer {name!r}: on_failure is a function, not a {type(on_failure).__name__}")
        self.definition = ReducerDefinition(
            name,
            _with_context(name, function),
            replay_safe,
            timeout_ms,
            max_result_bytes,
            check_policy(f"reducer {name!r}", policy) or NO_POLICY,
            None if budget is None else check_budget(f"reducer {name!r}", budget),
            on_failure,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Reducer {self.name!r}>"


@overload
def reducer(function: Callable[..., object], /) -> Reducer: ...
@overload
def reducer(
    *,
    name: str | None = None,
    replay_safe: bool = True,
    timeout_ms: int = 900_000,
    max_result_bytes: int = 5_000_000,
    policy: ExecutionPolicy = NO_POLICY,
    budget: Budget | None = None,
    on_failure: OnFailure | None = None,
) -> Callable[[Callable[..., object]], Reducer]: ...
def reducer(function: Callable[..., object] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
    """A reducer from a function of one mapping, results by task id, and if it wants one a `ReducerContext`.

    See `Reducer` for the options. Raises ConfigurationError for what cannot be one.
    """

    def make(function: Callable[..., object]) -> Reducer:
        called = name or getattr(function, "__name__", type(function).__name__)
        return Reducer(called, function, **options)

    return make if function is None else make(function)


def _with_context(name: str, function: Callable[..., object]) -> Reduce:
    """The function as the engine calls it, with results and context."""
    try:
        places = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature, such as `dict`
        return lambda results, context: function(results)
    for arguments, takes_context in (((None, None), True), ((None,), False)):
        try:
            places.bind(*arguments)
        except TypeError:
            continue
        if takes_context:
            return function
        if inspect.iscoroutinefunction(function):
            return _async_without_context(function)
        return lambda results, context: function(results)
    raise ConfigurationError(
        f"reducer {name!r}: the function takes {places}; it gets the results, and a context if it takes two"
    )


def _async_without_context(function: Callable[..., Any]) -> Reduce:
    async def reduce(results: Mapping[str, object], context: ReducerContext) -> object:
        return await function(results)

    return reduce
