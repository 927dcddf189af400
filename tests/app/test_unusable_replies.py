"""Models that hand over what cannot be used: paid for a counted number of times, and the run has an end that can be read."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from deuz_workers import Agent, Budget, Limits, MockModel, tool
from deuz_workers.app.results import AgentResult
from deuz_workers.core.limits import MAX_RETRY_AFTER_MS
from deuz_workers.core.messages import Message, TextPart, ToolResultPart, ToolUsePart, user
from deuz_workers.core.run import Run, to_change
from deuz_workers.core.usage import Usage
from deuz_workers.engine import committer, model_call
from deuz_workers.engine.reply_check import stored_reply
from deuz_workers.errors import ModelError, ModelRateLimitedError
from deuz_workers.ports.model import ModelReply, ModelRequest, OnText
from deuz_workers.providers.chat.model import ChatCompletionsModel
from deuz_workers.providers.script import ScriptedCall, calls
from deuz_workers.testing.model_server import ModelServer
from tests.app.world import World

USED = Usage(10, 5)


class Custom:
    """A model of the user's: whatever `answer` gives, as often as it is asked."""

    name = "mock:custom"

    def __init__(self, answer: Callable[[ModelRequest], Any]) -> None:
        self.answer = answer
        self.paid = 0

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        self.paid += 1
        return self.answer(request)

    async def close(self) -> None:
        pass


def says(*parts: Any, role: Any = "assistant", finish: Any = "stop", usage: Any = USED, model: Any = "mock:x") -> ModelReply:
    return ModelReply(Message(role, parts), finish, usage, model)


def asks(call_id: Any = "c", arguments: Any = None, name: Any = "look") -> ModelReply:
    return says(ToolUsePart(call_id, name, {} if arguments is None else arguments), finish="tool_calls")


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


async def run(world: World, model: Any, *, max_retries: int = 1, **options: Any) -> AgentResult[Any]:
    """What the run reports, as stored: nothing of the process that ran it is left."""

    @tool
    def look(n: str = "") -> str:
        return "seen"

    def agent() -> Agent:
        limits = Limits(max_steps=5, max_retries=max_retries)
        return Agent("x", model=model, tools=[look], limits=limits, budget=Budget.of(tokens=100_000))

    await asyncio.wait_for(world.process(agent()).aio.run_embedded("x", "go", run_id="r", **options), 30)
    return await world.process(agent()).aio.handle("r").result(timeout=5)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (None, "a NoneType, not a ModelReply"),
        ({"a": 1}, "a dict, not a ModelReply"),
        (ModelReply(None, "stop", USED, "mock:x"), "a NoneType, not a Message"),  # pyright: ignore[reportArgumentType]
        (says(TextPart("x"), role="junk"), "its role"),
        (says(TextPart("x"), role="user"), "role user, not assistant"),
        (says(TextPart(5)), "text of part 0"),  # pyright: ignore[reportArgumentType]
        (says("x"), "part 0 is a str"),
        (says(ToolResultPart("a", "look", "x", receipt_step=1)), "the result of a call"),
        (says(TextPart("x"), usage=Usage(-1_000_000, 5)), "input_tokens of its usage is below 0"),
        (says(TextPart("x"), usage=Usage(10**30, 5)), "input_tokens of its usage"),
        (says(TextPart("x"), usage=Usage(1, 1.5)), "output_tokens of its usage is a float"),  # pyright: ignore[reportArgumentType]
        (says(TextPart("x"), usage=Usage(1, 5, cost_micros=-1)), "cost_micros"),
        (says(TextPart("x"), usage=(1, 2)), "its usage is a tuple"),
        (says(TextPart("x"), finish=None), "its finish_reason is a NoneType"),
        (says(TextPart("x"), model=None), "its model is a NoneType"),
        (asks(7), "call_id of part 0"),
        (asks(arguments=[1]), "arguments of part 0"),
        (asks(arguments={"n": object()}), "a value of type object"),
        (asks(arguments=deep(5_000)), "nested more than"),
        (asks(arguments={"n": ["x" * 20_000_000]}), "the limit is 16777216"),
        (says(TextPart("x" * 50_000_000)), "the limit is 16777216"),
    ],
    ids=range(21),
)
async def test_a_reply_that_cannot_be_used_fails_the_call_and_then_the_run(memory: World, reply: object, words: str) -> None:
    """As often as the limits allow and no more; the budget counts what may have been spent, and the result can be read."""
    model = Custom(lambda request: reply)
    result = await run(memory, model)
    assert (result.status, model.paid) == ("failed", 2)
    assert result.error is not None
    assert (result.error["name"], result.error["code"]) == ("ModelResponseError", "model_reply")
    assert words in str(result.error["message"])
    envelope = await memory.opened[-1].aio.handle("r").envelope()
    balance = await memory.store.balance(envelope.scopes[0])
    assert balance is not None
    assert balance.held.tokens == 0
    assert balance.unknown.tokens == envelope.unknown_tokens > 0


