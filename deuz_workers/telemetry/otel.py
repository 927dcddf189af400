"""Spans and metrics of runs by the OpenTelemetry API: the only module that names it.

Where an SDK is set up they are collected; without one the API does nothing. Names follow the semantic conventions for
generative AI (status Development; github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai, which superseded
docs/gen-ai of semantic-conventions v1.41; read 2026-11); what begins with `deuz.` is ours. docs/observability.md lists all.

A run takes weeks and many processes, and no span stays open that long: turns, waits and calls are told when they have ended,
and so is the run, by whoever ends it. All of them belong to the trace that `AgentRunEnvelope.trace` names.

Event, in the log as a name and key-values: ``telemetry_failed`` (`error`; a defect of an SDK, once per process).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from deuz_workers.core.codec import encode
from deuz_workers.core.envelope import AgentRunEnvelope
from deuz_workers.core.events import (
    ContextOverflowed,
    HistorySummarized,
    ModelCallFailed,
    ModelFailedOver,
    ModelReplied,
)
from deuz_workers.core.messages import ToolUsePart, message_to_record
from deuz_workers.core.open_call import purpose_of
from deuz_workers.core.run import Run
from deuz_workers.core.usage import Usage
from deuz_workers.errors import DeuzError
from deuz_workers.ports.runtime import Clock
from deuz_workers.ports.telemetry import Ended
from deuz_workers.telemetry.trace_parent import TraceParent, read_trace_parent, trace_parent_of

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Buckets of durations, as the conventions want them."""
LONG_SECONDS = (*SECONDS, 300.0, 1_800.0, 7_200.0, 43_200.0, 259_200.0, 1_209_600.0)
"""The same up to two weeks, for what waits for people."""
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
PROVIDERS = {"google": "gcp.gemini", "openai-responses": "openai", "mistral": "mistral_ai", "xai": "x_ai"}
"""Where the conventions have another name for the beginning of a model's name."""

log = logging.getLogger(__name__)

Attribute = str | bool | int | float | tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Step:
    """One step of one run, and the turn of it that goes on."""

    run: Run
    context: Context
    created_at_ms: int
    waited_since_ms: int | None
    turn: Span | None = None
    number: int = 0
    inner: Context = field(default_factory=Context)


_STEP: ContextVar[_Step | None] = ContextVar("deuz_otel_step", default=None)


