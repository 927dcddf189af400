"""User code that raises what nobody expects, hangs, or gives itself up: it costs the call, and nothing else."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast

import pytest
from pydantic import AfterValidator

from deuz_workers import Agent, Limits, LoopDiedError, MockModel, Reducer, Swarm, Task, ToolError, run_agent_sync, tool
from deuz_workers.core.failure import MOST_CHARACTERS
from deuz_workers.core.messages import ToolResultPart
from deuz_workers.ports.model import ModelReply, ModelRequest, OnText
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import CrashingStore
from tests.app.world import Effects, World


class Base(BaseException):
    """An error that `except Exception` lets pass."""


class Mute(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Twisted(str):
    """A text without a length."""

    __slots__ = ()

    def __len__(self) -> int:
        raise ZeroDivisionError


HOSTILE: list[Callable[[], BaseException]] = [
    lambda: Base("b"),
    lambda: SystemExit(3),
    lambda: KeyboardInterrupt(),
    lambda: GeneratorExit(),
    lambda: asyncio.CancelledError(),
    lambda: StopIteration(),
    lambda: Mute(),
    lambda: ToolError(cast(Any, object())),
    lambda: ToolError(Twisted("x")),
]
hostile = pytest.mark.parametrize("error", HOSTILE, ids=[type(make()).__name__ + str(n) for n, make in enumerate(HOSTILE)])


def raising(make: Callable[[], BaseException]) -> Callable[..., str]:
    def function(*_: object) -> str:
        raise make()

    return function


def once(name: str) -> MockModel:
    return MockModel([calls(call(name)), "done"])


def answers(model: MockModel) -> list[ToolResultPart]:
    """What the model was told last."""
    return [part for message in model.requests[-1].messages for part in message.tool_results]


@hostile
@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "loop"])
async def test_whatever_a_tool_raises_fails_the_call(memory: World, error: Callable[[], BaseException], is_async: bool) -> None:
    """The model reads an error, the tool ran once although it may be repeated, and the run ends."""
    effects = Effects()

    def break_it() -> str:
        effects("ran")
        raise error()

    async def break_it_later() -> str:
        return break_it()

    model = once("broken")
    made = tool(break_it_later if is_async else break_it, name="broken", replay="idempotent")
    result = await memory.process(Agent("x", model=model, tools=[made])).aio.run_embedded("x", "go")
    assert (result.status, effects.done["ran"]) == ("completed", 1)
    [told] = answers(model)
    assert told.is_error
    assert told.text


async def test_a_tool_that_cancels_itself_has_failed(memory: World) -> None:
    """At the next thing it waits for, or by returning first: the step goes on."""

    async def waits() -> str:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(0)
        return "never"

    async def returns() -> str:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        return "never"

    tools = [tool(waits, replay="idempotent"), tool(returns, replay="idempotent", to_model_output=str)]
    model = MockModel([calls(call("waits"), call("returns")), "done"])
    result = await memory.process(Agent("x", model=model, tools=tools)).aio.run_embedded("x", "go")
    assert result.status == "completed"
    assert [told.is_error for told in answers(model)] == [True, True]


class SelfCancelling(MockModel):
    """A model that cancels the task it is called in, the first `times` times, and then answers all the same, or waits."""

    def __init__(self, times: int, *, waits: bool) -> None:
        super().__init__(["done"])
        self.times = times
        self.waits = waits

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        if self.times:
            self.times -= 1
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
            if self.waits:
                await asyncio.sleep(0)
        return await super().call(request, on_text)


@pytest.mark.parametrize("waits", [True, False])
async def test_a_model_that_cancels_itself_has_failed(memory: World, waits: bool) -> None:
    """Its call is a failed one, which is made again; the step goes on, and the run's other steps are its own."""
    once_more = Agent("x", model=SelfCancelling(1, waits=waits))
    assert (await memory.process(once_more).aio.run_embedded("x", "go")).output == "done"
    never = Agent("y", model=SelfCancelling(9, waits=waits), limits=Limits(max_retries=0))
    result = await memory.process(never).aio.run_embedded("y", "go")
    assert result.error is not None
    assert (result.status, result.error["code"]) == ("failed", "model_client")


