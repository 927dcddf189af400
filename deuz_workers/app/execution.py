"""Execution contexts: what several runs may do and spend together, bound once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypedDict

from deuz_workers.core.policy import NO_POLICY, ExecutionPolicy
from deuz_workers.core.shared_budget import SharedBudget
from deuz_workers.core.usage import Budget
from deuz_workers.errors import ConfigurationError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RunOptions(TypedDict):
    """What a context says to whatever starts a run."""

    policy: ExecutionPolicy
    shared_budgets: tuple[SharedBudget, ...]


@dataclass(frozen=True, slots=True)
class ExecutionContext:
    """Give it to runs as options: ``app.enqueue("clerk", "go", **context.options)``. Never stored itself; the runs keep it."""

    policy: ExecutionPolicy = NO_POLICY
    shared_budgets: tuple[SharedBudget, ...] = ()
    """That all runs of the context are charged to."""

    @property
    def options(self) -> RunOptions:
        """For `enqueue`, `run_agent` and the other functions that start a run."""
        return {"policy": self.policy, "shared_budgets": self.shared_budgets}

    def narrowed(self, policy: ExecutionPolicy | None = None, *budgets: SharedBudget) -> ExecutionContext:
        """What both allow, charged to these budgets as well: a context below this one never allows or spends more."""
        keys = {budget.key for budget in self.shared_budgets}
        if twice := sorted(keys & {budget.key for budget in budgets}):
            raise ConfigurationError(f"the context is charged to {', '.join(twice)} already; leave it out, or take another key")
        return ExecutionContext(self.policy.narrowed(policy), (*self.shared_budgets, *budgets))


def create_execution_context(
    *,
    allowed_models: Collection[str] | None = None,
    allowed_tools: Collection[str] | None = None,
    required_approvals: Collection[str] = (),
    max_depth: int | None = None,
    deadline: datetime | None = None,
    budget_key: str | None = None,
    tokens: int | None = None,
    usd: float | None = None,
) -> ExecutionContext:
    """A context for runs that share a budget and are held to the same policy; nothing is written or connected.

    Args:
        allowed_models, allowed_tools: names; None allows all, an empty collection nothing.
        required_approvals: tools whose calls wait for a person, whatever they say themselves.
        max_depth: how deep below a run others may be started; its own depth is 0.
        deadline: a datetime with a zone; runs that have not ended by then fail.
        budget_key: of the shared budget (`team:blue`); needed with tokens or usd.
        tokens, usd: what all runs of the context together may use. A dimension that is not named has no limit.

    Raises: ConfigurationError, naming the value.
    """
    if deadline is not None and deadline.tzinfo is None:
        raise ConfigurationError(f"the deadline {deadline} has no zone; use datetime.now(UTC) + timedelta(...)")
    deadline_ms = None if deadline is None else (deadline - EPOCH) // timedelta(milliseconds=1)
    policy = ExecutionPolicy(allowed_tools, allowed_models, required_approvals, deadline_ms, max_depth)
    if budget_key is None:
        if tokens is not None or usd is not None:
            raise ConfigurationError("a budget that runs share needs a key: budget_key='team:blue'")
        return ExecutionContext(policy)
    return ExecutionContext(policy, (SharedBudget(budget_key, Budget.of(tokens=tokens, usd=usd)),))
