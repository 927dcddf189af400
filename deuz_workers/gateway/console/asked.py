"""What runs ask of people and clients, as a page shows it to one of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from deuz_workers.app.pending import Pending, PendingApproval
from deuz_workers.app.ui_parts import jsonable


@dataclass(frozen=True, slots=True)
class Asked:
    """One item. `run_id`: of the run whose call it is, which takes the answer."""

    kind: Literal["approval", "client_tool"]
    item_id: str
    run_id: str
    tool: str
    step: int
    arguments: object
    is_mine: bool
    """Whoever looks may answer it."""
    token: str | None = None
    people: tuple[str, ...] = ()
    needed: int = 1
    approved_by: tuple[str, ...] = ()
    expires_at_ms: int | None = None
    path: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Names it within a page."""
        return "i" + hashlib.sha256(f"{self.run_id}\n{self.item_id}".encode("utf-8", "surrogatepass")).hexdigest()[:12]


def asked_of(item: Pending, principal: str, now_ms: int) -> Asked:
    """`now_ms`: when the item was read, Unix time by the store's clock."""
    arguments = jsonable(dict(item.arguments))
    if not isinstance(item, PendingApproval):
        return Asked("client_tool", item.item_id, item.run_id, item.tool_name, item.step, arguments, True, path=item.agent_path)
    expires_at_ms = None if item.expires_in_ms is None else (now_ms + item.expires_in_ms) // 60_000 * 60_000
    return Asked(
        "approval",
        item.item_id,
        item.run_id,
        item.tool_name,
        item.step,
        arguments,
        (not item.people or principal in item.people) and principal not in item.approved_by,
        item.token,
        item.people,
        item.needed,
        item.approved_by,
        expires_at_ms,
        item.agent_path,
    )
