"""A run as a stream: live views of what happens, and its result. Nothing starts before the first of them is wanted."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from deuz_workers.app.results import AgentResult, refused
from deuz_workers.app.stream_events import (
    Discard,
    Missed,
    OutputDraft,
    OutputElement,
    PartEvent,
    StreamEvent,
    TextDelta,
)
from deuz_workers.app.stream_view import StreamView
from deuz_workers.core.failure import place_of
from deuz_workers.errors import DeuzError
from deuz_workers.ports.live import OnParts
from deuz_workers.ports.output import OutputType

T = TypeVar("T")

MOST_WAITING = 10_000
"""Events that a view keeps for a reader who does not come for them; at 20 entries a second, several minutes of a run."""

log = logging.getLogger(__name__)


class Text(str):
    """A fragment of text. `starts_anew`: what the view gave of this turn before is void."""

    starts_anew: bool = False
    step: int = 0


class Source(Protocol):
    """What a stream is over."""

    @property
    def scope(self) -> str: ...

    @property
    def run_id(self) -> str: ...

    @property
    def agent(self) -> str:
        """Its name, empty where it is not known."""
        ...

    def output_type(self) -> OutputType | None:
        """Of the run's agent, where that is known here."""
        ...

    async def run(self, on_parts: OnParts, missed: Callable[[Missed], None]) -> AgentResult[Any]:
        """Have the run executed, and return its result. Parts come on the way."""
        ...

    async def trail(self, has_ended: Callable[[], bool]) -> None:
        """The last parts have come, or are not waited for any longer. The result is known already."""
        ...

    async def close(self) -> None:
        """Nothing more is delivered."""
        ...


class View(AsyncIterator[T], Generic[T]):
    """Iterates once over what happens from its making on. One that nobody keeps costs nothing; `aclose` ends it early."""

    def __init__(self, start: Callable[[], object], pick: Callable[[StreamEvent], Iterable[T]]) -> None:
        self._start = start
        self._pick = pick
        self._waiting: deque[StreamEvent] = deque()
        self._missed = 0
        self._ready: deque[T] = deque()
        self._more = asyncio.Event()
        self._is_over = False

    def __aiter__(self) -> View[T]:
        return self

    async def __anext__(self) -> T:
        self._start()
        while not self._ready:
            if self._missed:
                missed, self._missed = self._missed, 0
                self._ready.extend(self._pick(Missed("slow", missed)))
            elif self._waiting:
                self._ready.extend(self._pick(self._waiting.popleft()))
            elif self._is_over:
                raise StopAsyncIteration
            else:
                self._more.clear()
                await self._more.wait()
        return self._ready.popleft()

    async def aclose(self) -> None:
        """It ends here; the run goes on."""
        self._waiting.clear()
        self._ready.clear()
        self._missed = 0
        self.end()

    def offer(self, event: StreamEvent) -> None:
        """A reader who is too slow loses what waited, is told how much, and goes on from here. For the stream."""
        if self._is_over:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._missed += len(self._waiting)
            self._waiting.clear()
        self._waiting.append(event)
        self._more.set()

    def end(self) -> None:
        """Nothing more comes. For the stream."""
        self._is_over = True
        self._more.set()


class _Result(Awaitable[AgentResult[Any]]):
    """May be awaited any number of times; a cancelled wait cancels nothing else."""

    def __init__(self, future: asyncio.Future[AgentResult[Any]]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, AgentResult[Any]]:
        return asyncio.shield(self._future).__await__()


