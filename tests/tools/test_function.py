"""Functions as tools: called as before, run by an engine, bound like methods."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, ParamSpec, TypeVar

import pytest
from pydantic import Field

from deuz_workers.errors import ConfigurationError, RunCancelled, ToolArgumentsError, ToolError
from deuz_workers.ports.signal import Signal
from deuz_workers.ports.tool import Tool, ToolContext
from deuz_workers.tools.decorator import tool, tool_from_schema
from tests.tools.contexts import context

P = ParamSpec("P")
R = TypeVar("R")


@tool
def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


@tool(name="add_async", replay="idempotent", timeout_ms=1_000, needs_approval=True)
async def add_later(a: int, b: int = 2) -> int:
    return a + b


def counted(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    return wrapper


async def add_up(a: int, b: int = 2) -> int:
    return a + b


class Shop:
    """A class whose methods are tools."""

    def __init__(self, name: str) -> None:
        self.name = name

    @tool
    def buy(self, sku: str, ctx: ToolContext) -> str:
        """Buy."""
        return f"{self.name} sells {sku} to {ctx.scope}"

    @tool(name="buy_later")
    async def later(self, sku: str) -> str:
        return f"{self.name} will sell {sku}"

    @tool
    @classmethod
    def kind(cls, sku: str) -> str:
        return f"{cls.__name__} {sku}"

    @tool
    @staticmethod
    def free(sku: str) -> str:
        return sku

    @staticmethod
    @tool
    def freer(sku: str) -> str:
        return sku

    def plain(self, sku: str) -> str:
        """Plain."""
        return f"{self.name}: {sku}"


class Callee:
    """Instances can be called."""

    async def __call__(self, a: int) -> int:
        return a + 1


async def test_a_tool_stays_callable() -> None:
    """Calls of one's own code go straight to the function, with its defaults, its name and its docstring."""
    assert add(1) == 3
    assert add(1, b=5) == 6
    assert await add_later(1) == 3
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Add.", __name__)  # pyright: ignore
    assert repr(add) == "<tool add>"


def test_a_tool_is_what_the_engine_expects() -> None:
    """Options are what the port calls them; what is not given is the port's neutral value."""
    made: Tool = add_later
    assert (made.name, made.spec.name, made.replay, made.timeout_ms) == ("add_async", "add_async", "idempotent", 1_000)
    assert (made.needs_approval({}), made.has_predicate, made.has_projection) == (True, False, False)
    made = add
    assert (made.name, made.replay, made.timeout_ms, made.needs_approval({"a": 1})) == ("add", None, None, False)


async def test_sync_functions_run_in_a_thread_and_async_ones_on_the_loop() -> None:
    """A function that blocks must not stop the loop; a coroutine must not leave it."""

    @tool
    def where() -> int:
        return threading.get_ident()

    @tool
    async def where_async() -> int:
        return threading.get_ident()

    assert await where.run({}, context()) != threading.get_ident()
    assert await where_async.run({}, context()) == threading.get_ident()


@pytest.mark.parametrize(
    "function",
    [
        functools.partial(add_up, b=5),
        counted(add_up),
        Callee(),
        lambda a: asyncio.sleep(0, a + 1),  # pyright: ignore
    ],
    ids=["partial", "wrapped", "callable object", "plain function that returns a coroutine"],
)
async def test_coroutines_are_awaited_whatever_stands_around_them(function: Any) -> None:
    """No un-awaited coroutine comes out as a result."""
    made = tool(function, name="t")
    assert await made.run({"a": 1}, context()) in (2, 3, 6)


async def test_a_wrapped_function_keeps_its_signature() -> None:
    """A decorator with functools.wraps between does not hide the parameters or the docstring."""

    def pay(amount: int, ctx: ToolContext) -> str:
        """Pay."""
        return f"{amount} by {ctx.agent}"

    made = tool(counted(pay))
    assert made.spec.description == "Pay."
    assert await made.run({"amount": 5}, context()) == "5 by clerk"


