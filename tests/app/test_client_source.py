"""A stream over a run of others: what arrives out of order, what does not arrive, and what the store says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from deuz_workers.app import client_source
from deuz_workers.app.agent_stream import AgentStream
from deuz_workers.app.client_source import Begun, ClientSource
from deuz_workers.app.stream_events import Missed, PartEvent, ResultEvent, StreamEvent, TextDelta, ToolOutput
from deuz_workers.core.live import LiveKind, LivePart
from deuz_workers.ports.live import LiveSubscription, OnParts
from tests.app.test_streams import agent
from tests.app.world import World


class Channel:
    """A `LiveSource` of which the test says what arrives; its one subscription is `is_connected` as the test says."""

    def __init__(self) -> None:
        self.is_connected = True
        self.subscribed = asyncio.Event()
        self.written = asyncio.Event()
        """The run is there."""
        self._on_parts: OnParts | None = None

    async def subscribe(self, scope: str, run_id: str, on_parts: OnParts) -> LiveSubscription:
        self._on_parts = on_parts
        self.subscribed.set()
        return self

    async def close(self) -> None:
        self._on_parts = None

    def arrives(self, *parts: LivePart) -> None:
        assert self._on_parts is not None
        self._on_parts(parts)


def tool_part(epoch: int, step: int) -> LivePart:
    return LivePart("tool", step, epoch, {"call_id": f"c{step}", "tool": "t", "value": step})


def part(kind: LiveKind, epoch: int, **data: object) -> LivePart:
    return LivePart(kind, 1, epoch, data)


async def streamed(memory: World, channel: Channel) -> tuple[AgentStream, Any]:
    """A stream of a run that is not executed yet, and what executes it."""
    app = memory.process(agent("done"))

    async def begin() -> Begun:
        await app.aio.enqueue("x", "hi", run_id="r")
        channel.written.set()
        return Begun("r", 0)

    access = app.aio._access
    stream = AgentStream(ClientSource(access, channel, "default", "r", "x", begin))
    return stream, lambda: app.aio.resume_embedded("r")


async def read(view: Any, count: int) -> Sequence[StreamEvent]:
    return [await anext(view) for _ in range(count)]


async def test_parts_that_were_overtaken_are_shown_in_the_order_of_their_commits(memory: World) -> None:
    """However they arrive, and without a word about it."""
    channel = Channel()
    stream, execute = await streamed(memory, channel)
    events = stream.events
    first = asyncio.ensure_future(read(events, 3))
    await channel.subscribed.wait()
    channel.arrives(tool_part(3, 3))
    channel.arrives(tool_part(2, 2))
    channel.arrives(tool_part(1, 1))
    assert [event.raw_result for event in await first if isinstance(event, ToolOutput)] == [1, 2, 3]
    await execute()
    await stream.consume()


async def test_a_part_that_is_lost_is_given_up_although_others_go_on_to_come(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time runs from the first that is held back, so that a busy run is not held back for ever."""
    monkeypatch.setattr(client_source, "GAP_MS", 50)
    channel = Channel()
    stream, execute = await streamed(memory, channel)
    events = stream.events
    first = asyncio.ensure_future(read(events, 2))
    await channel.subscribed.wait()
    epoch = 1
    async with asyncio.timeout(30):
        while not first.done():
            epoch += 1
            channel.arrives(tool_part(epoch, epoch))
            await asyncio.sleep(0.005)
    assert [event if isinstance(event, Missed) else event.type for event in await first] == [Missed("lost"), "tool-output"]
    await execute()
    await stream.consume()


@pytest.mark.parametrize("is_connected", [True, False])
async def test_the_result_does_not_wait_for_a_channel_that_says_nothing(
    memory: World, monkeypatch: pytest.MonkeyPatch, is_connected: bool
) -> None:
    """It is there although not a part came; the events say that something is lost, and have the answer and the end."""
    monkeypatch.setattr(client_source, "TRAIL_MS", 3_600_000)
    channel = Channel()
    channel.is_connected = is_connected
    stream, execute = await streamed(memory, channel)
    events = stream.events
    result = asyncio.ensure_future(asyncio.wait_for(stream.result, 30))
    await channel.written.wait()
    await execute()
    assert (await result).status == "completed"
    if is_connected:
        channel.arrives(part("commit", 1), part("end", 2, status="completed"))
    seen = [event async for event in events]
    assert seen[-1] == ResultEvent(await result)
    assert seen[-2] == PartEvent(TextDelta("done"), 1)
    assert (Missed("lost") in seen) is not is_connected
