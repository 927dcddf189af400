"""What a run may do, and spend with others, gets narrower, and its journal says so once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from deuz_workers.core.draft import Draft
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.shared_budget import SharedBudget, shared_keys, tightened

BUDGETS = "shared_budgets"
"""Field of a record that narrows a run, beside those of a policy."""


def narrow(draft: Draft, policy: ExecutionPolicy) -> None:
    before: ExecutionPolicy = draft.value("policy")
    after = before.narrowed(policy)
    if after != before:
        draft.change(policy=after)
        draft.journal("run.policy_narrowed", **after.to_record())


def charge(draft: Draft, given: tuple[SharedBudget, ...]) -> None:
    """Calls that begin from here on are charged to these budgets too; one that is open is settled where it was reserved."""
    before: tuple[SharedBudget, ...] = draft.value("shared")
    after = tightened(before, given)
    if given and after != before:
        scopes: tuple[str, ...] = draft.value("scopes")
        own = {one.key for one in before}
        draft.change(shared=after, scopes=(*(key for key in scopes if key not in own), *shared_keys(after)))
        draft.journal("run.budgets_narrowed", keys=[one.key for one in after])


def narrowing_record(policy: ExecutionPolicy | None, shared: tuple[SharedBudget, ...]) -> dict[str, object]:
    """Of a note that narrows a run."""
    record: dict[str, object] = {} if policy is None else policy.to_record()
    return record | ({BUDGETS: [one.to_record() for one in shared]} if shared else {})


def read_narrowing(record: Mapping[str, object]) -> tuple[ExecutionPolicy, tuple[SharedBudget, ...]]:
    """Raises `ConfigurationError`, `KeyError` or `TypeError` for a record that is none of ours: a limit that cannot be read is
    no missing limit."""
    rest = {name: value for name, value in record.items() if name != BUDGETS}
    given = cast("list[Mapping[str, object]]", record.get(BUDGETS, []))
    return ExecutionPolicy.from_record(rest), tuple(map(SharedBudget.from_record, given))
