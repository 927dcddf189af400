"""What one reader of a stream is sent: from the number that it has, to the end of the leg."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from deuz_workers.app.ui_journal import UiJournal
from deuz_workers.app.ui_parts import encode_part
from deuz_workers.app.ui_recorder import UiRecorder, is_end
from deuz_workers.gateway.sse import KEEP_ALIVE, KEEP_ALIVE_S, event

DONE = "[DONE]"


def cursor_of(given: str | None) -> int:
    """The number of a `Last-Event-ID`; 0, the beginning, for what is none."""
    return int(given) if given is not None and given.isascii() and given.isdigit() and len(given) < 19 else 0


async def read_recorder(recorder: UiRecorder, after: int, idle_s: float) -> AsyncGenerator[bytes]:
    """What is recorded, and what comes, to the end of the leg and `[DONE]`.

    Without the end: nothing came for `idle_s`, or the stream was interrupted; whoever opens it again goes on from there.
    """
    silent_s, pause_s = 0.0, min(KEEP_ALIVE_S, idle_s)
    async for frame in recorder.read(after, idle_s=pause_s):
        if frame is not None:
            silent_s = 0.0
            yield event(frame[1], frame[0])
            continue
        silent_s += pause_s
        if silent_s >= idle_s:
            return
        yield KEEP_ALIVE
    if recorder.failure is not None:
        yield event(encode_part(recorder.failure))
        if recorder.failure["type"] == "data-agent":
            yield event(DONE)
    elif recorder.is_done:
        yield event(DONE, recorder.seq)


async def read_journal(journal: UiJournal, after: int) -> AsyncGenerator[bytes]:
    """Of a run whose newest leg is recorded to its end."""
    last = 0
    while rows := await journal.read(after + 1):
        for row in rows:
            after = last = row.seq
            if not is_end(row.body):
                yield event(row.body, row.seq)
    yield event(DONE, last or after)