@pytest.mark.parametrize(
    "call_id", ["a\0b", "a\ud800b", "x" * 12_000, "", "ü"], ids=["nul", "surrogate", "long", "none", "umlaut"]
)
async def test_a_call_with_a_strange_id_is_executed(world: World, call_id: str) -> None:
    """Under an id of ours, in every database."""
    model = Custom(lambda request: asks(call_id) if len(request.messages) == 1 else says(TextPart("done")))
    result = await run(world, model)
    assert (result.status, result.output, model.paid) == ("completed", "done", 2)
    assert [(use.call_id, use.name) for message in result.messages for use in message.tool_uses] == [("s1c1", "look")]
    assert [part.call_id for message in result.messages for part in message.tool_results] == ["s1c1"]


@pytest.mark.parametrize("number", [10**5_000, -(10**5_000)], ids=["long", "negative"])
async def test_a_number_that_cannot_be_written_in_decimal_is_no_argument(world: World, number: int) -> None:
    """The model is told so by a result of that call, and the run goes on; no tool ran, and nothing was paid for twice."""
    done: list[object] = []

    @tool
    async def look(n: int = 0) -> str:
        done.append(n)
        return "seen"

    model = Custom(
        lambda request: asks(arguments={"n": {"deep": [number]}}) if len(request.messages) == 1 else says(TextPart("done"))
    )
    result = await world.process(Agent("x", model=model, tools=[look])).aio.run_embedded("x", "go", run_id="r")
    assert (result.status, result.output, model.paid, done) == ("completed", "done", 2, [])
    [told] = [part for message in result.messages for part in message.tool_results]
    assert (told.is_error, told.outcome) == (True, "invalid-arguments")


async def test_a_number_that_cannot_be_written_in_decimal_may_be_part_of_a_given_history(world: World) -> None:
    """It counts by the size that it is stored with."""
    given = [
        user("go"),
        Message("assistant", (ToolUsePart("c", "look", {"n": 10**5_000}),)),
        Message("tool", (ToolResultPart("c", "look", "seen"),)),
    ]
    app = world.process(Agent("x", model=MockModel.function(lambda request: "done")))
    result = await app.aio.run_embedded("x", messages=given, run_id="r")
    assert (result.status, result.output) == ("completed", "done")


async def test_strange_ids_come_back_to_the_server_in_pairs(memory: World) -> None:
    """Calls and results of the next request name each other, over the wire."""
    made = [ScriptedCall("look").with_id(call_id) for call_id in ("a\0", "a\ud800", "a\ud801", "x" * 500, "same", "same", "ok")]
    with ModelServer([calls(*made), "done"]) as server:
        result = await run(memory, ChatCompletionsModel("m", server.base_url))
        sent = server.requests[-1].body["messages"]
    assert result.output == "done"
    asked = [call["id"] for call in sent[1]["tool_calls"]]
    assert asked == [message["tool_call_id"] for message in sent[2:]]
    assert asked == ["s1c1", "s1c2", "s1c3", "x" * 500, "s1c5", "s1c6", "ok"]


class Unfinished(ModelError):
    """An error class of the user's that never calls ours."""

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: ModelRateLimitedError("x", retry_after_ms=float("nan")),  # pyright: ignore[reportArgumentType]
        lambda: ModelRateLimitedError("x", retry_after_ms=-5),
        lambda: ModelRateLimitedError("x", retry_after_ms="soon"),  # pyright: ignore[reportArgumentType]
        lambda: ModelRateLimitedError(object()),  # pyright: ignore[reportArgumentType]
        lambda: ModelRateLimitedError("x", code=5),  # pyright: ignore[reportArgumentType]
        lambda: ModelRateLimitedError("x", detail=object()),  # pyright: ignore[reportArgumentType]
        Unfinished,
    ],
    ids=range(7),
)
async def test_an_error_of_a_model_may_hold_anything(memory: World, make: Callable[[], ModelError]) -> None:
    """It is counted like any other, and what cannot be stored of it is left out."""

    def fail(request: ModelRequest) -> ModelReply:
        raise make()

    model = Custom(fail)
    result = await run(memory, model, max_retries=0 if make is Unfinished else 1)
    assert (result.status, model.paid) == ("failed", 1 if make is Unfinished else 2)
    assert result.error is not None
    assert isinstance(result.error["message"], str)


