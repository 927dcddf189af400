"""The page of one run: how it stands, what it asks, what it did, whom it delegated to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from deuz_workers.app.access import not_found
from deuz_workers.app.below import reports
from deuz_workers.app.report import report_of
from deuz_workers.app.ui_parts import error_record, jsonable
from deuz_workers.app.ui_target import turn_texts
from deuz_workers.core.change import FINAL, Head
from deuz_workers.core.receipts import fold_receipts
from deuz_workers.core.redaction import redact, redact_all
from deuz_workers.core.run import read_run
from deuz_workers.gateway.console.asked import asked_of
from deuz_workers.gateway.console.look import Look
from deuz_workers.gateway.console.swarm_page import swarm_page
from deuz_workers.gateway.console.timeline import timeline

MOST_CHILDREN = 200
POLL_MS = 2_000
"""How often a page that is looked at asks for what no stream tells, as answers of others."""


async def run_page(look: Look, run_id: str, *, status: int = 200, problem: str | None = None) -> Response:
    """Raises `RunNotFoundError`, in the same words for a run of another scope."""
    access = look.gateway.access
    head = await access.head(look.scope, run_id)
    if head.kind == "swarm":
        return await swarm_page(look, head, status=status, problem=problem)
    says = _says(look, head)
    if status == 200 and says is not None and (known := look.pages.known(look.request, says)) is not None:
        return known
    store = access.store
    loaded = await store.load(look.scope, run_id)
    if loaded is None:
        raise not_found(look.scope, run_id)
    head = loaded.head
    run = read_run(head, loaded.messages, loaded.receipts)
    report = await report_of(store, loaded, run, await access.signing() if head.status not in FINAL else None)
    replied = [step for event in report.events if event.type == "model.replied" and isinstance(step := event.data["step"], int)]
    items = [
        asked_of(one, look.principal.name, report.now_ms) for one in (*report.pending_approvals, *report.pending_client_calls)
    ]
    envelope = run.envelope
    return look.page(
        "run.html",
        status,
        says=_says(look, head),
        problem=problem,
        did=look.request.query_params.get("did"),
        head=head,
        state=head.listed_status,
        reason=envelope.reason,
        because=_because(envelope.stop_details),
        error=None if envelope.error is None else error_record(envelope.error),
        output=_output(jsonable(envelope.output)) if envelope.has_output else None,
        usage=sorted(envelope.usage_by_model.items()),
        tags=sorted((await store.tags(look.scope, run_id)).items()),
        above=_above(head),
        turns=timeline(report.events, fold_receipts(loaded.receipts), turn_texts(run.transcript, replied)),
        earlier=report.earlier_events,
        journal=[(event, redact_all(jsonable(dict(event.data)))) for event in reversed(report.events)],
        items=items,
        to_do=[one for one in report.to_do if head.parked is not None],
        children=await store.children(head.rid, MOST_CHILDREN),
        is_over=head.status in FINAL,
        goes_on=not await reports(store, head),
        poll_ms=POLL_MS,
    )


def _says(look: Look, head: Head) -> str | None:
    """What the page is made from, where the head alone tells that: a run that works or has ended. A history of a thousand turns
    is not read every two seconds while somebody watches the next one being written.

    None: others may change what is shown, as they answer or work for it.
    """
    if head.status == "suspended" or head.parked is not None:
        return None
    seen = (head.rid, head.revision, head.status, head.wake_seq, look.form_token, str(look.request.url))
    return "\n".join(map(str, seen))


def _because(details: Mapping[str, object] | None) -> str | None:
    """What whoever cancelled it said."""
    said = (details or {}).get("cancel_reason")
    return redact(said) if isinstance(said, str) else None


def _output(value: object) -> Mapping[str, Any]:
    return {"is_text": isinstance(value, str), "value": value}


def _above(head: Head) -> str | None:
    """The run that this one belongs to, as its id says: the swarm of a task, or whoever delegated it."""
    if head.swarm_rid is None and head.parent_rid is None:
        return None
    above, _, last = head.run_id.rpartition("/")
    return above if above and not last.startswith("~") else head.run_id.partition("/")[0]
