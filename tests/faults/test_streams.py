"""Streams over real workers: what one process writes another one reads, and nothing that happens to the channel matters."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from typing import Any

import pytest
import redis

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.stream_events import (
    ArgumentsDelta,
    Discard,
    Missed,
    PartEvent,
    ReasoningDelta,
    ResultEvent,
    StreamEvent,
    TextDelta,
    ToolOutput,
)
from deuz_workers.embedded import EmbeddedRedis
from tests.faults.talking_agents import ANSWER, application
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


@pytest.fixture
def client(pool: Pool) -> Generator[Deuz]:
    """Of the pool, whose workers run the agents that talk; its live streams go over the pool's Redis."""
    pool.module = "tests.faults.talking_agents:app"
    client = application(pool.app.settings)
    yield client
    client.close()


def until_text(events: Iterable[StreamEvent], end: str) -> list[StreamEvent]:
    """The events up to the one with which the text of the turn ends like this."""
    seen: list[StreamEvent] = []
    for event in events:
        seen.append(event)
        if shown(seen).endswith(end):
            return seen
    raise AssertionError(f"the stream ended before {end!r}: {seen}")


def shown(events: Iterable[StreamEvent]) -> str:
    """What a reader has before them who drops what they are told to drop."""
    text = ""
    for event in events:
        match event:
            case PartEvent(TextDelta(fragment)):
                text += fragment
            case Discard():
                text = ""
            case _:
                pass
    return text


