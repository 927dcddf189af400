"""Asking a model: what a call for a turn and a call for a summary have in common."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deuz_workers.core.breaker import counts, is_answer
from deuz_workers.core.change import BudgetExceeded
from deuz_workers.core.envelope import OpenCall
from deuz_workers.core.events import Bound, Finished, ModelCallFailed
from deuz_workers.core.limits import Limits
from deuz_workers.core.run import Run
from deuz_workers.core.transient import transient_kind
from deuz_workers.core.usage import Usage
from deuz_workers.engine.binding import Bindings
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.reply_check import asked_wait_ms, failure_record, known_cost
from deuz_workers.engine.stop import Stop
from deuz_workers.engine.telling import Telling
from deuz_workers.engine.user_code import Broken, apart
from deuz_workers.errors import (
    BudgetLedgerError,
    ModelBreakerOpenError,
    ModelError,
    ModelResponseError,
    ModelTimeoutError,
    as_record,
)
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.model import Model, ModelRequest

log = logging.getLogger(__name__)


class Ended(Exception):
    """The call was ended at once, since its answer is of no more use; nobody knows its outcome."""


def binding_event(agent: AgentDefinition, run: Run, bindings: Bindings) -> tuple[Bound, ...]:
    """Ahead of the first call of a run, in the same commit."""
    if run.envelope.binding is not None:
        return ()
    chat = run.envelope.chat
    bound = Bound(
        bindings.of(agent) if chat is None else {**bindings.of(agent), "chat": chat.to_record()},
        agent.limits,
        finalizes=agent.output is not None,
        has_loop=bool(agent.tools),
        verifies=agent.verify is not None,
    )
    return (bound,)


def limits_of(agent: AgentDefinition, run: Run) -> Limits:
    """Of the run; of the agent while the run has not begun."""
    return agent.limits if run.envelope.binding is None else run.envelope.limits


_REFUSALS: Mapping[str, str] = {
    "budget_exceeded": "the budget of scope {scope} has no room for this model call; raise the budget or start a new run",
    "missing_reservation": "the budget of scope {scope} limits money and no price is known for the model; name one in `prices` "
    "or in the file of the setting prices_file, or see the setting unknown_prices",
    "window_mismatch": "scope {scope} has another window than this run asks for, and the first use of a scope decides; name "
    "that window, or take another key",
    "request_mismatch": "this model call was reserved before with other amounts, so it is not the same call; start a new run",
}


def budget_ending(refusal: BudgetExceeded) -> Finished:
    """The run ends because a budget has no room for this call."""
    error = BudgetLedgerError(
        _REFUSALS[refusal.reason].format(scope=repr(refusal.scope)), code=refusal.reason, scope=refusal.scope
    )
    return Finished("failed", error=as_record(error))


async def ask(gear: Gear, model: Model, request: ModelRequest, stop: Stop, limits: Limits, telling: Telling | None) -> object:
    """What the model handed over, whatever that is, within the request's `timeout_ms`. Its breaker is told how that went.

    Raises `ModelError` for every way in which a call fails, its own time limit among them; `Ended` because the lease is lost,
    the run cancelled or the drain's grace over.
    """
    limit_ms = request.timeout_ms or limits.model_timeout_ms
    limit = asyncio.timeout(limit_ms / 1000)
    given: object = None
    failure: ModelError | None = None
    try:
        async with limit:
            with stop.may_end(limit):
                given = await apart(lambda: model.call(request, telling))
    except TimeoutError:
        failure = ModelTimeoutError(f"the model call took longer than {limit_ms} ms")
    except Broken as broken:  # a model is user code too: whatever it raises ends the call, not the worker
        error = broken.error
        client = f"the model client failed: {type(error).__name__}"
        failure = error if isinstance(error, ModelError) else ModelResponseError(client, code="model_client")
    if limit.expired() and stop.model_must_end:
        raise Ended
    if failure is None:
        gear.breakers.heard(model.name)
        return given
    after_content = failure.after_content or (telling is not None and telling.has_told)
    is_cut_short = isinstance(failure, ModelTimeoutError) and limit_ms < limits.model_timeout_ms  # by the end of the run
    if after_content or is_answer(failure):
        gear.breakers.heard(model.name)
    elif counts(transient_kind(failure), after_content=False) and not is_cut_short:
        await gear.breakers.failed(model.name)
    raise failure


def kept_back(model: Model, wait_ms: int) -> ModelBreakerOpenError:
    """What a call that is not sent fails by."""
    text = f"{model.name} failed too often in a row and is left alone; it is tried again in {wait_ms} ms"
    return ModelBreakerOpenError(text, retry_after_ms=wait_ms)


def limit_of_call_ms(limits: Limits, stop: Stop, deadline_in_ms: int | None) -> int:
    """`deadline_in_ms` counts from the step's load."""
    if deadline_in_ms is None:
        return limits.model_timeout_ms
    return max(1, min(limits.model_timeout_ms, deadline_in_ms - stop.elapsed_ms))


