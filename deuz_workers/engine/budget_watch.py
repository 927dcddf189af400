"""Telling the application that a budget is nearly used up; nothing it does about that changes what was decided."""

from __future__ import annotations

import inspect
import logging
from dataclasses import replace
from typing import Any

from deuz_workers.core.budget_warning import stood
from deuz_workers.core.events import BudgetStood
from deuz_workers.engine.leg import Leg
from deuz_workers.engine.user_code import Broken, LimitPassed, outcome_of

log = logging.getLogger(__name__)

CALLBACK_LIMIT_MS = 5_000
"""The model call waits for it: a callback that is stuck costs no more than this, once per run and scope."""


async def watch_budgets(leg: Leg) -> None:
    """After a call was admitted. What was told is saved with the next commit; after a crash before that it is told again."""
    charged = leg.committer.applied[-1].charged if leg.committer.applied else ()
    if not charged:
        return
    envelope = leg.run.envelope
    warnings, told = stood(charged, envelope.warned)
    if told != envelope.warned:
        leg.carry(BudgetStood(charged))
    for warning in warnings:
        log.warning(
            "budget_warned run=%s key=%s dimension=%s percent=%d",
            envelope.run_id,
            warning.key,
            warning.dimension,
            warning.percent,
        )
        callback = leg.gear.on_budget_warning
        if callback is None:
            continue
        given = replace(warning, scope=envelope.scope, run_id=envelope.run_id)

        async def tell(function: Any = callback, given: object = given) -> None:
            if inspect.iscoroutinefunction(function):
                await function(given)
                return
            value = await leg.gear.threads.call("on_budget_warning", lambda: function(given))
            if inspect.isawaitable(value):
                await value

        try:
            await outcome_of(tell, CALLBACK_LIMIT_MS)
        except (Broken, LimitPassed) as error:
            cause = error.error if isinstance(error, Broken) else error
            log.warning("budget_callback_failed run=%s error=%s", envelope.run_id, type(cause).__name__)