class OtelTelemetry:
    """A `Telemetry`. `content`: spans hold what was said, too."""

    is_on = True

    def __init__(self, clock: Clock, *, content: bool) -> None:
        self._clock = clock
        self._content = content
        self._has_failed = False
        self._tracer = trace.get_tracer("deuz_workers")
        meter = metrics.get_meter("deuz_workers")
        self._model_s = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "Model calls.", explicit_bucket_boundaries_advisory=SECONDS
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens of model calls.", explicit_bucket_boundaries_advisory=TOKENS
        )
        self._tool_s = meter.create_histogram(
            "gen_ai.execute_tool.duration", "s", "Calls of tools.", explicit_bucket_boundaries_advisory=SECONDS
        )
        self._run_s = meter.create_histogram(
            "gen_ai.invoke_agent.duration", "s", "Runs, waits included.", explicit_bucket_boundaries_advisory=LONG_SECONDS
        )
        self._wait_s = meter.create_histogram(
            "deuz.wait.duration", "s", "Runs that wait.", explicit_bucket_boundaries_advisory=LONG_SECONDS
        )
        self._runs = meter.create_counter("deuz.runs.ended", "{run}", "Runs that have ended.")

    def carried(self) -> str | None:
        """The span that is open here."""
        here = trace.get_current_span().get_span_context()
        return str(TraceParent(here.trace_id, here.span_id, here.trace_flags)) if here.is_valid else None

    @contextlib.contextmanager
    def continuing(self, trace: str | None) -> Generator[None]:
        parent = read_trace_parent(trace)
        if parent is None:
            yield
            return
        token = contexts.attach(_remote(parent))
        try:
            yield
        finally:
            contexts.detach(token)

    @contextlib.contextmanager
    def step(self, run: Run, created_at_ms: int, waited_since_ms: int | None) -> Generator[None]:
        envelope = run.envelope
        parent = read_trace_parent(envelope.trace) or trace_parent_of(envelope.rid)
        mine = _Step(run, _remote(parent), created_at_ms, waited_since_ms)
        held, attached = _STEP.set(mine), contexts.attach(mine.context)
        try:
            yield
        finally:
            try:
                self._end_turn(mine)
            except Exception as error:  # noqa: BLE001 - of an SDK, and the step is over whatever it says
                self.failed(error)
            contexts.detach(attached)
            _STEP.reset(held)

    def model_call(self, run: Run, model: str) -> AbstractContextManager[Ended]:
        provider, _, name = model.partition(":")
        call, checkpoint = run.envelope.checkpoint.open_call, run.envelope.checkpoint
        known: dict[str, Attribute] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": PROVIDERS.get(provider, provider),
            "gen_ai.request.model": name or model,
        }
        about: dict[str, Attribute] = {**known, **_of_run(run), "deuz.attempt": checkpoint.attempts}
        about["deuz.purpose"] = purpose_of(call) or "turn"
        if self._content:
            about["gen_ai.input.messages"] = encode([message_to_record(message) for message in run.history])
        return _Call(self, run, f"chat {name or model}", SpanKind.CLIENT, about, known)

    def tool_call(self, run: Run, call: ToolUsePart) -> AbstractContextManager[Ended]:
        known: dict[str, Attribute] = {"gen_ai.tool.name": call.name}
        receipt = run.receipts.get(call.call_id)
        about: dict[str, Attribute] = {
            "gen_ai.operation.name": "execute_tool",
            **known,
            "gen_ai.tool.call.id": call.call_id,
            "gen_ai.tool.type": "function",
            **_of_run(run),
            "deuz.attempt": 1 if receipt is None else receipt.attempt,
        }
        if self._content:
            about["gen_ai.tool.call.arguments"] = encode(dict(call.arguments or {}))
        return _Call(self, run, f"execute_tool {call.name}", SpanKind.INTERNAL, about, known)

    def saved(self, run: Run) -> None:
        here = _STEP.get()
        if here is None or here.run.envelope.rid != run.envelope.rid:
            return
        try:
            self._saved(here, run)
        except Exception as error:  # noqa: BLE001 - the commit is applied, whatever an SDK makes of it
            self.failed(error)

    def _saved(self, here: _Step, run: Run) -> None:
        envelope = run.envelope
        if here.waited_since_ms is not None and envelope.status != "suspended":
            kind = "start" if here.run.envelope.status == "queued" else "answers"
            about: dict[str, Attribute] = {**_of_run(run), "deuz.wait.kind": kind}
            span = self._tracer.start_span(
                f"wait {kind}", here.context, attributes=about, start_time=here.waited_since_ms * 1_000_000
            )
            span.end()
            waited_ms = max(0, self._clock.unix_ms() - here.waited_since_ms)
            self._wait_s.record(waited_ms / 1000, {"deuz.wait.kind": kind, "gen_ai.agent.name": envelope.agent})
            here.waited_since_ms = None
        for record in run.unsaved.journal:
            match record["type"]:
                case "turn.answered" | "run.suspended":
                    self._end_turn(here)
                case "run.completed" | "run.stopped" | "run.failed":
                    self._end_turn(here)
                    if envelope.run_kind != "reducer":
                        self._ended(here, run)
                case _:
                    pass

    def _ended(self, here: _Step, run: Run) -> None:
        envelope = run.envelope
        operation = "invoke_agent" if envelope.run_kind == "agent" else "invoke_workflow"
        known: dict[str, Attribute] = {"gen_ai.agent.name": envelope.agent}
        outcome: dict[str, Attribute] = {"deuz.run.status": envelope.status}
        error = None if envelope.error is None else envelope.error.get("code") or envelope.error.get("name")
        if envelope.reason is not None:
            outcome["deuz.run.reason"] = envelope.reason
        failure: dict[str, Attribute] = {} if error is None else {"error.type": str(error)}
        about = {"gen_ai.operation.name": operation, **_of_run(run), **outcome, **failure, **_used(envelope.usage)}
        span = self._tracer.start_span(
            f"{operation} {envelope.agent}", here.context, attributes=about, start_time=here.created_at_ms * 1_000_000
        )
        if error is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end()
        self._run_s.record(max(0, self._clock.unix_ms() - here.created_at_ms) / 1000, {**known, **failure})
        self._runs.add(1, {**known, **outcome})

    def opened(self, run: Run, name: str, kind: SpanKind, about: Mapping[str, Attribute]) -> tuple[Span, Context]:
        """The span of a call, in that of its turn, which begins with its first call in this step."""
        here = _STEP.get()
        if here is None:
            outer = contexts.get_current()
        else:
            if here.turn is None or here.number != run.step:
                self._end_turn(here)
                here.number = run.step
                here.turn = self._tracer.start_span(f"turn {run.envelope.agent}", here.context, attributes=_of_run(run))
                here.inner = trace.set_span_in_context(here.turn, here.context)
            outer = here.inner
        span = self._tracer.start_span(name, outer, kind, dict(about))
        return span, trace.set_span_in_context(span, outer)

    def told(self, span: Span, known: Mapping[str, Attribute], outcome: object, took_ms: int) -> None:
        """What a call came to."""
        seconds = took_ms / 1000
        if "gen_ai.tool.name" in known:
            if self._content:
                with contextlib.suppress(DeuzError):
                    span.set_attribute("gen_ai.tool.call.result", encode(outcome))
            self._tool_s.record(seconds, known)
            return
        usage: Usage | None = None
        error: Mapping[str, object] | None = None
        match outcome:
            case ModelReplied(message=message, finish_reason=reason, usage=usage):
                span.set_attribute("gen_ai.response.finish_reasons", (reason,))
                if self._content:
                    span.set_attribute("gen_ai.output.messages", encode([message_to_record(message)]))
            case HistorySummarized(usage=usage):
                pass
            case ModelCallFailed(error=error) | ModelFailedOver(error=error) | ContextOverflowed(error=error):
                pass
            case _:
                error = {"code": "abandoned"}
        failure: dict[str, Attribute] = {}
        if error is not None:
            failure["error.type"] = str(error.get("code") or error.get("name"))
            span.set_attributes(failure)
            span.set_status(Status(StatusCode.ERROR))
        self._model_s.record(seconds, {**known, **failure})
        if usage is not None:
            span.set_attributes(_used(usage))
            for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
                self._tokens.record(count, {**known, "gen_ai.token.type": kind})

    def broke(self, span: Span, known: Mapping[str, Attribute], error: BaseException, took_ms: int) -> None:
        """A call ended by an error: its kind is told, nothing of what it says."""
        failure = {"error.type": str(getattr(error, "outcome", None) or type(error).__name__)}
        span.set_attributes(failure)
        span.set_status(Status(StatusCode.ERROR))
        seconds = self._tool_s if "gen_ai.tool.name" in known else self._model_s
        seconds.record(took_ms / 1000, {**known, **failure})

    def failed(self, error: Exception) -> None:
        """An SDK raised; the run goes on without it."""
        if not self._has_failed:
            log.error("telemetry_failed error=%s", type(error).__name__)
        self._has_failed = True

    @property
    def now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def _end_turn(self, here: _Step) -> None:
        turn, here.turn = here.turn, None
        if turn is not None:
            turn.end()


