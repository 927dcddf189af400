"""Recording what a run shows: the journal first, then readers, whoever leaves and whatever breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from deuz_workers import Agent, MockModel, tool
from deuz_workers.app.run_agent import run_agent
from deuz_workers.app.stream_agent import resume_stream_agent, stream_agent
from deuz_workers.app.ui_journal import StoredJournal, UiJournal
from deuz_workers.app.ui_legs import StreamLeg
from deuz_workers.app.ui_reading import UiFrame, UiReader, read_ui_frames
from deuz_workers.errors import CodecError, ConfigurationError, StoreUnavailableError
from deuz_workers.gateway import ui_response
from deuz_workers.gateway.sse import SseResponse
from deuz_workers.ports.frames import FrameRow
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.store import open_store
from tests.app.world import World
from tests.gateway.agents import asker, talker
from tests.gateway.serving import data_of, text_of


async def body_of(response: SseResponse, leave_after: int | None = None) -> bytes:
    """What the response sends, until its end or until the reader has had so many chunks and leaves."""
    sent: list[bytes] = []
    has_left = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            sent.append(message["body"])
            if leave_after is not None and len(sent) >= leave_after:
                has_left.set()
                await asyncio.sleep(3600)

    async with asyncio.timeout(30):
        await response({"type": "http"}, receive, send)
    return b"".join(sent)


async def frames_of(response: SseResponse) -> list[UiFrame]:
    return list(read_ui_frames([await body_of(response)]))


async def until(journal: UiJournal, text: str) -> list[FrameRow]:
    """All that is recorded, once the newest frame has this text."""
    async with asyncio.timeout(30):
        while not (rows := await journal_of(journal)) or text not in rows[-1].body:  # noqa: ASYNC110 - another task writes
            await asyncio.sleep(0.01)
    return rows


async def journal_of(journal: UiJournal) -> list[FrameRow]:
    return list(await journal.read(1))


def ids(frames: Sequence[UiFrame]) -> list[int | None]:
    return [frame.seq for frame in frames]


@pytest.mark.spec("UIW-001")
async def test_a_response_is_subscribed_before_it_is_sent(memory: World) -> None:
    """The run is over before the response is sent, and its first part arrives."""
    stream = stream_agent(talker(), "hi", store=memory.store, run_id="r")
    response = ui_response(stream, store=memory.store)
    assert (await stream.result).status == "completed"
    frames = await frames_of(response)
    assert frames[0].part == {"type": "start", "messageId": "r"}
    assert data_of(frames)[0]["kind"] == "phase"
    assert text_of(frames) == {1: "let me see", 2: "it is done"}


@pytest.mark.spec("UIW-014")
async def test_every_event_has_an_id_and_the_body_ends(memory: World) -> None:
    """Raw bytes: an id before each data line, `[DONE]` at the end, and the version of the wire in a header."""
    stream = stream_agent(talker(), "hi", store=memory.store)
    response = ui_response(stream, store=memory.store)
    assert response.headers["x-deuz-stream"] == "v2"
    assert response.headers["content-type"].startswith("text/event-stream")
    raw = (await body_of(response)).decode()
    events = [event.split("\n") for event in raw.split("\n\n") if event]
    assert [event[0] for event in events] == [f"id: {number}" for number in range(1, len(events) + 1)]
    assert all(len(event) == 2 and event[1].startswith("data: ") for event in events)
    assert raw.endswith("data: [DONE]\n\n")


@pytest.mark.spec("RCP-015", "TSC-005")
async def test_what_a_tool_returned_reaches_no_reader_of_the_wire(world: World) -> None:
    """Neither the body nor what is recorded has anything of the raw result, of a call that was shown to the model or could not
    be; the frames of the calls say how they ended, and the answer repeats what the model read."""

    @tool(to_model_output=lambda value: f"{len(value['rows'])} rows")
    async def query() -> dict[str, list[str]]:
        return {"rows": ["MARKER-raw"], "MARKER-name": []}

    @tool(to_model_output=lambda value: value.missing)
    async def unreadable() -> str:
        return "MARKER-unreadable"

    def think(request: ModelRequest) -> Entry:
        told = [part.text for message in request.messages for part in message.tool_results]
        return f"I read {told[0]}" if told else calls(call("query"), call("unreadable"))

    agent = Agent("x", model=MockModel.function(think), tools=[query, unreadable])
    body = await body_of(ui_response(stream_agent(agent, "hi", store=world.store, run_id="r"), store=world.store))
    recorded = "".join(row.body for row in await journal_of(StoredJournal(world.store, "default", "r")))
    assert "MARKER" not in body.decode() + recorded
    assert "MARKER-raw" in str([receipt.value for receipt in (await world.receipts("r")).values()])
    frames = list(read_ui_frames([body]))
    ends = [data for data in data_of(frames) if data["kind"] == "tool"]
    about = {"runId", "seq", "kind", "toolCallId", "toolName", "step", "isError"}
    assert sorted((data["toolName"], data.get("outcome"), frozenset(data) - {"outcome"} == about) for data in ends) == [
        ("query", None, True),
        ("unreadable", "projection-failed", True),
    ]
    assert text_of(frames) == {2: "I read 1 rows"}


@pytest.mark.spec("UIW-006", "UIW-023", "UIW-017")
async def test_legs_of_one_stream_are_numbered_on(world: World) -> None:
    """A suspended leg and its resume in one journal: ids go on, every frame names the run, and the first end is none."""
    agent = asker()
    first = await frames_of(
        ui_response(stream_agent(agent, "hi", store=world.store, run_id="r"), store=world.store, stream_id="s", run_id="r")
    )
    assert data_of(first)[-1]["status"] == "suspended"
    pending = data_of(first)[-1]
    resumed = resume_stream_agent(
        agent,
        "r",
        store=world.store,
        approvals={pending["pendingApprovals"][0]["approvalId"]: True},
        client_tool_results={pending["pendingClientCalls"][0]["itemId"]: "Ann"},
    )
    second = await frames_of(ui_response(resumed, store=world.store, stream_id="s", run_id="r"))
    last = first[-1].seq
    assert last is not None
    assert second[0].seq == last + 1
    assert ids([*first, *second]) == list(range(1, len(first) + len(second) + 1))
    assert {data["runId"] for data in data_of([*first, *second])} == {"r"}
    assert data_of(second)[-1]["status"] == "completed"
    journal = StoredJournal(world.store, "default", "s")
    ends = [row.seq for row in await journal_of(journal) if row.body.startswith('{"type":"done"')]
    assert ends == [last, second[-1].seq]


@pytest.mark.spec("UIW-016")
async def test_recording_goes_on_when_the_reader_has_left(world: World) -> None:
    """It leaves after the second frame; the journal has the run to its end."""
    gate = asyncio.Event()
    agent = talker("it", "~", "done", gate=gate)
    stream = stream_agent(agent, "hi", store=world.store, run_id="r")
    response = ui_response(stream, store=world.store)
    await body_of(response, leave_after=2)
    journal = StoredJournal(world.store, "default", "r")
    assert not any('"state"' in row.body for row in await journal_of(journal))
    gate.set()
    await stream.result
    rows = await until(journal, '{"type":"done"')
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert json.loads(rows[-3].body)["data"]["status"] == "completed"


class Failing:
    """A journal that is away from append number `at` on, `times` times."""

    def __init__(self, inner: UiJournal, at: int, times: int) -> None:
        self.inner = inner
        self.at = at
        self.times = times
        self.appends = 0

    async def append(self, seq: int, parts: Sequence[str]) -> bool:
        self.appends += 1
        if self.at <= self.appends < self.at + self.times:
            raise StoreUnavailableError("away")
        return await self.inner.append(seq, parts)

    async def read(self, from_seq: int) -> tuple[FrameRow, ...]:
        return await self.inner.read(from_seq)

    async def last(self) -> FrameRow | None:
        return await self.inner.last()

    async def delete(self) -> None:
        await self.inner.delete()


@pytest.mark.spec("UIW-018")
@pytest.mark.parametrize(("at", "times"), [(1, 1), (1, 1000), (2, 1), (2, 1000)])
async def test_a_journal_that_is_away_breaks_no_response(memory: World, at: int, times: int) -> None:
    """The response is complete and the callback was called; what was shown meanwhile is recorded when the journal is back."""
    inner = StoredJournal(memory.store, "default", "r")
    failing = Failing(inner, at, times)
    errors: list[BaseException] = []
    stream = stream_agent(talker(), "hi", store=memory.store, run_id="r")
    frames = await frames_of(ui_response(stream, journal=failing, on_error=errors.append))
    assert text_of(frames) == {1: "let me see", 2: "it is done"}
    assert frames[-1].is_done
    assert ids(frames) == list(range(1, len(frames) + 1))
    assert errors
    rows = await journal_of(inner)
    if times == 1 and failing.appends > at:
        assert [row.seq for row in rows] == ids(frames)
    elif times > 1:
        assert len(rows) < len(frames)


async def test_a_journal_that_is_deleted_while_it_is_written_ends_the_record_and_not_the_response(world: World) -> None:
    """As when the run is pruned: the reader has the leg to its end, and nothing is recorded of a stream that is gone."""
    agent = talker("it", "~", "done")
    errors: list[BaseException] = []
    stream = stream_agent(agent, "hi", store=world.store, run_id="r")
    reads = asyncio.create_task(frames_of(ui_response(stream, store=world.store, on_error=errors.append)))
    await agent.model.waits.wait()  # type: ignore[union-attr]
    journal = StoredJournal(world.store, "default", "r")
    await until(journal, '"delta":"it"')
    await journal.delete()
    agent.model.gate.set()  # type: ignore[union-attr]
    frames = await reads
    assert text_of(frames) == {1: "let me see", 2: "it ~ done"}
    assert frames[-1].is_done
    assert [getattr(error, "code", None) for error in errors] == ["ui_journal_lost"]
    assert await journal_of(journal) == []


@pytest.mark.spec("UIW-007")
async def test_without_a_journal_what_was_missed_is_gone(memory: World) -> None:
    """The response itself is whole, and nothing is recorded anywhere."""
    stream = stream_agent(talker(), "hi", store=memory.store, run_id="r")
    frames = await frames_of(ui_response(stream))
    assert text_of(frames)[2] == "it is done"
    assert await journal_of(StoredJournal(memory.store, "default", "r")) == []


@pytest.mark.spec("UIW-008")
async def test_a_leg_that_is_refused_is_told_on_its_own_response_alone(world: World) -> None:
    """Of a run that somebody executes, of another scope's, and of none: no id, and the journal is what it was."""
    gate = asyncio.Event()
    agent = talker("it", "~", "done", gate=gate)
    app = world.process(agent, ttl_ms=1_000)
    first = app.aio.stream_embedded(agent, "hi", run_id="r")
    response = ui_response(first, store=world.store)
    reads = asyncio.create_task(body_of(response))
    await agent.model.waits.wait()  # type: ignore[union-attr]
    journal = StoredJournal(world.store, "default", "r")
    before = await until(journal, '"delta":"it"')
    for run_id, scope in (("r", "default"), ("r", "other"), ("none", "default")):
        again = app.aio.resume_stream_embedded(agent, run_id, scope=scope)
        raw = (await body_of(ui_response(again, store=world.store, stream_id="r"))).decode()
        assert "id:" not in raw
        [failure] = data_of(read_ui_frames([raw.encode()]))
        assert (failure["kind"], failure["status"]) == ("state", "failed")
        assert failure["error"]["code"] in ("lease_held", "scope_mismatch", "run_not_found")
    assert await journal_of(journal) == before
    gate.set()
    await reads


