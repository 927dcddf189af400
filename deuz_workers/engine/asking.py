"""Asking a model: what a call for a turn and a call for a summary have in common."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import replace

from deuz_workers.core.change import BudgetExceeded
from deuz_workers.core.events import Bound, Finished, ModelCallFailed
from deuz_workers.core.limits import Limits
from deuz_workers.core.run import Run
from deuz_workers.core.transient import transient_kind
from deuz_workers.core.usage import Usage
from deuz_workers.engine.binding import Bindings
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.reply_check import asked_wait_ms, failure_record, known_cost
from deuz_workers.engine.stop import Stop
from deuz_workers.engine.user_code import Broken, apart
from deuz_workers.errors import ExecutionPolicyError, ModelError, ModelResponseError, ModelTimeoutError, as_record
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.model import Model, ModelRequest, OnText

log = logging.getLogger(__name__)


class Ended(Exception):
    """The call was ended at once, since its answer is of no more use; nobody knows its outcome."""


def binding_event(agent: AgentDefinition, run: Run, bindings: Bindings) -> tuple[Bound, ...]:
    """Ahead of the first call of a run, in the same commit."""
    if run.envelope.binding is not None:
        return ()
    bound = Bound(
        bindings.of(agent),
        agent.limits,
        finalizes=agent.output is not None,
        has_loop=bool(agent.tools),
        verifies=agent.verify is not None,
    )
    return (bound,)


def limits_of(agent: AgentDefinition, run: Run) -> Limits:
    """Of the run; of the agent while the run has not begun."""
    return agent.limits if run.envelope.binding is None else run.envelope.limits


def budget_ending(refusal: BudgetExceeded) -> Finished:
    """The run ends because a budget has no room for this call."""
    error = ExecutionPolicyError(
        f"the budget of scope {refusal.scope!r} has no room for this model call; raise the budget or start a new run",
        code=refusal.reason,
        scope=refusal.scope,
    )
    return Finished("failed", error=as_record(error))


async def ask(model: Model, request: ModelRequest, stop: Stop, limit_ms: int, on_text: OnText | None = None) -> object:
    """What the model handed over, whatever that is.

    Raises `ModelError` for every way in which a call fails, its own time limit among them; `Ended` because the lease is lost,
    the run cancelled or the drain's grace over.
    """
    limit = asyncio.timeout(limit_ms / 1000)
    given: object = None
    failure: ModelError | None = None
    try:
        async with limit:
            with stop.may_end(limit):
                given = await apart(lambda: model.call(request, on_text))
    except TimeoutError:
        failure = ModelTimeoutError(f"the model call took longer than {limit_ms} ms")
    except Broken as broken:  # a model is user code too: whatever it raises ends the call, not the worker
        error = broken.error
        client = f"the model client failed: {type(error).__name__}"
        failure = error if isinstance(error, ModelError) else ModelResponseError(client, code="model_client")
    if limit.expired() and stop.model_must_end:
        raise Ended
    if failure is not None:
        raise failure
    return given


def limit_of_call_ms(limits: Limits, stop: Stop, deadline_in_ms: int | None) -> int:
    """`deadline_in_ms` counts from the step's load."""
    if deadline_in_ms is None:
        return limits.model_timeout_ms
    return max(1, min(limits.model_timeout_ms, deadline_in_ms - stop.elapsed_ms))


def failed_call(gear: Gear, run: Run, limits: Limits, request_id: str, error: ModelError) -> ModelCallFailed:
    """The store puts no wait behind the deadline of the run, so none is cut off here."""
    checkpoint, settings = run.envelope.checkpoint, gear.settings
    record, kind = failure_record(error), transient_kind(error)
    if error.retry != "never" and checkpoint.retries < limits.max_retries:
        back_off_ms = _back_off_ms(request_id, settings.retry_base_ms, settings.retry_max_ms, checkpoint.retries)
        return ModelCallFailed(record, error.billed, kind, max(asked_wait_ms(error), back_off_ms))
    if kind is not None and checkpoint.reruns < limits.max_reruns:
        back_off_ms = _back_off_ms(request_id, settings.rerun_base_ms, settings.rerun_max_ms, checkpoint.reruns)
        return ModelCallFailed(record, error.billed, kind, max(asked_wait_ms(error), back_off_ms), reruns=True)
    return ModelCallFailed(record, error.billed, kind, None)


def _back_off_ms(request_id: str, base_ms: int, most_ms: int, before: int) -> int:
    """Full jitter, drawn from the request id so that a repeated decision is the same decision."""
    most = min(base_ms * 2**before, most_ms)
    draw = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:4]) / 2**32
    return max(1, round(most * draw))


def priced(gear: Gear, run: Run, model: str, usage: Usage | None) -> Usage | None:
    """The reply is paid for: a price list that fails makes its price unknown, nothing else."""
    if usage is None:
        return None
    try:
        cost = known_cost(gear.prices.cost_micros(model, usage))
    except Exception as error:  # noqa: BLE001 - a price list may be the user's
        log.warning("price_unknown run=%s error=%s", run.envelope.run_id, type(error).__name__)
        cost = None
    return replace(usage, cost_micros=cost)