async def test_the_context_goes_where_it_is_annotated() -> None:
    """Every parameter annotated `ToolContext` gets the call's, whatever it is called and wherever it stands."""

    @tool
    def f(a: ToolContext, b: int, *, c: ToolContext | None = None, d: Annotated[ToolContext, "x"]) -> list[object]:
        return [a, b, c, d]

    given = context()
    assert await f.run({"b": 1}, given) == [given, 1, given, given]
    assert given.idempotency_key == "run-1/2/call-1"


async def test_methods_are_tools_of_their_instance() -> None:
    """`shop.buy` is a tool without `self`; static and class methods work in the usual order of decorators."""
    shop = Shop("Corner")
    assert list(shop.buy.spec.parameters["properties"]) == ["sku"]  # pyright: ignore
    assert shop.buy("x", context()) == await shop.buy.run({"sku": "x"}, context()) == "Corner sells x to acme"
    assert await shop.later("x") == await shop.later.run({"sku": "x"}, context()) == "Corner will sell x"
    for kind in (shop.kind, Shop.kind):
        assert await kind.run({"sku": "x"}, context()) == "Shop x"
    for free in (shop.free, Shop.free, shop.freer, Shop.freer):
        assert await free.run({"sku": "x"}, context()) == "x"
    bound = tool(shop.plain)
    assert (bound.spec.description, await bound.run({"sku": "x"}, context())) == ("Plain.", "Corner: x")


async def test_a_method_without_its_instance_does_not_run() -> None:
    """Registering `Shop.buy` instead of `shop.buy` is a configuration error with the way out."""
    with pytest.raises(ConfigurationError, match=r"instance\.buy"):
        await Shop.buy.run({"sku": "x"}, context())
    with pytest.raises(ConfigurationError, match="above @classmethod"):

        class _Wrong:  # pyright: ignore[reportUnusedClass]
            @classmethod
            @tool
            def kind(cls) -> None: ...


async def test_wrong_arguments_call_nothing() -> None:
    """Arguments are checked again when the tool runs, before the function is called."""
    called: list[int] = []

    @tool
    def f(a: int) -> None:
        called.append(a)

    with pytest.raises(ToolArgumentsError):
        await f.run({"a": "x"}, context())
    assert called == []


async def test_defaults_are_the_functions_own() -> None:
    """What the model leaves out is not passed; a `Field(...)` in place of a default gives its own value."""

    @tool
    def f(a: int = 3, b: int = Field(4), c: list[int] = Field(default_factory=list)) -> list[object]:  # noqa: B008
        return [a, b, c]

    assert await f.run({}, context()) == [3, 4, []]
    assert await f.run({"b": 5}, context()) == [3, 5, []]


