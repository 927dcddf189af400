"""Records what a run shows, for any number of readers: one that comes back goes on where it was.

The recorder belongs to no reader. It goes on when all are gone, until the leg is over, and readers take what they want from it
by number, so that a slow one holds nobody up. Parts are in the journal before any reader has them.

Several recorders of one run, in as many processes, may work side by side: each number is written once, and who comes second
takes what is there and shows only what that leaves out.

Events, in the log as a name and key-values: ``ui_journal_failed`` (`stream`, `error`; frames are shown and not recorded).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import islice
from typing import Any, cast

from deuz_workers.app.results import AgentResult
from deuz_workers.app.stream_events import Missed, ResultEvent
from deuz_workers.app.ui_journal import UiJournal
from deuz_workers.app.ui_legs import Leg, is_refused
from deuz_workers.app.ui_parts import DONE, Part, encode_part, numbered, state_part
from deuz_workers.app.ui_record import UiRecord
from deuz_workers.app.ui_target import UiTarget, compose
from deuz_workers.core.failure import place_of
from deuz_workers.errors import DeuzError

MOST_KEPT = 2_000
"""Frames that are kept in memory for readers; who is further behind reads the journal."""
LOOK_S = 0.25
"""How often the journal is looked at for what another recorder writes, while that may know more than this one."""

log = logging.getLogger(__name__)

OnError = Callable[[BaseException], None]


class UiRecorder:
    """Of one leg; `start` begins it. `journal` None: what a reader missed is gone."""

    def __init__(self, leg: Leg, journal: UiJournal | None, *, on_error: OnError | None = None) -> None:
        self._leg = leg
        self._journal = journal
        self._on_error = on_error
        self._target = UiTarget()
        self._record = UiRecord(leg.run_id)
        self._kept: deque[tuple[int, str]] = deque(maxlen=MOST_KEPT if journal is not None else None)
        self._owed: list[str] = []
        """Frames that readers have and the journal, which was away, has not."""
        self._changed = asyncio.Event()
        self._more = asyncio.Event()
        self._writes = asyncio.Lock()
        self._shares = False
        """Another recorder writes this stream too, or may."""
        self._task: asyncio.Task[None] | None = None
        self.is_over = False
        self.failure: Part | None = None
        """Why this stream has no more to show although the leg is not over, or never began: for its own readers alone."""
        self.began_at = 0
        """Number of the newest frame before this leg."""
        self.heard = asyncio.Event()
        """Something of the leg was heard of, or it is over."""

    @property
    def seq(self) -> int:
        """Number of the newest frame."""
        return self._record.seq

    @property
    def is_done(self) -> bool:
        """The newest frame ends a leg."""
        return self._record.is_done and self._record.seq > 0

    def start(self) -> asyncio.Task[None]:
        """The leg is followed from now on, whoever reads. The task never raises."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="deuz-ui-recorder")
        return self._task

    async def close(self) -> None:
        """It ends here; the run goes on, and a later recorder completes what is missing."""
        task = self.start()
        task.cancel()
        await asyncio.wait((task,))

    # -- readers -----------------------------------------------------------------------------------------------------------

    async def read(self, after: int, *, idle_s: float) -> AsyncGenerator[tuple[int, str] | None]:
        """Frames above number `after`, and what comes, without the ends of legs; ends with this leg. None: nothing came for
        `idle_s`.
        """
        while True:
            changed = self._changed
            frames = await self._frames(after)
            for frame in frames:
                after = frame[0]
                if not is_end(frame[1]):
                    yield frame
            if frames:
                continue
            if self.is_over:
                return
            try:
                async with asyncio.timeout(idle_s):
                    await changed.wait()
            except TimeoutError:
                yield None

    async def _frames(self, after: int) -> Sequence[tuple[int, str]]:
        if after >= self.seq:
            return ()
        if self._kept and self._kept[0][0] <= after + 1:
            skipped = after + 1 - self._kept[0][0]
            return list(islice(self._kept, skipped, None))
        if self._journal is None:
            return list(self._kept)
        rows = await self._journal.read(after + 1)
        return [(row.seq, row.body) for row in rows]

    # -- recording ---------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        pump = asyncio.create_task(self._pump(), name="deuz-ui-recorder-pump")
        try:
            await self._look()
            self.began_at = self._record.seq
            self._shares = self._record.seq > 0
            async for event in self._leg.events:
                if isinstance(event, ResultEvent):
                    await self._end(event.result)
                    break
                self.heard.set()
                if self._target.wants_texts(event) or isinstance(event, Missed):
                    self._target.settle(await self._leg.texts())
                self._target.take(event)
                self._more.set()
        except asyncio.CancelledError:
            self._fail("closed", "the stream was closed; open it again")
        except DeuzError as error:
            self._fail(error.code, "the stream was interrupted; open it again")
        except Exception as error:  # noqa: BLE001 - readers get a word, and the log the place
            log.error("ui_recorder_broke run=%s error=%s at=%s", self._leg.run_id, type(error).__name__, place_of(error))
            self._fail("stream_broke", "the stream was interrupted; open it again")
        finally:
            pump.cancel()
            await asyncio.wait((pump,))
            self.is_over = True
            self.heard.set()
            self._tell()
            await self._leg.close()

    async def _end(self, result: AgentResult[Any]) -> None:
        ended = await self._leg.ended(result)
        if ended is not None:
            self._target.end(ended.result, ended.texts, ended.revision)
            await self._flush()
        elif is_refused(result):  # of this call, and not of the run
            self.failure = numbered(state_part(result), self._leg.run_id, None)
        else:
            self._fail("resumed", "the run goes on; open the stream again")

    async def _pump(self) -> None:
        """Records what is waiting, all of it at once: what comes meanwhile is the next batch."""
        while True:
            is_behind = self._journal is not None and (self._shares or self._target.is_behind)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S if is_behind else None):
                    await self._more.wait()
            self._more.clear()
            try:
                if self._target.waiting:
                    await self._flush()
                elif is_behind:
                    async with self._writes:
                        await self._look()
            except DeuzError as error:
                self._report(error)
                await asyncio.sleep(LOOK_S)
                self._more.set()

    async def _flush(self) -> None:
        async with self._writes:
            while self._target.waiting:
                count = len(self._target.waiting)
                record, parts = compose(self._record, self._target.waiting[:count])
                bodies = [encode_part(part) for part in parts]
                if not bodies or await self._append(bodies):
                    self._publish(record, bodies)
                    del self._target.waiting[:count]
                else:
                    self._shares = True
                    await self._look()
                    await self._give_up_an_emptied_journal()

    async def _append(self, bodies: list[str]) -> bool:
        """False: somebody else has written meanwhile. A journal that is away costs the record of these frames, no reader."""
        if self._journal is None:
            return True
        first = self._record.seq - len(self._owed) + 1
        try:
            appended = await self._journal.append(first, [*self._owed, *bodies])
        except Exception as error:  # noqa: BLE001 - a journal of the user's may raise anything
            self._report(error)
            self._owed += bodies
            return True
        if appended:
            self._owed.clear()
        elif self._owed:  # what was shown without being recorded has other numbers in the journal now
            self._report(
                DeuzError("another recorder wrote the numbers of frames that were not recorded", code="ui_journal_lost")
            )
            self._journal = None
            self._owed.clear()
            return True
        return appended

    async def _look(self) -> None:
        """What the journal has beyond this record, somebody else has shown."""
        if self._journal is None or self._owed:
            return
        while rows := await self._journal.read(self._record.seq + 1):
            for row in rows:
                self._record.fold(cast(Part, json.loads(row.body)))
                self._kept.append((row.seq, row.body))
            self._tell()

    async def _give_up_an_emptied_journal(self) -> None:
        """One whose newest number is below this record's was deleted, as a run is that was pruned: it would refuse every frame
        for ever. Readers are shown the rest, and nothing of it is recorded."""
        if self._journal is None or self._owed:
            return
        last = await self._journal.last()
        if (0 if last is None else last.seq) < self._record.seq:
            self._report(DeuzError("what was recorded of the stream has been deleted", code="ui_journal_lost"))
            self._journal = None

    def _publish(self, record: UiRecord, bodies: Sequence[str]) -> None:
        for seq, body in enumerate(bodies, self._record.seq + 1):
            self._kept.append((seq, body))
        self._record = record
        if bodies:
            self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _fail(self, code: str, message: str) -> None:
        self.failure = {"type": "error", "errorText": message, "code": code}

    def _report(self, error: BaseException) -> None:
        log.warning("ui_journal_failed run=%s error=%s", self._leg.run_id, type(error).__name__)
        if self._on_error is not None:
            self._on_error(error)


def is_end(body: str) -> bool:
    """The frame ends a leg: `[DONE]` on the wire."""
    return body.startswith(f'{{"type":"{DONE}"')