def repeated_call(gear: Gear, run: Run, limits: Limits, request_id: str, error: ModelError) -> ModelCallFailed | None:
    """The same model is called again after a while, as long as the call has repeats left.

    The store puts no wait behind the deadline of the run, so none is cut off here.
    """
    retries, settings = run.envelope.checkpoint.retries, gear.settings
    if error.retry == "never" or retries >= limits.max_retries:
        return None
    asked_ms = asked_wait_ms(error)
    wait_ms = max(asked_ms, _back_off_ms(request_id, settings.retry_base_ms, settings.retry_max_ms, retries))
    return ModelCallFailed(failure_record(error), error.billed, transient_kind(error), wait_ms, asked_wait_ms=asked_ms)


def failed_call(gear: Gear, run: Run, limits: Limits, request_id: str, error: ModelError) -> ModelCallFailed:
    """The call is repeated, or the run taken up again by itself, or it has failed."""
    if (repeated := repeated_call(gear, run, limits, request_id, error)) is not None:
        return repeated
    checkpoint, settings = run.envelope.checkpoint, gear.settings
    record, kind, asked_ms = failure_record(error), transient_kind(error), asked_wait_ms(error)
    if kind is not None and checkpoint.reruns < limits.max_reruns:
        back_off_ms = _back_off_ms(request_id, settings.rerun_base_ms, settings.rerun_max_ms, checkpoint.reruns)
        wait_ms = max(asked_ms, back_off_ms)
        return ModelCallFailed(record, error.billed, kind, wait_ms, reruns=True, asked_wait_ms=asked_ms)
    return ModelCallFailed(record, error.billed, kind, None, asked_wait_ms=asked_ms)


def _back_off_ms(request_id: str, base_ms: int, most_ms: int, before: int) -> int:
    """Full jitter, drawn from the request id so that a repeated decision is the same decision."""
    most = min(base_ms * 2**before, most_ms)
    draw = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:4]) / 2**32
    return max(1, round(most * draw))


def call_to_open(
    gear: Gear, agent: AgentDefinition, model: Model, request_id: str, attempt: int, most: Usage, **given: Any
) -> OpenCall:
    """The call as it is reserved: `most`, or what the agent says that its calls may use."""
    estimate = agent.execution_estimate
    tokens, cost = most.total_tokens, None if estimate is None else estimate.usd_micros
    if cost is None:
        cost = known_cost(gear.prices.cost_micros(model.name, most))
    if estimate is not None and estimate.tokens is not None:
        tokens = estimate.tokens
    return OpenCall(
        request_id,
        attempt,
        tokens,
        cost,
        **given,
        model=None if model is agent.model and not agent.driver else model.name,
        charged_model=model.name,
        uncounted=gear.settings.unknown_prices == "allow",
        warn_percent=gear.settings.budget_warn_percent,
    )


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