@pytest.mark.spec("UIW-021")
async def test_two_recorders_of_one_run_show_each_thing_once(world: World) -> None:
    """Both follow it from its beginning, write as fast as they can, and their readers are shown the same."""
    agent = talker("it", "~", "is", "~", "done")
    app = world.process(agent)
    handle = await app.aio.enqueue(agent, "hi", run_id="r")
    reads = [asyncio.create_task(frames_of(ui_response(handle.stream(), store=world.store))) for _ in range(2)]
    await asyncio.sleep(0)
    executes = asyncio.create_task(app.aio.resume_embedded("r"))
    await agent.model.waits.wait()  # type: ignore[union-attr]
    agent.model.gate.set()  # type: ignore[union-attr]
    shown = [await read for read in reads]
    await executes
    rows = await journal_of(StoredJournal(world.store, "default", "r"))
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    recorded = [UiFrame(row.seq, json.loads(row.body)) for row in rows]
    assert text_of(recorded) == {1: "let me see", 2: "it ~ is ~ done"}
    for frames in shown:
        told = {frame.seq: frame.part for frame in frames if not frame.is_done}
        assert all(told[frame.seq] == frame.part for frame in recorded if frame.seq in told)
    assert sum(row.body.startswith('{"type":"finish"}') for row in rows) == 1