class AgentStream:
    """One run, followed live. Belongs to the event loop it is first used on.

    The first access to `result`, step of a view, or `consume` starts it. A view shows what happens from the moment it is taken:
    one taken before the start shows everything. Views may be used side by side, each for one reader.

    Whatever goes wrong is a `failed` result; a view never raises. Channels that break cost fragments, never the result:
    `events` then has a `Missed`. The run goes on when nobody reads; `aclose` gives it up here.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._view = StreamView(source.output_type)
        self._views: WeakSet[View[Any]] = WeakSet()
        self._task: asyncio.Task[None] | None = None
        self._outcome: asyncio.Future[AgentResult[Any]] | None = None
        self._is_over = False
        self._has_begun = False

    def __repr__(self) -> str:
        return f"<AgentStream {self.scope}/{self.run_id}>"

    @property
    def scope(self) -> str:
        return self._source.scope

    @property
    def run_id(self) -> str:
        """Known before the start."""
        return self._source.run_id

    @property
    def events(self) -> View[StreamEvent]:
        """Everything, ended by a `ResultEvent`."""
        return self._taken(lambda event: (event,))

    @property
    def text_stream(self) -> View[Text]:
        """Text as the model writes it, of all turns. A fragment that `starts_anew` takes the place of what the turn had."""
        void: set[int] = set()

        def pick(event: StreamEvent) -> Iterable[Text]:
            match event:
                case PartEvent(TextDelta(text), step):
                    made = Text(text)
                    made.step, made.starts_anew = step, step in void
                    void.discard(step)
                    return (made,)
                case Discard(step):
                    void.add(step)
                case _:
                    pass
            return ()

        return self._taken(pick)

    @property
    def partial_output_stream(self) -> View[OutputDraft]:
        """The final answer as far as it is written, each time that more of it is there."""
        return self._taken(lambda event: (event,) if isinstance(event, OutputDraft) else ())

    @property
    def element_stream(self) -> View[OutputElement]:
        """Elements of a final answer that is a list, one by one as each is written whole."""
        return self._taken(lambda event: (event,) if isinstance(event, OutputElement) else ())

    @property
    def result(self) -> Awaitable[AgentResult[Any]]:
        """The result; awaiting it raises only what the waiting is cancelled with."""
        return _Result(self._start())

    async def consume(self) -> None:
        """Return when the run has its result; never raises for what becomes of it. For streams that nobody reads."""
        await self.result

    async def aclose(self) -> None:
        """Give it up: a run that this process executes is left to be resumed, any other goes on by itself.

        Who still waits gets a `failed` result that says so.
        """
        if self._task is None:
            self._start(gives_up=True)
        elif not self._task.done():
            self._task.cancel()
        assert self._task is not None
        await asyncio.wait((self._task,))

    def _taken(self, pick: Callable[[StreamEvent], Iterable[T]]) -> View[T]:
        view = View(self._start, pick)
        if self._is_over:
            view.end()
        elif self._has_begun:
            view.offer(Missed("late"))
        self._views.add(view)
        return view

    def _start(self, *, gives_up: bool = False) -> asyncio.Future[AgentResult[Any]]:
        if self._outcome is None:
            self._outcome = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._follow(self._outcome, gives_up), name="deuz-stream")
        return self._outcome

    async def _follow(self, outcome: asyncio.Future[AgentResult[Any]], gives_up: bool) -> None:
        source = self._source
        self._has_begun = True
        try:
            result = self._given_up() if gives_up else await source.run(self._take, self._tell)
            outcome.set_result(result)
            if not gives_up:
                await source.trail(lambda: self._view.ended_at >= 0)
        except asyncio.CancelledError:
            result = self._given_up()
        except DeuzError as error:
            result = refused(source.run_id, source.scope, source.agent, error)
        except Exception as error:  # noqa: BLE001 - a view raises nothing (STR-006)
            log.error("stream_broke run=%s error=%s at=%s", source.run_id, type(error).__name__, place_of(error))
            broke = DeuzError(f"the stream of run {source.run_id!r} broke: {type(error).__name__}", code="stream_broke")
            result = refused(source.run_id, source.scope, source.agent, broke)
        if outcome.done():
            result = outcome.result()
        else:
            outcome.set_result(result)
        self._end(result)
        await source.close()

    def _given_up(self) -> AgentResult[Any]:
        source = self._source
        error = DeuzError(f"the stream was closed before run {source.run_id!r} had a result", code="stream_closed")
        return refused(source.run_id, source.scope, source.agent, error)

    def _take(self, parts: Any) -> None:
        if not self._is_over:
            for event in self._view.take(parts):
                self._tell(event)

    def _tell(self, event: StreamEvent) -> None:
        for view in self._views:
            view.offer(event)

    def _end(self, result: AgentResult[Any]) -> None:
        for event in self._view.finish(result):
            self._tell(event)
        self._is_over = True
        for view in self._views:
            view.end()
