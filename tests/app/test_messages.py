"""What a run starts from, and what of it reaches the model, turn by turn."""

from __future__ import annotations

import pytest

from deuz_workers import Agent, ConfigurationError, ImagePart, MockModel, TextPart, tool
from deuz_workers.core.messages import Message, ReasoningPart, ToolResultPart, ToolUsePart, assistant, user
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.script import call, calls, raw_call, reply
from tests.app.world import World


@pytest.mark.spec("MSG-001")
async def test_text_and_one_text_part_are_the_same(memory: World) -> None:
    """However a message is written, every role and part is understood and the model sees one shape."""
    model = MockModel.function(lambda request: "ok")
    app = memory.process(Agent("x", model=model))
    for messages in (
        [{"role": "user", "content": "hello"}],
        [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        [user("hello")],
        [Message("user", (TextPart("hello"),))],
    ):
        assert (await app.aio.run_embedded("x", messages=messages)).status == "completed"
    assert all(request.messages == model.requests[0].messages for request in model.requests)

    history = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image", "media_type": "image/png", "url": "https://x/y"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "reasoning", "text": "hm"},
                {"type": "tool_use", "call_id": "c", "name": "look", "arguments": {}},
            ],
        },
        {"role": "tool", "content": [{"type": "tool_result", "call_id": "c", "name": "look", "text": "a cat"}]},
    ]  # fmt: skip
    assert (await app.aio.run_embedded("x", messages=history)).status == "completed"
    seen = model.requests[-1].messages
    assert [(message.role, [type(part) for part in message.parts]) for message in seen] == [
        ("system", [TextPart]),
        ("user", [TextPart, ImagePart]),
        ("assistant", [ReasoningPart, ToolUsePart]),
        ("tool", [ToolResultPart]),
    ]


@pytest.mark.spec("MSG-002")
async def test_every_call_is_answered_before_the_next_request(world: World) -> None:
    """Known and unknown tools, broken arguments, failures: the request of the next turn holds one result for each."""

    @tool
    async def fine(a: int) -> int:
        return a

    @tool
    async def broken() -> int:
        raise LookupError("nothing there")

    wanted = (call("fine", a=1), call("fine", a="x"), call("nosuch"), raw_call("fine", "{not json"), call("broken"))
    model = MockModel([calls(*wanted), "done"])
    result = await world.process(Agent("x", model=model, tools=[fine, broken])).aio.run_embedded("x", "go")
    assert result.status == "completed"
    asked = [use.call_id for message in model.requests[1].messages for use in message.tool_uses]
    parts = [part for message in model.requests[1].messages for part in message.tool_results]
    assert [part.call_id for part in parts] == asked
    assert [part.is_error for part in parts] == [False, True, True, True, True]
    assert parts[2].text == "There is no tool named 'nosuch'. Available tools: broken, fine."
    assert "not a JSON object" in parts[3].text
    assert parts[4].text == "LookupError: nothing there"


@pytest.mark.spec("MSG-003")
async def test_reasoning_and_what_only_the_provider_understands_is_sent_back_unchanged(world: World) -> None:
    """A signed thought of turn 1 stands in the request of turn 2 as it was, also after it was stored."""
    signed = ReasoningPart("let me see\u0000", {"signature": "c2ln\ud800", "raw": b"\x00\x01"})

    @tool
    async def look() -> str:
        return "seen"

    model = MockModel([reply("", call("look"), reasoning=signed), "done"])
    result = await world.process(Agent("x", model=model, tools=[look])).aio.run_embedded("x", "go", run_id="r")
    [sent] = [part for message in model.requests[1].messages for part in message.parts if isinstance(part, ReasoningPart)]
    [stored] = [part for message in result.messages for part in message.parts if isinstance(part, ReasoningPart)]
    assert sent == stored == signed


@pytest.mark.spec("MSG-004")
async def test_a_request_keeps_the_history_that_it_was_made_from(memory: World) -> None:
    """Later turns make new lists: what an earlier request held does not grow."""

    @tool
    async def look() -> str:
        return "seen"

    lengths: list[int] = []

    def answer(request: ModelRequest) -> object:
        lengths.append(len(request.messages))
        return calls(call("look")) if len(lengths) < 4 else "done"

    model = MockModel.function(answer)  # pyright: ignore[reportArgumentType]
    await memory.process(Agent("x", model=model, tools=[look])).aio.run_embedded("x", "go")
    assert [len(request.messages) for request in model.requests] == lengths == [1, 3, 5, 7]


@pytest.mark.spec("MSG-005")
async def test_bytes_of_an_image_survive_every_store(world: World) -> None:
    """Stored, loaded by another process, and sent as they were."""
    image = ImagePart("image/png", data=bytes(range(256)))
    model = MockModel(["a picture"])
    handle = await world.process(Agent("x", model=model)).aio.enqueue("x", [TextPart("what is it?"), image])
    result = await world.process(Agent("x", model=model)).aio.resume_embedded(handle.run_id)
    assert result.messages[0].parts[1] == image
    assert model.requests[0].messages[0].parts[1] == image


@pytest.mark.spec("MSG-006")
async def test_prompt_and_messages_begin_alike_and_instructions_are_the_system_turn(memory: World) -> None:
    """Both forms give the same first request; exactly one of them is accepted."""
    model = MockModel.function(lambda request: "ok")
    app = memory.process(Agent("x", model=model, instructions="be brief"))
    await app.aio.run_embedded("x", "hello")
    await app.aio.run_embedded("x", messages=[user("hello")])
    first, second = (request.messages for request in model.requests)
    assert first == second
    assert [(message.role, message.text) for message in first] == [("system", "be brief"), ("user", "hello")]
    for prompt, messages in ((None, None), ("hello", [user("hello")])):
        with pytest.raises(ConfigurationError, match="exactly one"):
            await app.aio.enqueue("x", prompt, messages=messages)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "empty"),
        ("hello", "list of messages"),
        ([7], "message 0 is a int"),
        ([{"role": "robot", "content": "x"}], "role 'robot'"),
        ([{"role": "user", "content": [{"type": "video"}]}], "type 'video'"),
        ([{"role": "user"}], "cannot be understood"),
        ([user("hi"), assistant("hello")], "the model's own"),
        ([user("hi"), assistant([ToolUsePart("c", "f", {})]), user("well?")], "exactly one result"),
    ],
)
async def test_messages_that_no_model_would_take_are_refused(memory: World, messages: object, words: str) -> None:
    """Before anything is written, in a sentence that says which message and why."""
    app = memory.process(Agent("x", model=MockModel(["ok"])))
    with pytest.raises(ConfigurationError, match=words):
        await app.aio.enqueue("x", messages=messages, run_id="r")  # pyright: ignore[reportArgumentType]
    assert await memory.store.head("default", "r") is None


async def test_a_message_of_fifty_megabytes_is_refused(memory: World) -> None:
    """With its size and the limit; nothing is written."""
    app = memory.process(Agent("x", model=MockModel(["ok"])))
    with pytest.raises(ConfigurationError, match="5000000"):
        await app.aio.enqueue("x", "x" * 50_000_000, run_id="r")
    assert await memory.store.head("default", "r") is None
