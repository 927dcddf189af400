"""A scripted model: no key, no network, the same answers in every process.

What it answers is chosen by the request alone, never by a count in memory: the next call of a run may come from another
process, or repeat one that died. A script is a list with one entry per assistant turn of the conversation, or a function of
the request.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections import deque
from collections.abc import Sequence

from deuz_workers.core.usage import Usage
from deuz_workers.errors import ModelRequestError, ModelTimeoutError
from deuz_workers.ports.asides import tell_asides
from deuz_workers.ports.model import ModelReply, ModelRequest, OnText
from deuz_workers.ports.output import OutputMode
from deuz_workers.ports.runtime import Clock
from deuz_workers.providers.pairing import check_pairs
from deuz_workers.providers.script import (
    DEFAULT_USAGE,
    Answer,
    Attempts,
    Entry,
    ScriptedCall,
    ScriptedReply,
    asides_of,
    finished,
    fragments_of,
)

KEPT_REQUESTS = 1_000
"""Requests that one model remembers for tests; a worker that runs for days must not grow by its script."""


class MockModel:
    """Answers from `script`: the entry at the number of assistant turns that the request already carries.

    A request beyond the script is refused with `ModelRequestError`. `clock` makes delays virtual; without one they are
    `asyncio.sleep`. A delay that reaches the request's `timeout_ms` ends in `ModelTimeoutError`, as a provider's would.
    """

    def __init__(
        self,
        script: Sequence[Entry],
        *,
        model: str = "scripted",
        usage: Usage = DEFAULT_USAGE,
        clock: Clock | None = None,
        output_mode: OutputMode = "json",
        context_window_tokens: int | None = None,
        tells_asides: bool = False,
    ) -> None:
        """`model`: second half of `name`, which prices are looked up by too. `usage`: of every reply that names no other.
        `output_mode`: how it is asked for a typed answer. `context_window_tokens`: what compaction takes for its window.
        `tells_asides`: thoughts and arguments are told as they come, in pieces, ahead of the text and behind it."""
        self._script: Sequence[Entry] | Answer = tuple(script)
        self._model = model
        self.output_mode: OutputMode = output_mode
        self.context_window_tokens = context_window_tokens
        self._usage = usage
        self._tells_asides = tells_asides
        self._clock = clock
        self._requests: deque[ModelRequest] = deque(maxlen=KEPT_REQUESTS)

    @classmethod
    def function(
        cls,
        answer: Answer,
        *,
        model: str = "scripted",
        usage: Usage = DEFAULT_USAGE,
        clock: Clock | None = None,
        context_window_tokens: int | None = None,
    ) -> MockModel:
        """A model that asks `answer`, which may be a coroutine function, for the entry of every request."""
        made = cls((), model=model, usage=usage, clock=clock, context_window_tokens=context_window_tokens)
        made._script = answer
        return made

    @property
    def name(self) -> str:
        return f"mock:{self._model}"

    @property
    def requests(self) -> tuple[ModelRequest, ...]:
        """The newest requests that this object saw in this process, oldest first, at most `KEPT_REQUESTS`."""
        return tuple(self._requests)

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """The scripted reply. Raises what the script raises, a fresh copy every time.

        A request whose calls are not answered one to one is refused as a provider would, see `check_pairs`.
        """
        self._requests.append(request)
        check_pairs(request.messages)
        turn = 1 + sum(message.role == "assistant" for message in request.messages)
        scripted = await self._entry(request, turn)
        if isinstance(scripted, ModelReply):
            return scripted
        await self._deliver(scripted, request.timeout_ms, on_text)
        if scripted.error is not None:
            raise copy.copy(scripted.error)
        return finished(scripted, turn=turn, model=self.name, default_usage=self._usage)

    async def close(self) -> None:
        """Nothing is held."""

    async def _entry(self, request: ModelRequest, turn: int) -> ScriptedReply | ModelReply:
        if callable(self._script):
            entry: Entry = self._script
        elif turn <= len(self._script):
            entry = self._script[turn - 1]
        else:
            raise ModelRequestError(
                f"the script of {self.name!r} has {len(self._script)} entries and this is turn {turn}; "
                "add an entry, or use MockModel.function"
            )
        while not isinstance(entry, (str, ScriptedReply, ScriptedCall, ModelReply, Exception, type)):
            if isinstance(entry, Attempts):
                entry = entry.entries[min(request.attempt, len(entry.entries)) - 1]
            else:
                answered = entry(request)
                entry = await answered if inspect.isawaitable(answered) else answered
        match entry:
            case ScriptedReply() | ModelReply():
                return entry
            case str():
                return ScriptedReply(text=entry)
            case ScriptedCall():
                return ScriptedReply(calls=(entry,))
            case Exception():
                return ScriptedReply(error=entry)
            case _:
                return ScriptedReply(error=entry())

    async def _deliver(self, scripted: ScriptedReply, timeout_ms: int | None, on_text: OnText | None) -> None:
        left_ms = await self._wait(scripted.delay_ms, timeout_ms)
        before, after = asides_of(scripted) if self._tells_asides else ([], [])
        tell_asides(on_text, before)
        for place, fragment in enumerate(fragments_of(scripted)):
            if place:
                left_ms = await self._wait(scripted.fragment_delay_ms, left_ms)
            if on_text is not None:
                on_text(fragment)
        tell_asides(on_text, after)

    async def _wait(self, ms: int | None, left_ms: int | None) -> int | None:
        """Wait `ms`, None for ever; returns what is left of `left_ms`. Always lets the loop turn once."""
        if left_ms is not None and (ms is None or ms >= left_ms):
            await self._sleep(left_ms)
            raise ModelTimeoutError(f"{self.name!r} did not answer within the request's timeout_ms")
        if ms is None:
            await asyncio.get_running_loop().create_future()
            return None
        await self._sleep(ms)
        return None if left_ms is None else left_ms - ms

    async def _sleep(self, ms: int) -> None:
        if self._clock is None or ms == 0:
            await asyncio.sleep(ms / 1000)
        else:
            await self._clock.sleep_ms(ms)
