"""The synchronous twin of `AgentStream`: the same views, waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from deuz_workers.app.agent_stream import AgentStream, Text, View
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.app.results import AgentResult
from deuz_workers.app.stream_events import OutputDraft, OutputElement, StreamEvent

T = TypeVar("T")


class Stream:
    """A run as a stream, for code without an event loop; usable from any thread. See `AgentStream`."""

    def __init__(self, inner: AgentStream) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"<Stream {self.scope}/{self.run_id}>"

    @property
    def scope(self) -> str:
        return self._inner.scope

    @property
    def run_id(self) -> str:
        """Known before the start."""
        return self._inner.run_id

    @property
    def events(self) -> Iterator[StreamEvent]:
        """Everything, ended by a `ResultEvent`."""
        return self._taken(lambda: self._inner.events)

    @property
    def text_stream(self) -> Iterator[Text]:
        """Text as the model writes it."""
        return self._taken(lambda: self._inner.text_stream)

    @property
    def partial_output_stream(self) -> Iterator[OutputDraft]:
        """The final answer as far as it is written."""
        return self._taken(lambda: self._inner.partial_output_stream)

    @property
    def element_stream(self) -> Iterator[OutputElement]:
        """Elements of a final answer that is a list."""
        return self._taken(lambda: self._inner.element_stream)

    def result(self) -> AgentResult[Any]:
        """Start the run if it has not begun, and wait for its result."""
        return LOOP.run(_result(self._inner))

    def consume(self) -> None:
        """Return when the run has its result; never raises for what becomes of it."""
        LOOP.run(self._inner.consume())

    def close(self) -> None:
        """Give it up here."""
        LOOP.run(self._inner.aclose())

    def _taken(self, take: Callable[[], View[T]]) -> Iterator[T]:
        async def on_loop() -> View[T]:
            return take()

        return _Iterator(LOOP.run(on_loop()))


class _Iterator(Iterator[T]):
    def __init__(self, view: View[T]) -> None:
        self._view = view

    def __next__(self) -> T:
        found = LOOP.run(_next(self._view))
        if found is None:
            raise StopIteration
        return found


async def _next(view: View[T]) -> T | None:
    return await anext(view, None)


async def _result(stream: AgentStream) -> AgentResult[Any]:
    return await stream.result