@pytest.mark.parametrize("asked_ms", [10**30, 10**400, float("inf"), MAX_RETRY_AFTER_MS + 1])
async def test_no_model_makes_a_run_wait_for_more_than_an_hour(memory: World, asked_ms: Any) -> None:
    """Whatever it asks for."""

    def fail(request: ModelRequest) -> ModelReply:
        raise ModelRateLimitedError("x", retry_after_ms=asked_ms)

    app = memory.process(Agent("x", model=Custom(fail)))
    waiting = asyncio.create_task(app.aio.run_embedded("x", "go", run_id="r"))
    until = time.monotonic() + 10
    while time.monotonic() < until:
        await asyncio.sleep(0.02)
        loaded = await memory.store.load("default", "r")
        if loaded is not None and (loaded.head.due_in_ms or 0) > 10_000:
            break
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert MAX_RETRY_AFTER_MS - 20_000 < ((await memory.head("r")).due_in_ms or 0) <= MAX_RETRY_AFTER_MS


async def test_a_run_waits_to_its_deadline_and_no_longer(world: World) -> None:
    """A provider that asks for an hour does not keep a run that has half a second."""

    def fail(request: ModelRequest) -> ModelReply:
        raise ModelRateLimitedError("x", retry_after_ms=10**30)

    result = await run(world, Custom(fail), deadline=timedelta(milliseconds=500))
    assert result.error is not None
    assert (result.status, result.error["code"]) == ("failed", "deadline_exceeded")


class Failing:
    """A price list of the user's."""

    def __init__(self, cost: object) -> None:
        self.cost = cost

    def cost_micros(self, model: str, usage: Usage) -> Any:
        if model != "mock:reported":
            return None
        if isinstance(self.cost, Exception):
            raise self.cost
        return self.cost


@pytest.mark.parametrize("cost", [ZeroDivisionError(), -5, 1.5, 10**30], ids=["raises", "negative", "float", "huge"])
async def test_a_price_that_is_none_leaves_the_cost_unknown(
    memory: World, cost: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply is paid for already; it is kept."""

    def failing(prices: object) -> Failing:
        return Failing(cost)

    monkeypatch.setattr("deuz_workers.app.deuz.PriceList", failing)
    model = Custom(lambda request: says(TextPart("done"), model="mock:reported"))
    result = await run(memory, model)
    assert (result.output, result.usage.total_tokens, result.usage.cost_micros, model.paid) == ("done", 15, None, 1)


async def test_a_reply_of_megabytes_does_not_stop_the_loop(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is written by another thread; what is too long is refused at once."""
    writers: list[threading.Thread] = []

    def watched(given: ModelReply) -> ModelReply:
        writers.append(threading.current_thread())
        return stored_reply(given)

    monkeypatch.setattr(model_call, "stored_reply", watched)
    texts = ["é" * 50_000_000, "x" * 15_000_000]
    model = Custom(lambda request: says(TextPart(texts.pop(0))))
    result = await run(memory, model)
    assert (result.status, len(result.text), model.paid) == ("completed", 15_000_000, 2)
    [writer] = writers
    assert writer is not threading.current_thread()


async def test_long_arguments_are_written_off_the_loop(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only long texts are."""
    threads: list[tuple[int, threading.Thread]] = []

    def watched(run: Run, commit_id: Any) -> Any:
        threads.append((len(run.unsaved.messages), threading.current_thread()))
        return to_change(run, commit_id)

    monkeypatch.setattr(committer, "to_change", watched)
    script = [calls(ScriptedCall("look", {"n": "x" * 100_000})), "done"]
    assert (await run(memory, MockModel(script))).output == "done"
    off_loop = [messages for messages, thread in threads if thread is not threading.current_thread()]
    assert off_loop == [1]
