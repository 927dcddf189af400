"""Looks at every operation that a store carries out, and says so when one must never have been.

It knows nothing of the engine: only what was stored, in which order, and what began outside because of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast
from uuid import UUID

from deuz_workers.core.change import FINAL
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.tool import ToolContext
from deuz_workers.testing.conversations import conversation_problems

Call = tuple[UUID, int, str]
"""Run, turn, call id."""
ENDED = ("failed", "completed")
"""Stages behind which a receipt has no other."""
COMMITS = ("commit_plain", "commit_settle", "commit_reserve", "commit")
UNSWEPT: Mapping[str, str] = {
    "sqlite": "select run_id from run_head where parked is null and sweep_at_ms is null"
    " and (wake_seq > seen_seq or due_at_ms is not null)"
    " and (slot is not 'waiting' or cancel_seq > seen_seq)",
    "postgres": "select run_id from run_head where parked is null and sweep_at is null"
    " and (wake_seq > seen_seq or due_at is not null)"
    " and (slot is distinct from 'waiting' or cancel_seq > seen_seq)",
}
"""By dialect: runs that have work or will have, and that no sweep finds. Who waits for a slot is found by its key."""
HELD: Mapping[str, str] = {
    "sqlite": "select h.run_id from reservation r join run_head h on h.rid = r.rid"
    " where r.status = 'held' and h.status not in ('queued', 'running')",
    "postgres": "select h.run_id from reservation r join run_head h on h.rid = r.rid"
    " where h.status not in ('queued', 'running')"
    " and not exists (select from settlement s where s.rid = r.rid and s.request_id = r.request_id)",
}
"""By dialect: runs that wait or have ended and own what is set aside for a call under way."""


ORPHANS: Mapping[str, str] = {
    "sqlite": "select c.run_id from run_head c join run_head p on p.rid = c.parent_rid"
    " where c.status not in ('completed', 'stopped', 'failed') and c.cancel_seq = 0"
    " and p.status in ('completed', 'stopped', 'failed') and p.due_at_ms is null",
    "postgres": "select c.run_id from run_head c join run_head p on p.rid = c.parent_rid"
    " where c.status not in ('completed', 'stopped', 'failed') and c.cancel_seq = 0"
    " and p.status in ('completed', 'stopped', 'failed') and p.due_at is null",
}
"""By dialect: delegated runs that go on although nobody waits for them, and that nobody will cancel."""
UNANSWERED = (
    "select p.run_id from run_head p where p.status = 'suspended'"
    " and (select count(*) from pending_item i where i.rid = p.rid and i.suspension = p.suspension"
    " and i.kind = 'child_run' and i.answer is null)"
    " <> (select count(*) from run_head c where c.parent_rid = p.rid and c.status not in ('completed', 'stopped', 'failed'))"
)
"""Runs that wait for more or fewer delegated ones than go on."""


@dataclass(slots=True)
class Witness:
    """`complain` hears what must never be so."""

    complain: Callable[[str], None]
    revisions: dict[UUID, int] = field(default_factory=lambda: dict[UUID, int]())
    """Of the newest commit of each run."""
    final: dict[UUID, tuple[str, int]] = field(default_factory=lambda: dict[UUID, tuple[str, int]]())
    """Status and revision of runs that have ended by a commit of their own."""
    suspended: set[str] = field(default_factory=lambda: set[str]())
    """Ids of runs whose newest commit suspended them."""
    reopened: set[UUID] = field(default_factory=lambda: set[UUID]())
    """Failed runs that somebody explicitly started again."""
    chats: dict[str, str] = field(default_factory=lambda: dict[str, str]())
    """By chat id, as it was written last."""
    names: dict[UUID, str] = field(default_factory=lambda: dict[UUID, str]())
    rids: dict[str, UUID] = field(default_factory=lambda: dict[str, UUID]())
    _stages: dict[Call, str] = field(default_factory=lambda: dict[Call, str]())
    _idempotent: dict[Call, bool] = field(default_factory=lambda: dict[Call, bool]())
    _attempts: Counter[Call] = field(default_factory=lambda: Counter[Call]())
    """Times that the start of a call was saved."""
    _allowed: Counter[tuple[UUID, str]] = field(default_factory=lambda: Counter[tuple[UUID, str]]())
    """Repeats that somebody allowed, by run and call id."""
    _begun: set[tuple[Call, int]] = field(default_factory=lambda: set[tuple[Call, int]]())
    _handoffs: dict[UUID, list[dict[str, Any]]] = field(default_factory=lambda: dict[UUID, list[dict[str, Any]]]())
    """Transfers of each run as they were saved."""
    _admitted: dict[str, str] = field(default_factory=lambda: dict[str, str]())
    """Model requests whose start was saved, and for which model."""

    def saw(self, operation: str, params: Mapping[str, object], rows: Sequence[Mapping[str, Any]]) -> None:
        """An operation was carried out, and `rows` were its answer."""
        if operation in COMMITS:
            if rows[0]["outcome"] == "applied":
                self._committed(params, rows[0]["revision"])
        elif operation == "write_chat" and rows:
            name = str(params["chat_id"])
            if self.chats.get(name) == params["body"]:
                self.complain(f"{name} was written twice as it is")
            self.chats[name] = str(params["body"])
        elif operation == "create" and rows[0]["created"]:
            for rid, run_id in zip(cast("list[UUID]", params["run_rid"]), cast("list[str]", params["run_id"]), strict=True):
                self.names[rid], self.rids[run_id] = run_id, rid
        elif operation == "add_note" and rows and params["kind"] == "retry":
            for call_id in json.loads(str(params["body"])).get("tool_call_ids", ()):
                self._allowed[rows[0]["rid"], call_id] += 1

    def may_ask(self, request: ModelRequest, model: str) -> None:
        """A request leaves: its start was saved, for this model, and every provider takes it."""
        admitted = self._admitted.get(request.request_id)
        if admitted is None:
            self.complain(f"request {request.request_id} leaves and its start was not saved")
        elif admitted != model:
            self.complain(f"request {request.request_id} leaves to {model} and was admitted for {admitted}")
        for problem in conversation_problems(request.messages, is_request=True):
            self.complain(f"request {request.request_id}: {problem}")

    def may_begin(self, context: ToolContext) -> None:
        """An effect begins: the start of this attempt was saved, and began nothing before."""
        call = (self.rids[context.run_id], context.model_step, context.tool_call_id)
        if context.attempt > self._attempts[call]:
            self.complain(f"attempt {context.attempt} of {context.idempotency_key} begins and was not saved")
        if (call, context.attempt) in self._begun:
            self.complain(f"attempt {context.attempt} of {context.idempotency_key} begins twice")
        self._begun.add((call, context.attempt))

    def allowed(self, run_id: str, call_id: str) -> int:
        """Repeats of the call that somebody allowed."""
        return self._allowed[self.rids[run_id], call_id]

    def _delegated(self, params: Mapping[str, Any]) -> None:
        """Each child and each task is created once, and every child is waited for by the commit that creates it."""
        children = cast("list[str]", params.get("child_run_id", []))
        tasks = cast("list[str]", params.get("spawn_run_id", []))
        rids = [*cast("list[UUID]", params.get("child_rid", [])), *cast("list[UUID]", params.get("spawn_rid", []))]
        for rid, run_id in zip(rids, (*children, *tasks), strict=True):
            if run_id in self.rids:
                self.complain(f"{run_id} is created twice")
            self.names[rid], self.rids[run_id] = run_id, rid
        waited_for = sum(kind == "child_run" for kind in cast("list[str]", params.get("item_kind", [])))
        if children and waited_for != len(children):
            self.complain(f"{len(children)} runs are delegated, and {waited_for} are waited for")

    def _committed(self, params: Mapping[str, Any], revision: int) -> None:
        rid: UUID = params["rid"]
        self._delegated(params)
        name = self.names.get(rid, rid)
        known = self.revisions.get(rid, 0)
        if params["expected"] < known or revision != params["expected"] + 1:
            self.complain(f"{name} was at revision {known} and got {revision}, made from {params['expected']}")
        self.revisions[rid] = revision
        ended = self.final.pop(rid, None)
        if ended is not None and not (ended[0] == "failed" and rid in self.reopened):
            self.complain(f"{name} was {ended[0]} and became {params['status']}")
        if params["status"] == "suspended":
            self.suspended.add(str(name))
        else:
            self.suspended.discard(str(name))
        if params["status"] in FINAL:
            self.final[rid] = (params["status"], revision)
        self._handed_over(rid, name, json.loads(params["body"]))
        self._called(name, json.loads(params["body"]))
        columns = ("receipt_step", "receipt_call", "receipt_stage", "receipt_body")
        for step, call_id, stage, body in zip(*(params[column] for column in columns), strict=True):
            self._receipt((rid, step, call_id), stage, json.loads(body))

    def _handed_over(self, rid: UUID, name: object, body: Mapping[str, Any]) -> None:
        """Who drives changes by transfers alone, each from whoever drove before, no more of them than the run may have."""
        made, before = body.get("handoffs", []), self._handoffs.get(rid, [])
        self._handoffs[rid] = made
        if made[: len(before)] != before:
            self.complain(f"{name} had the transfers {before} and has {made}")
        if len(made) > body["limits"]["max_handoffs"]:
            self.complain(f"{name} was handed over {len(made)} times, and may be {body['limits']['max_handoffs']} times")
        for one, following in pairwise(made):
            if one["to"] != following["from"] or one["step"] >= following["step"]:
                self.complain(f"{name} was handed to {one['to']} in turn {one['step']}, and then {following}")

    def _called(self, name: object, body: Mapping[str, Any]) -> None:
        """The call that the record has open is one of a model that the run has not given up."""
        open_call = body.get("checkpoint", {}).get("open_call")
        if open_call is None:
            return
        model = open_call.get("model") or body["binding"]["model"]
        if made := body.get("handoffs"):
            targets = {member: about["model"] for member, about in body["binding"]["handoffs"].items()}
            drives = targets.get(made[-1]["to"], body["binding"]["model"])
            if model != drives and "models" not in body and "purpose" not in open_call:
                self.complain(f"{name} is driven by {made[-1]['to']} and calls {model} in {open_call['request_id']}")
        self._admitted[open_call["request_id"]] = model
        for each in body.get("models", {}).get("failovers", ()):
            if f"{each['failed']['provider']}:{each['failed']['model']}" == model:
                self.complain(f"{name} calls {model} in {open_call['request_id']}, which failed over in turn {each['step']}")

    def _receipt(self, call: Call, stage: str, record: Mapping[str, object]) -> None:
        before, name = self._stages.get(call), f"{self.names.get(call[0])}/{call[1]}/{call[2]}"
        self._stages[call] = stage
        if before in ENDED:
            self.complain(f"the receipt of {name} was {before} and became {stage}")
        if "idempotent" in record:
            self._idempotent[call] = record["idempotent"] is True
        if stage != "executing":
            return
        if before not in (None, "executing"):
            self.complain(f"{name} was {before} and is executed again")
        self._attempts[call] += 1
        repeats = self._attempts[call] - 1
        if repeats > self._allowed[call[0], call[2]] and not self._idempotent.get(call):
            self.complain(f"{name} is executed for the {repeats + 1}th time, and nobody allowed it")
