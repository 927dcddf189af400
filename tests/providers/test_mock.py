"""The scripted model."""

from __future__ import annotations

import asyncio

import pytest

from deuz_workers.core.messages import Message, ReasoningPart, TextPart, ToolResultPart, assistant, message, system, user
from deuz_workers.core.usage import Usage
from deuz_workers.errors import ModelRateLimitedError, ModelRequestError, ModelTimeoutError, ModelUnavailableError
from deuz_workers.ports.model import ModelReply, ModelRequest
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import attempts, call, calls, fails, hangs, raw_call, reply


def asked(*messages: Message, attempt: int = 1, timeout_ms: int | None = None) -> ModelRequest:
    return ModelRequest("r1", messages or (user("hi"),), attempt=attempt, timeout_ms=timeout_ms)


def answers(given: Message) -> Message:
    return message("tool", [ToolResultPart(use.call_id, use.name, "3") for use in given.tool_uses])


@pytest.mark.spec("DEP-002")
async def test_a_script_plays_calls_then_text() -> None:
    """Each assistant turn of the history moves the script on by one; nothing else is needed to play it."""
    model = MockModel([calls(call("add", a=1, b=2), call("add", a=3, b=4)), "done"])
    first = await model.call(asked())
    assert [dict(use.arguments or {}) for use in first.message.tool_uses] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert [use.call_id for use in first.message.tool_uses] == ["call_1_1", "call_1_2"]
    assert first.finish_reason == "tool_calls"
    last = await model.call(asked(user("hi"), first.message, answers(first.message)))
    assert (last.message.text, last.finish_reason, last.message.tool_uses) == ("done", "stop", ())
    assert [len(request.messages) for request in model.requests] == [1, 3]


async def test_the_same_request_gets_the_same_reply_from_any_process() -> None:
    """A repeated request repeats its reply, and a second object with the script (another process) gives it too."""
    script = [calls(call("add", a=1)), "done"]
    model, other = MockModel(script), MockModel(script)
    request = asked(system("be kind"), user("hi"))
    assert await model.call(request) == await model.call(request) == await other.call(request)


@pytest.mark.spec("DEP-002", "DEP-004")
async def test_a_call_uses_10_and_5_tokens_unless_told() -> None:
    """10 input and 5 output tokens by default; a reply may name others or none; no cost is claimed."""
    told = Usage(7, 2, cost_micros=None)
    model = MockModel(["a", reply("b", usage=told), reply("c", usage=None)])
    history = (user("1"), assistant("a"), user("2"), assistant("b"), user("3"))
    usages = [(await model.call(asked(*history[: 2 * turn + 1]))).usage for turn in range(3)]
    assert usages == [Usage(10, 5, cost_micros=None), told, None]


@pytest.mark.spec("DEP-002")
async def test_errors_are_chosen_by_the_attempt_and_are_fresh_copies() -> None:
    """`attempts` follows the request's attempt number; each raise is an object of its own with the same fields."""
    slow = ModelRateLimitedError("slow down", retry_after_ms=70)
    model = MockModel([attempts(slow, ModelUnavailableError, "done")])
    for _ in range(2):
        with pytest.raises(ModelRateLimitedError, match="slow down") as caught:
            await model.call(asked())
        assert caught.value is not slow
        assert (caught.value.retry_after_ms, caught.value.billed) == (70, "no")
    with pytest.raises(ModelUnavailableError):
        await model.call(asked(attempt=2))
    assert [(await model.call(asked(attempt=n))).message.text for n in (3, 4)] == ["done", "done"]


async def test_provider_ids_may_be_missing_or_repeated() -> None:
    """A missing id is an empty `call_id`; a repeated one stays repeated: telling calls apart is the engine's part."""
    model = MockModel([calls(call("a").without_id(), call("b").with_id("x"), call("c").with_id("x"))])
    uses = (await model.call(asked())).message.tool_uses
    assert [use.call_id for use in uses] == ["", "x", "x"]


async def test_arguments_that_are_no_json_are_kept_raw() -> None:
    """`raw_call` gives the text and no arguments."""
    use = (await MockModel([raw_call("add", '{"a": ')]).call(asked())).message.tool_uses[0]
    assert (use.arguments, use.raw_arguments) == (None, '{"a": ')


