"""The call for a summary of older messages: a model call of its own, with its own reservation, usage and price (CMP-006)."""

from __future__ import annotations

from dataclasses import dataclass, field

from deuz_workers.core.compaction import reshaped
from deuz_workers.core.estimate import usage_bound
from deuz_workers.core.events import Event, HistorySummarized, ModelCallFailed, SummaryStarted
from deuz_workers.core.history import History
from deuz_workers.core.layers import Fold, Measure, folded
from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import Message
from deuz_workers.core.run import Run
from deuz_workers.core.summary_request import summary_messages
from deuz_workers.engine.asking import (
    Ended,
    ask,
    binding_event,
    call_to_open,
    failed_call,
    limit_of_call_ms,
    limits_of,
    priced,
)
from deuz_workers.engine.binding import Bindings
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.reply_check import check_reply, stored_reply
from deuz_workers.engine.stop import Stop
from deuz_workers.errors import ModelError, ModelResponseError
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.model import Model, ModelRequest

ROOM_SHARE = 0.8
"""Of the window: what the text to be summed up may take; the rest is for the instructions, the summary and a wrong estimate."""


@dataclass(slots=True)
class SummaryCall:
    gear: Gear
    agent: AgentDefinition
    run: Run
    bindings: Bindings
    model: Model
    fold: Fold
    measure: Measure
    max_output_tokens: int
    messages: tuple[Message, ...] = field(init=False)

    def __post_init__(self) -> None:
        room = min(self.measure.window * ROOM_SHARE, max(1, self.measure.window - self.max_output_tokens))
        self.messages = summary_messages(self.fold.messages, self.measure.bytes_of(round(room)))

    @property
    def request_id(self) -> str:
        """Stable for this admitted attempt, in whichever process it is made; no call of a turn has it."""
        return f"{self.run.envelope.rid.hex}:s{self.run.envelope.checkpoint.summaries + 1}"

    @property
    def limits(self) -> Limits:
        return limits_of(self.agent, self.run)

    @property
    def attempt(self) -> int:
        return self.run.envelope.checkpoint.retries + 1

    def opening(self) -> tuple[Event, ...]:
        """Events that have to be saved before the request leaves."""
        size_bytes, writes_cache = History(self.messages).size_bytes, getattr(self.model, "writes_cache", False)
        most = usage_bound(size_bytes, self.max_output_tokens, writes_cache=writes_cache)
        call = call_to_open(self.gear, self.agent, self.model, self.request_id, self.attempt, most, purpose="summary")
        return (*binding_event(self.agent, self.run, self.bindings), SummaryStarted(call))

    async def send(self, stop: Stop, revision: int, deadline_in_ms: int | None) -> Event | None:
        """Ask for the summary. What it streams is shown to nobody."""
        limit_ms = limit_of_call_ms(self.limits, stop, deadline_in_ms)
        request = ModelRequest(
            self.request_id,
            self.messages,
            max_output_tokens=self.max_output_tokens,
            timeout_ms=limit_ms,
            extra=self.agent.model_extra if self.model is self.agent.model else {},
            attempt=self.attempt,
        )
        try:
            reply = stored_reply(check_reply(await ask(self.gear, self.model, request, stop, self.limits, None)))
            text = reply.message.text.strip()
            if not text:
                raise ModelResponseError("the model gave an empty summary of the older messages", code="empty_summary")
        except Ended:
            return None
        except ModelError as error:
            return self._failed(error)
        compaction = folded(self.run, self.fold, text)
        history = self.run.history
        after = History(reshaped(history, self.run.compaction, compaction))
        before_tokens, after_tokens = self.measure.tokens(history.size_bytes), self.measure.tokens(after.size_bytes)
        usage = priced(self.gear, self.run, reply.model, reply.usage)
        return HistorySummarized(compaction, usage, before_tokens, after_tokens, self.model.name)

    def not_sent(self, error: ModelError) -> tuple[Event, ...]:
        """Nothing was reserved."""
        return (*binding_event(self.agent, self.run, self.bindings), self._failed(error))

    def _failed(self, error: ModelError) -> ModelCallFailed:
        """The step fails as if its own call had (CMP-004)."""
        return failed_call(self.gear, self.run, self.limits, self.request_id, error)