class _Call:
    """The block of one call."""

    def __init__(
        self,
        telemetry: OtelTelemetry,
        run: Run,
        name: str,
        kind: SpanKind,
        about: Mapping[str, Attribute],
        known: Mapping[str, Attribute],
    ) -> None:
        """`known`: attributes of its metrics."""
        self._telemetry = telemetry
        self._opening = (run, name, kind, about)
        self._known = known
        self._span: Span | None = None

    def __enter__(self) -> Ended:
        self._began_ms = self._telemetry.now_ms
        try:
            self._span, context = self._telemetry.opened(*self._opening)
            self._token = contexts.attach(context)
        except Exception as error:  # noqa: BLE001 - of an SDK
            self._telemetry.failed(error)
        return self._ended

    def _ended(self, outcome: object) -> None:
        if self._span is None:
            return
        try:
            self._telemetry.told(self._span, self._known, outcome, self._telemetry.now_ms - self._began_ms)
        except Exception as error:  # noqa: BLE001 - of an SDK
            self._telemetry.failed(error)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._span is None:
            return
        try:
            contexts.detach(self._token)
            if error is not None:
                self._telemetry.broke(self._span, self._known, error, self._telemetry.now_ms - self._began_ms)
            self._span.end()
        except Exception as broken:  # noqa: BLE001 - of an SDK
            self._telemetry.failed(broken)


def _remote(parent: TraceParent) -> Context:
    known = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=TraceFlags(parent.flags))
    return trace.set_span_in_context(NonRecordingSpan(known), Context())


def _of_run(run: Run) -> dict[str, Attribute]:
    envelope: AgentRunEnvelope = run.envelope
    return {
        "gen_ai.agent.name": envelope.agent,
        "deuz.run.id": envelope.run_id,
        "deuz.scope": envelope.scope,
        "deuz.turn": run.step,
    }


def _used(usage: Usage) -> dict[str, Attribute]:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
    }