async def test_a_number_is_written_once(world: World) -> None:
    """Of many writers of one number one wins, with all its frames or none, in memory, in a file and in Postgres."""
    journal = StoredJournal(world.store, "default", "s")
    won = await asyncio.gather(*(journal.append(1, [f"{writer}a", f"{writer}b"]) for writer in range(20)))
    assert sum(won) == 1
    writer = won.index(True)
    assert [row.body for row in await journal_of(journal)] == [f"{writer}a", f"{writer}b"]
    assert not await journal.append(2, ["x"])
    assert not await journal.append(4, ["x"])
    assert await journal.append(3, ["x"])


def test_a_run_id_that_is_not_the_streams_is_refused() -> None:
    """Before anything starts."""
    stream = stream_agent(talker(), "hi", run_id="r")
    with pytest.raises(ConfigurationError, match="'r'"):
        ui_response(stream, run_id="other")


def test_a_reader_leaves_out_what_it_has_and_takes_bytes_as_they_come() -> None:
    """Cut anywhere, with either line ending; a comment is nothing, and what is no part is said."""
    raw = b': hello\n\nid: 1\ndata: {"type":"start"}\n\nid: 2\r\ndata: {"type":"finish"}\r\n\r\nid: 3\ndata: [DONE]\n\n'
    whole = list(read_ui_frames([raw]))
    assert [(frame.seq, frame.is_done) for frame in whole] == [(1, False), (2, False), (3, True)]
    for cut in range(len(raw)):
        assert list(read_ui_frames([raw[:cut], raw[cut:]])) == whole
    reader = UiReader(1)
    assert [frame.seq for frame in reader.feed(raw)] == [2, 3]
    assert reader.feed(raw) == [whole[-1]]
    with pytest.raises(CodecError):
        UiReader().feed(b"id: 1\ndata: nonsense\n\n")


async def test_a_leg_knows_the_texts_of_a_run_that_began_with_answers() -> None:
    """They are not its own turns."""
    store = open_store("sqlite://:memory:")
    agent = Agent("x", model=MockModel(["unused", "mine"]))
    given = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "given"}, {"role": "user", "content": "q"}]
    done = await run_agent(agent, messages=given, store=store, run_id="r")
    assert done.status == "completed"
    stream = resume_stream_agent(agent, "r", store=store)
    leg = StreamLeg(stream, store)
    assert await leg.texts() == {1: "mine"}
    await stream.consume()
    await store.close()