@pytest.mark.parametrize(
    "error", [ValueError("no"), ToolError("told", code="x"), RunCancelled("stop"), LookupError()], ids=repr
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_tool_raises_comes_out(error: BaseException, is_async: bool) -> None:
    """The very error, from the thread or from the loop, also when it is an interruption."""

    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        await tool(fail_async if is_async else fail).run({}, context())
    assert raised.value is error


async def test_the_end_of_an_iterator_is_an_error_like_any_other() -> None:
    """A StopIteration, which no future and no coroutine may raise, becomes a RuntimeError and not a hang."""

    @tool
    def first() -> int:
        return next(iter(list[int]()))

    with pytest.raises(RuntimeError):
        await first.run({}, context())


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_cannot_end_the_process(is_async: bool) -> None:
    """SystemExit would end the loop and all runs of the worker: it becomes an error of this call."""

    def leave() -> None:
        sys.exit(3)

    async def leave_async() -> None:
        sys.exit(3)

    with pytest.raises(ToolError, match="SystemExit"):
        await tool(leave_async if is_async else leave).run({}, context())


async def test_a_cancellation_that_nobody_asked_for_is_an_error_of_the_tool() -> None:
    """A tool that waits for something cancelled fails; only a cancel of the call itself counts as one."""

    @tool
    async def wait_for_cancelled() -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    with pytest.raises(ToolError, match="waited for something that was cancelled"):
        await wait_for_cancelled.run({}, context())


async def test_except_exception_does_not_swallow_a_cancel() -> None:
    """A sync tool that catches every Exception around its work still ends when it looks at the signal."""
    signal, begun = Signal(), threading.Event()
    swallowed: list[Exception] = []

    @tool
    def work(ctx: ToolContext) -> str:
        try:
            begun.set()
            ctx.signal.wait(60_000)
            ctx.signal.raise_if_set()
        except Exception as error:  # noqa: BLE001 - the point of the test
            swallowed.append(error)
        return "went on"

    call = asyncio.create_task(work.run({}, context(signal)))
    await asyncio.to_thread(begun.wait, 60)
    signal.set(RunCancelled("by a person"))
    with pytest.raises(RunCancelled, match="by a person"):
        await call
    assert swallowed == []


async def test_cancelling_an_async_tool_reaches_it() -> None:
    """An async tool is cancelled where it waits and can clear up."""
    begun, cleared = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cleared.set()

    call = asyncio.create_task(work.run({}, context()))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert cleared.is_set()


def test_a_predicate_gets_converted_arguments() -> None:
    """It sees what the function would see, defaults included, and its truth decides."""
    seen: list[object] = []

    @tool(needs_approval=lambda given: seen.append(given) or given["amount"] > 100)
    def pay(amount: int, tags: set[str] = frozenset()) -> None: ...  # pyright: ignore

    assert (pay.needs_approval({"amount": 100}), pay.needs_approval({"amount": 101, "tags": ["a"]})) == (False, True)
    assert seen == [{"amount": 100, "tags": frozenset()}, {"amount": 101, "tags": {"a"}}]
    assert pay.has_predicate


@pytest.mark.spec("APR-002")
def test_a_predicate_that_raises_asks_for_approval() -> None:
    """Whoever cannot say that a call is safe needs a person; the same for arguments that do not convert."""

    @tool(needs_approval=lambda given: given["missing"])
    def pay(amount: int) -> None: ...

    @tool(needs_approval=lambda given: False)
    def harmless(amount: int) -> None: ...

    assert pay.needs_approval({"amount": 1})
    assert harmless.needs_approval({"amount": "x"})
    assert not harmless.needs_approval({"amount": 1})


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_from_a_schema_gets_arguments_and_context(is_async: bool) -> None:
    """Its function takes two parameters, whatever the schema says."""

    def look(given: dict[str, Any], ctx: ToolContext) -> object:
        return [given, ctx.agent]

    async def look_async(given: dict[str, Any], ctx: ToolContext) -> object:
        return [given, ctx.agent]

    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    made = tool_from_schema("look", "Look up.", schema, look_async if is_async else look, replay="idempotent")
    assert await made.run({"q": "x", "more": 1}, context()) == [{"q": "x", "more": 1}, "clerk"]
    assert made.replay == "idempotent"
    with pytest.raises(ToolArgumentsError, match="'q' is missing"):
        made.validate({})


async def test_context_variables_reach_the_tool() -> None:
    """What the caller has set (a trace, a tenant) is seen in the thread; what the tool sets stays there."""
    tenant = contextvars.ContextVar("tenant", default="none")

    @tool
    def read() -> str:
        seen = tenant.get()
        tenant.set("changed")
        return seen

    tenant.set("acme")
    assert await read.run({}, context()) == "acme"
    assert tenant.get() == "acme"


async def test_results_come_out_as_they_are() -> None:
    """No copy, no conversion: what may be stored is the engine's to judge."""
    result = object()

    @tool
    def give() -> object:
        return result

    assert await give.run({}, context()) is result
    waiting: Awaitable[object] = give.run({}, context())
    assert await waiting is result
