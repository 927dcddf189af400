"""From a stream of yours to a response, in a route of yours."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from deuz_workers.app.agent_stream import AgentStream
from deuz_workers.app.ui_journal import StoredJournal, UiJournal
from deuz_workers.app.ui_legs import StreamLeg
from deuz_workers.app.ui_recorder import OnError, UiRecorder
from deuz_workers.errors import ConfigurationError
from deuz_workers.gateway.reading import read_recorder
from deuz_workers.gateway.sse import SseResponse
from deuz_workers.ports.store import RunStore

IDLE_S = 300.0
"""A stream that has nothing to say for so long is closed, without its end."""

_RECORDERS: set[UiRecorder] = set()
"""Under way, whoever reads them."""


def ui_response(
    stream: AgentStream,
    *,
    store: RunStore | None = None,
    journal: UiJournal | None = None,
    stream_id: str | None = None,
    run_id: str | None = None,
    idle_s: float = IDLE_S,
    on_error: OnError | None = None,
) -> SseResponse:
    """The stream of a fresh or resumed run as server-sent events. It is followed from now on: nothing is lost before the
    response is sent, and it is recorded to its end when the reader has left.

    Args:
        stream: of `stream_agent`, `resume_stream_agent`, `app.aio.stream`, `handle.stream()`; not started, or its beginning is
            missing.
        store: where what is shown is recorded for readers who come back, as stream `stream_id` of the run's scope; None: what a
            reader missed is gone. journal: one of yours instead.
        stream_id: None is the run's id, and goes when that is pruned. Legs under one are numbered on.
        run_id: of the stream, as the route has it; another one than the stream's raises `ConfigurationError`.
        idle_s: seconds without news after which the response ends without `[DONE]`.
        on_error: told what kept frames from being recorded; the response goes on.

    A leg that is refused before it begins is reported on this response alone, without ids. Call it on the event loop.
    """
    if run_id is not None and run_id != stream.run_id:
        raise ConfigurationError(f"the stream is of run {stream.run_id!r}, and the response was to be of run {run_id!r}")
    if journal is None and store is not None:
        journal = StoredJournal(store, stream.scope, stream_id or stream.run_id)
    recorder = UiRecorder(StreamLeg(stream, store), journal, on_error=on_error)
    _RECORDERS.add(recorder)
    recorder.start().add_done_callback(lambda _: _RECORDERS.discard(recorder))
    return SseResponse(_leg_alone(recorder, idle_s))


async def _leg_alone(recorder: UiRecorder, idle_s: float) -> AsyncGenerator[bytes]:
    """Without what earlier legs recorded, and nothing before the leg is known to have begun."""
    await recorder.heard.wait()
    # What others wrote meanwhile is not of a leg that never began.
    after = recorder.seq if recorder.is_over and recorder.failure is not None else recorder.began_at
    async for chunk in read_recorder(recorder, after, idle_s):
        yield chunk