class Broken:
    """A model that raises."""

    name = "mock:broken"

    def __init__(self, make: Callable[[], BaseException]) -> None:
        self.make = make

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        raise self.make()

    async def close(self) -> None:
        """Holds nothing."""


@pytest.mark.parametrize("error", [lambda: Base("b"), lambda: SystemExit(3), KeyboardInterrupt, asyncio.CancelledError])
async def test_whatever_a_model_raises_fails_the_run(memory: World, error: Callable[[], BaseException]) -> None:
    """As an error of the model's client, once its repetitions are used up."""
    agent = Agent("x", model=Broken(error), limits=Limits(max_retries=0))
    result = await memory.process(agent).aio.run_embedded("x", "go")
    assert result.status == "failed"
    assert (result.error or {})["code"] == "model_client"


@hostile
async def test_whatever_a_predicate_raises_asks_a_person(memory: World, error: Callable[[], BaseException]) -> None:
    """Who cannot say that a call is safe has not said it."""
    made = tool(lambda: 7, name="t", needs_approval=raising(error))
    result = await memory.process(Agent("x", model=once("t"), tools=[made])).aio.run_embedded("x", "go")
    assert result.status == "suspended"


@pytest.mark.parametrize("error", [Base("b"), SystemExit(3), Mute()], ids=lambda error: type(error).__name__)
async def test_whatever_the_check_of_an_argument_raises_refuses_the_call(memory: World, error: BaseException) -> None:
    """The model is told, and the tool does not run."""
    effects = Effects()

    def check(value: int) -> int:
        raise error

    def pay(amount: Annotated[int, AfterValidator(check)]) -> None:
        effects("paid")

    model = MockModel([calls(call("pay", amount=1)), "done"])
    result = await memory.process(Agent("x", model=model, tools=[tool(pay)])).aio.run_embedded("x", "go")
    assert (result.status, effects.done["paid"]) == ("completed", 0)
    assert [told.is_error for told in answers(model)] == [True]


@hostile
@pytest.mark.parametrize("option", ["validate_result", "to_model_output"])
async def test_whatever_a_projection_raises_fails_the_call(
    memory: World, error: Callable[[], BaseException], option: str
) -> None:
    """The result is kept, the model reads an error, and the run ends."""
    options: dict[str, Any] = {option: raising(error)}
    model = once("t")
    made = tool(lambda: 7, name="t", **options)
    result = await memory.process(Agent("x", model=model, tools=[made])).aio.run_embedded("x", "go", run_id="r")
    assert result.status == "completed"
    assert [told.is_error for told in answers(model)] == [True]
    assert [receipt.value for receipt in (await memory.receipts("r")).values()] == [7]


@hostile
@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "loop"])
async def test_whatever_a_reducer_raises_fails_the_task(
    memory: World, error: Callable[[], BaseException], is_async: bool
) -> None:
    """And it ran once, although it may be repeated."""
    effects = Effects()

    def join(results: Mapping[str, object]) -> object:
        effects("ran")
        raise error()

    async def join_later(results: Mapping[str, object]) -> object:
        return join(results)

    app = memory.process(reducers=[Reducer("join", join_later if is_async else join)])
    result = await app.aio.run_swarm_embedded(Swarm("s", [Task("a", reducer="join")]))
    assert (dict(result.tasks), effects.done["ran"]) == ({"a": "failed"}, 1)


async def test_user_code_keeps_nothing_of_the_loops_own_threads(memory: World) -> None:
    """Whatever is no coroutine runs where sync tools run, so that it cannot starve what the engine itself does off the loop."""
    seen: dict[str, str] = {}

    def say(what: str, value: Any) -> Any:
        seen[what] = threading.current_thread().name
        return value

    def join(results: Mapping[str, object]) -> object:
        return say("reducer", 1)

    made = tool(
        lambda: say("tool", 7),
        name="t",
        needs_approval=lambda _: say("predicate", False),
        validate_result=lambda value: say("validator", value),
        to_model_output=lambda value: say("projection", str(value)),
    )
    app = memory.process(Agent("x", model=once("t"), tools=[made]), reducers=[Reducer("join", join)])
    result = await app.aio.run_swarm_embedded(
        Swarm("s", [Task("a", agent="x", prompt="go"), Task("b", reducer="join", depends_on=["a"])])
    )
    assert result.status == "completed"
    assert {what: name.startswith("deuz-tool-") for what, name in seen.items()} == dict.fromkeys(
        ("tool", "predicate", "validator", "projection", "reducer"), True
    )


