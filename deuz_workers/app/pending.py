"""What a suspended run waits for, as people and clients see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deuz_workers.core.approval_token import ApprovalSigner
from deuz_workers.core.change import ItemRow
from deuz_workers.core.pending_item import CallItem, read_call_items


@dataclass(frozen=True, slots=True)
class Signing:
    """Tokens for what is shown now: `now_ms` is Unix time by the store's clock."""

    signer: ApprovalSigner
    now_ms: int


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """A tool call that waits for a person."""

    approval_id: str
    """What `approve` and `deny` take; it names this call of this turn with these arguments, and no other."""
    tool_call_id: str
    tool_name: str
    arguments: Mapping[str, object]
    step: int
    run_id: str = ""
    token: str | None = None
    """To be given back with an approval, where the application signs its requests."""
    people: tuple[str, ...] = ()
    """Who may answer; empty: anybody."""
    needed: int = 1
    approved_by: tuple[str, ...] = ()
    """Who has approved, while more are needed."""
    assignee: str | None = None
    escalate_to: str | None = None
    expires_in_ms: int | None = None
    """Then the call is answered as denied; times in milliseconds from when this was read."""
    remind_in_ms: int | None = None
    escalate_in_ms: int | None = None
    scope: str = ""
    agent_path: tuple[str, ...] = ()
    """Agents from that of the run that was looked at to the one that asks; empty where it asks itself."""

    @property
    def item_id(self) -> str:
        return self.approval_id


@dataclass(frozen=True, slots=True)
class PendingClientCall:
    """A tool call that a client executes; the run waits for its result."""

    item_id: str
    """What `answer` takes; it names this call of this turn with these arguments, and no other."""
    tool_call_id: str
    tool_name: str
    arguments: Mapping[str, object]
    step: int
    run_id: str = ""
    scope: str = ""
    agent_path: tuple[str, ...] = ()
    """As of `PendingApproval`."""


Pending = PendingApproval | PendingClientCall


def pending_approvals(
    rows: tuple[ItemRow, ...], signing: Signing | None = None, scope: str = "", path: tuple[str, ...] = ()
) -> tuple[PendingApproval, ...]:
    """The open ones among `rows`, of a run in `scope`; `path`: where it is below the one that was looked at."""
    return tuple(_approval(item, signing, scope, path) for item in _open(rows) if item.binding.kind == "approval")


def pending_client_calls(
    rows: tuple[ItemRow, ...], scope: str = "", path: tuple[str, ...] = ()
) -> tuple[PendingClientCall, ...]:
    """The open ones among `rows`, of a run in `scope`; `path`: where it is below the one that was looked at."""
    return tuple(
        PendingClientCall(
            item.item_id,
            item.binding.call_id,
            item.binding.tool,
            item.binding.arguments,
            item.binding.step,
            item.binding.run_id,
            scope,
            path,
        )
        for item in _open(rows)
        if item.binding.kind == "client_tool"
    )


def _open(rows: tuple[ItemRow, ...]) -> tuple[CallItem, ...]:
    return tuple(item for item in read_call_items(rows) if item.is_open)


def _approval(item: CallItem, signing: Signing | None, scope: str, path: tuple[str, ...]) -> PendingApproval:
    asked, terms, row = item.binding, item.approval, item.row
    token = None
    if signing is not None:
        token = signing.signer.sign(scope, asked.run_id, item.item_id, now_ms=signing.now_ms)
    return PendingApproval(
        item.item_id,
        asked.call_id,
        asked.tool,
        asked.arguments,
        asked.step,
        asked.run_id,
        token,
        terms.people,
        terms.needed,
        tuple(str(vote.get("by")) for vote in item.votes),
        terms.assignee,
        terms.escalate_to,
        row.expires_in_ms,
        row.remind_in_ms,
        row.escalate_in_ms,
        scope,
        path,
    )
