"""A call that costs money, of a leg: admitted by a commit, sent after it, its outcome carried to the next commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from deuz_workers.core.events import (
    Event,
    Finished,
    ModelCallAbandoned,
    ModelCallFailed,
    ModelCallStarted,
    ModelFailedOver,
    SummaryStarted,
)
from deuz_workers.core.limits import Limits
from deuz_workers.core.rate import RateName
from deuz_workers.engine.asking import budget_ending, kept_back
from deuz_workers.engine.budget_watch import watch_budgets
from deuz_workers.engine.committer import BudgetRefused, CancelFirst, ReservationContended, StepOver
from deuz_workers.engine.leg import Leg, LoopEnd
from deuz_workers.engine.restraint import draw_for_model, give_back, settle_rates
from deuz_workers.engine.stop import Stop
from deuz_workers.errors import (
    AdmissionFailedError,
    ExecutionPolicyError,
    LedgerContendedError,
    ModelError,
    StoreRefusedError,
    StoreUnavailableError,
    as_record,
)
from deuz_workers.ports.model import Model


class PaidCall(Protocol):
    @property
    def model(self) -> Model: ...
    @property
    def limits(self) -> Limits: ...

    def opening(self) -> tuple[Event, ...]:
        """Events that have to be saved before the request leaves."""
        ...

    def not_sent(self, error: ModelError) -> tuple[Event, ...]:
        """What happens instead where the call is kept back by this error."""
        ...

    async def send(self, stop: Stop, revision: int, deadline_in_ms: int | None) -> Event | None:
        """Make the call; `revision` is that of the commit which allowed it, `deadline_in_ms` counts from the step's load.

        None: ended at once because the lease is lost, the run cancelled or the drain's grace over; nobody knows the outcome.
        """
        ...


async def make_call(leg: Leg, call: PaidCall, label: str) -> LoopEnd | None:
    """Commit, send, carry what came of it. None: the leg goes on from what is carried. Raises `HeldBack`.

    Before that the model's breaker is asked: what it keeps back reserves nothing (FOV-010).
    """
    try:
        leg.policy.check_model(call.model.name)
        if wait_ms := await leg.gear.breakers.wait_ms(call.model.name):
            leg.carry(*call.not_sent(kept_back(call.model, wait_ms)))
            return None
        try:
            rates, tokens = await _admit(leg, call)
        except BaseException:
            await leg.gear.breakers.untried(call.model.name)
            raise
    except ExecutionPolicyError as error:
        await leg.commit(Finished("failed", error=as_record(error)))
        return "ended"
    except BudgetRefused as refused:
        await leg.commit(budget_ending(refused.refusal))
        return "ended"
    except ReservationContended:
        text = f"the budget of run {leg.head.run_id!r} was in use all the time; the call was not sent"
        leg.carry(*call.not_sent(LedgerContendedError(text)))
        return None
    await watch_budgets(leg)
    leg.hold_for(call.limits.model_timeout_ms, label)
    admitted = leg.committer.run
    with leg.gear.telemetry.model_call(admitted, call.model.name) as ended:
        event = await call.send(leg.stop, admitted.envelope.revision, leg.head.ends_in_ms)
        ended(event)
    await settle_rates(leg, rates, tokens, event)
    if event is not None:
        if isinstance(event, ModelCallFailed) and _time_is_over(leg):
            event = replace(event, retry_in_ms=event.retry_in_ms or 1)  # the run ends by its time, not by this
        elif isinstance(event, ModelFailedOver) and leg.ending_by_time(leg.run):
            event = ModelCallFailed(event.error, event.billed, event.kind, 1)
        leg.carry(event)
        if isinstance(event, ModelFailedOver) and leg.stop.is_draining:
            await leg.commit()
            return "drained"
        return None
    if leg.stop.is_lost:
        raise StepOver("the lease is gone")
    leg.carry(ModelCallAbandoned())
    if leg.stop.is_cancelled:
        return None
    await leg.commit()
    return "drained"


async def _admit(leg: Leg, call: PaidCall) -> tuple[tuple[RateName, ...], int]:
    """The commit that lets the call be sent; which rates it was drawn from, and for how many tokens.

    Raises `AdmissionFailedError` where the store cannot answer: what it stores, if anything, is for whoever loads the run next.
    """
    opening = call.opening()
    tokens = sum(event.call.tokens for event in opening if isinstance(event, ModelCallStarted | SummaryStarted))
    rates = await draw_for_model(leg, call.model.name, tokens)
    try:
        await leg.commit(*opening)
    except (BudgetRefused, CancelFirst, ReservationContended):
        await give_back(leg, rates, tokens)
        raise
    except StoreRefusedError:
        raise
    except StoreUnavailableError as error:
        text = f"nobody answered whether model call of run {leg.head.run_id!r} may be made, so it was not sent: {error.message}"
        raise AdmissionFailedError(text) from error
    return rates, tokens


def _time_is_over(leg: Leg) -> bool:
    return leg.head.ends_in_ms is not None and leg.stop.elapsed_ms >= leg.head.ends_in_ms