async def test_a_predicate_and_a_projection_have_the_limit_of_their_tool(memory: World) -> None:
    """One that hangs is left behind: the first as if it had said yes, the second as a failure."""
    go = threading.Event()

    def hang(_: object) -> str:
        go.wait()
        return ""

    asks = tool(lambda: 7, name="t", needs_approval=hang, timeout_ms=1)
    shows = tool(lambda: 7, name="t", to_model_output=hang, timeout_ms=200)
    model = once("t")
    try:
        asked = await memory.process(Agent("x", model=once("t"), tools=[asks])).aio.run_embedded("x", "go")
        shown = await memory.process(Agent("x", model=model, tools=[shows])).aio.run_embedded("x", "go")
    finally:
        go.set()
    assert (asked.status, shown.status) == ("suspended", "completed")
    [told] = answers(model)
    assert "took longer than 200 ms" in told.text


@pytest.mark.parametrize("option", ["needs_approval", "to_model_output"])
async def test_a_hanging_function_of_a_tool_is_not_in_the_way_of_a_cancel(memory: World, option: str) -> None:
    """The run stops although the function goes on."""
    loop, begun, go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def hang(_: object) -> bool:
        loop.call_soon_threadsafe(begun.set)
        go.wait()
        return False

    options: dict[str, Any] = {option: hang}
    app = memory.process(Agent("x", model=once("t"), tools=[tool(lambda: 7, name="t", **options)]))
    running = asyncio.ensure_future(app.aio.run_embedded("x", "go", run_id="r"))
    try:
        await begun.wait()
        await app.aio.handle("r").cancel()
        assert (await running).status == "stopped"
    finally:
        go.set()


async def test_what_is_stored_of_an_error_has_a_bound(memory: World) -> None:
    """The rest is counted."""

    def wordy() -> str:
        raise ToolError("x" * 1_000_000)

    model = once("wordy")
    await memory.process(Agent("x", model=model, tools=[tool(wordy)])).aio.run_embedded("x", "go")
    [told] = answers(model)
    assert told.text.startswith("x" * MOST_CHARACTERS + " ")
    assert told.text.endswith("[980000 more characters were cut]")


async def test_a_result_whose_own_code_breaks_is_one_that_cannot_be_stored(memory: World) -> None:
    """The call fails once instead of the step for ever."""
    effects = Effects()

    def twisted() -> str:
        effects("ran")
        return Twisted("x")

    model = once("twisted")
    made = tool(twisted, replay="idempotent")
    result = await memory.process(Agent("x", model=model, tools=[made])).aio.run_embedded("x", "go")
    assert (result.status, effects.done["ran"]) == ("completed", 1)


async def test_what_escapes_a_step_is_a_crash_of_that_step(memory: World) -> None:
    """Counted like any other, whatever its class is."""
    store = CrashingStore(memory.store, 1, error=cast(Any, Base("b")))
    app = memory.process(Agent("x", model=MockModel(["done"])), store=store.as_store)
    result = await app.aio.run_embedded("x", "go", run_id="r")
    assert (result.status, (result.error or {})["message"]) == ("failed", "the step crashed: Base")
    assert (await memory.head("r")).attempts == 1


def test_a_task_that_ends_the_loop_fails_the_call_that_waited() -> None:
    """With an error that says so; the next call has a loop again."""

    async def leave() -> str:
        async def exit_here() -> None:
            sys.exit(3)

        await asyncio.create_task(exit_here())
        return "never"

    with pytest.raises(LoopDiedError):
        run_agent_sync(Agent("x", model=once("leave"), tools=[tool(leave)]), "go")
    assert run_agent_sync(Agent("x", model=MockModel(["done"])), "go").output == "done"