async def test_fragments_add_up_to_the_text() -> None:
    """The stream delivers the text word by word, or the given fragments, and nothing of it is lost."""
    for entry in ("  two words\n", reply("abc", fragments=["a", "bc"]), ""):
        heard: list[str] = []
        answer = await MockModel([entry]).call(asked(), heard.append)
        assert "".join(heard) == answer.message.text
    heard = []
    await MockModel([reply("abc", fragments=["a", "bc"])]).call(asked(), heard.append)
    assert heard == ["a", "bc"]


async def test_a_cut_stream_delivers_fragments_and_then_raises() -> None:
    """What came before the failure was heard; the call still fails."""
    heard: list[str] = []
    model = MockModel([fails(ModelUnavailableError("cut"), after=["he", "ll"])])
    with pytest.raises(ModelUnavailableError, match="cut"):
        await model.call(asked(), heard.append)
    assert heard == ["he", "ll"]


class VirtualClock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def unix_ms(self) -> int:
        return self.now_ms

    async def sleep_ms(self, ms: int) -> None:
        self.now_ms += ms
        await asyncio.sleep(0)


async def test_delays_pass_on_the_given_clock_and_end_at_the_timeout() -> None:
    """Delay and fragment delays add up; the request's `timeout_ms` cuts them off with `ModelTimeoutError`."""
    clock = VirtualClock()
    model = MockModel([reply("a b c", delay_ms=3_000, fragment_delay_ms=1_000)], clock=clock)
    await model.call(asked())
    assert clock.now_ms == 5_000
    with pytest.raises(ModelTimeoutError):
        await model.call(asked(timeout_ms=4_000))
    assert clock.now_ms == 9_000
    with pytest.raises(ModelTimeoutError):
        await MockModel([hangs()], clock=clock).call(asked(timeout_ms=500))
    assert clock.now_ms == 9_500


async def test_a_hanging_call_ends_by_cancellation() -> None:
    """Without a timeout nothing but a cancel ends it, and that at once."""
    pending = asyncio.ensure_future(MockModel([hangs()]).call(asked()))
    await asyncio.sleep(0)
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending


async def test_a_function_answers_from_the_request() -> None:
    """Plain and coroutine functions get the request and may return every kind of entry, also a whole reply."""
    whole = ModelReply(assistant("whole"), "length", None, "other")

    async def later(request: ModelRequest) -> ModelReply:
        return whole

    assert (await MockModel.function(lambda request: request.messages[-1].text * 2).call(asked())).message.text == "hihi"
    assert await MockModel.function(later).call(asked()) is whole
    assert (await MockModel([lambda request: call("look")]).call(asked())).message.tool_uses[0].name == "look"


async def test_a_request_beyond_the_script_is_refused() -> None:
    """The message says how long the script is and which turn was asked for; nothing is retried."""
    with pytest.raises(ModelRequestError, match="has 1 entries and this is turn 2"):
        await MockModel(["a"]).call(asked(user("1"), assistant("a"), user("2")))


@pytest.mark.spec("MSG-002")
async def test_an_unanswered_call_is_refused() -> None:
    """No reply is given to a request that leaves a call open, answers one twice or answers what was not asked."""
    model = MockModel([calls(call("a"), call("b")), "done"])
    turn = (await model.call(asked())).message
    both = answers(turn).parts
    for results in (both[:1], (*both, both[0]), (*both, ToolResultPart("other", "a", ""))):
        with pytest.raises(ModelRequestError) as caught:
            await model.call(asked(user("hi"), turn, Message("tool", results)))
        assert caught.value.code == "unpaired_tool_call"
    with pytest.raises(ModelRequestError, match="not answered"):
        await model.call(asked(user("hi"), turn, user("go on"), Message("tool", both)))


async def test_reasoning_and_metadata_are_part_of_the_reply() -> None:
    """A thought comes before the text, as providers send it."""
    thought = ReasoningPart("hm", {"signature": "s"})
    answer = await MockModel([reply("yes", reasoning=thought)]).call(asked())
    assert answer.message.parts == (thought, TextPart("yes"))