def of(events: Iterable[StreamEvent], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.spec("STR-011")
@pytest.mark.parametrize("kind", ["threads", "prefork", "solo"])
def test_the_first_part_comes_from_the_worker_while_it_writes(pool: Pool, client: Deuz, kind: str) -> None:
    """The reader subscribed before the run was enqueued: it has all of it, from another process, before the answer is saved."""
    worker = pool.start(kind)
    stream = client.stream("talker", "gate")
    events = stream.events
    seen = until_text(events, "first half, ")
    writer = int(shown(seen).removeprefix("of ").partition(":")[0])
    assert writer in (worker.children if kind == "prefork" else [worker.pid])
    assert writer != os.getpid()
    assert client.handle(stream.run_id).status() == "running"
    pool.go("gate")
    seen += list(events)
    result = stream.result()
    assert (result.status, shown(seen)) == ("completed", result.text)
    assert seen[0].type == "phase"
    assert seen[-1] == ResultEvent(result)
    assert of(seen, Missed) == of(seen, Discard) == []
    assert ANSWER not in worker.log.read_text()


def test_a_reader_is_told_to_drop_what_a_killed_worker_wrote(pool: Pool, client: Deuz) -> None:
    """The worker dies in the middle of its answer; another one writes it anew, and that is what the reader ends with."""
    dead = pool.start()
    stream = client.stream("talker", "gate")
    events = stream.events
    seen = until_text(events, "first half, ")
    dead.kill()
    pool.start()
    pool.wait_for_lines("spoke", 2)
    pool.go("gate")
    seen += list(events)
    result = stream.result()
    assert (result.status, result.text, shown(seen)) == ("completed", ANSWER, ANSWER)
    assert of(seen, Discard) == [Discard(1)]
    at = seen.index(Discard(1))
    assert f"of {dead.pid}: " in shown(seen[:at])
    assert of(seen, Missed) == []


def test_turns_of_several_workers_are_shown_in_their_order(pool: Pool, client: Deuz) -> None:
    """Every output, once, whichever worker sent it first."""
    pool.start(concurrency=1)
    pool.start(concurrency=1)
    streams = [client.stream("worker", "12 turns") for _ in range(3)]
    for events in [stream.events for stream in streams]:
        seen = list(events)
        assert [output.step for output in of(seen, ToolOutput)] == list(range(1, 13)), seen
        assert of(seen, Missed) == of(seen, Discard) == []
        assert shown(seen) == "done"


def test_a_large_result_is_read_from_the_store(pool: Pool, client: Deuz) -> None:
    """It is too large for the channel, and shown all the same."""
    pool.start()
    [output] = of(client.stream("large", "go").events, ToolOutput)
    assert output.raw_result == "x" * 50_000


def test_the_leg_after_an_approval_is_read_from_its_first_event(pool: Pool, client: Deuz) -> None:
    """Answers are handed in once the channel is subscribed to; an incomplete set leaves the run where it was."""
    pool.start()
    first = client.stream("signer", "go")
    waiting = list(first.events)[-1]
    assert isinstance(waiting, ResultEvent)
    [asked] = waiting.result.pending_approvals
    assert client.resume_stream(first.run_id).result().status == "suspended"
    seen = list(client.resume_stream(first.run_id, approvals={asked.approval_id: True}).events)
    assert [(output.tool_name, output.raw_result) for output in of(seen, ToolOutput)] == [("sign", "signed it")]
    assert (shown(seen), of(seen, Missed)) == ("it is done", [])


def test_a_late_reader_is_told_so_and_ends_with_the_right_text(pool: Pool, client: Deuz) -> None:
    """It comes in the middle of an answer, and after the end."""
    pool.start()
    handle = client.enqueue("talker", "gate")
    pool.wait_for_lines("spoke")
    late = handle.stream()
    events = late.events
    first = next(events)
    assert first == Missed("late")
    pool.go("gate")
    seen = list(events)
    assert shown(seen) == late.result().text == handle.result().text
    after = list(handle.stream().events)
    assert (after[0], shown(after)) == (Missed("late"), handle.result().text)


@pytest.mark.spec("DST-010")
@pytest.mark.parametrize("loss", ["killed", "killed and back", "flushed", "cut"])
def test_whatever_happens_to_the_channel_the_result_is_the_same(
    pool: Pool, client: Deuz, private_redis: EmbeddedRedis, loss: str
) -> None:
    """In the middle of an answer: its server dies, comes back empty, is flushed, or throws all connections out."""
    settings = pool.app.settings.model_copy(update={"live_url": private_redis.url})
    reader = application(settings)
    worker = pool.start(live_url=private_redis.url)
    stream = reader.stream("talker", "gate")
    events = stream.events
    seen = until_text(events, "first half, ")
    if loss.startswith("killed"):
        private_redis.kill()
        if loss.endswith("back"):
            private_redis.start()
    else:
        with redis.Redis.from_url(private_redis.url) as other:
            other.flushall() if loss == "flushed" else other.execute_command(
                "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"
            )
    pool.go("gate")
    result = stream.result()
    seen += list(events)
    assert (result.status, result.text) == ("completed", f"of {worker.pid}: {ANSWER}")
    assert shown(seen) == result.text
    assert seen[-1] == ResultEvent(result)
    assert client.handle(stream.run_id).result() == result
    reader.close()


def test_what_a_dead_worker_thought_is_taken_back(pool: Pool, client: Deuz) -> None:
    """Thoughts and arguments of a worker that is killed are discarded; its successor's are shown, then the result."""
    first = pool.start()
    stream = client.stream("thinker", "think")
    events = iter(stream.events)
    seen: list[StreamEvent] = []

    def until(is_there: Callable[[], bool]) -> None:
        while not is_there():
            seen.append(next(events))

    until(lambda: _arguments(seen) == '{"n": ')
    first.kill()
    pool.start()
    until(lambda: any(isinstance(event, Discard) for event in seen))
    assert _thoughts(seen[: seen.index(next(event for event in seen if isinstance(event, Discard)))]) == "thought 1"
    del seen[:]
    pool.wait_for_lines("thought", 2)
    pool.go("think")
    seen.extend(events)
    assert _thoughts(seen) == "thought 2"
    assert _arguments(seen) == '{"n": 7}'
    assert [event.raw_result for event in seen if isinstance(event, ToolOutput)] == ["wrote 7"]
    assert stream.result().status == "completed"


def _thoughts(events: Iterable[StreamEvent]) -> str:
    parts = [event.part for event in events if isinstance(event, PartEvent)]
    return "".join(part.text for part in parts if isinstance(part, ReasoningDelta))


def _arguments(events: Iterable[StreamEvent]) -> str:
    parts = [event.part for event in events if isinstance(event, PartEvent)]
    return "".join(part.text for part in parts if isinstance(part, ArgumentsDelta) and part.tool_name == "write")
