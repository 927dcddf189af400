"""What a run may do gets narrower, and its journal says so once."""

from __future__ import annotations

from deuz_workers.core.draft import Draft
from deuz_workers.core.policy import ExecutionPolicy


def narrow(draft: Draft, policy: ExecutionPolicy) -> None:
    before: ExecutionPolicy = draft.value("policy")
    after = before.narrowed(policy)
    if after != before:
        draft.change(policy=after)
        draft.journal("run.policy_narrowed", **after.to_record())
