"""The page of what waits: for whoever looks, for others, and for a word about effects that nobody knows."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from deuz_workers.app.pending import pending_approvals, pending_client_calls
from deuz_workers.core.change import Head, ItemRow
from deuz_workers.gateway.console.asked import asked_of
from deuz_workers.gateway.console.look import Look
from deuz_workers.ports.store import RunQuery

MOST_RUNS = 50
"""Suspended runs that are looked into for one page; further ones are on the next."""
MOST_CHARS = 200_000
"""Of what calls are asked with, on one page, as it is stored. What is more is a link to its run: the page is made anew for
each look, by a process that answers others meanwhile."""
POLL_MS = 3_000


async def waiting_page(look: Look, *, status: int = 200, problem: str | None = None) -> Response:
    access = look.gateway.access
    query = RunQuery(scope=look.scope, status=("suspended",), limit=MOST_RUNS, cursor=look.request.query_params.get("cursor"))
    page = await look.gateway.app.aio.list_runs(query)
    now_ms, signing = await access.store.now_ms(), await access.signing()

    async def items(head: Head) -> tuple[ItemRow, ...]:
        return await access.store.open_items(head.scope, head.run_id) if head.open_items else ()

    rows = await asyncio.gather(*map(items, page.heads))
    whole, left = set[tuple[str, str]](), MOST_CHARS
    for head, found in zip(page.heads, rows, strict=True):
        for row in found:
            if len(row.body) <= left:
                whole.add((head.run_id, row.item_id))
                left -= len(row.body)
    asked = [
        (head, asked_of(item, look.principal.name, now_ms))
        for head, found in zip(page.heads, rows, strict=True)
        for item in (*pending_approvals(found, signing, head.scope), *pending_client_calls(found, head.scope))
    ]
    return look.page(
        "waiting.html",
        status,
        problem=problem,
        did=look.request.query_params.get("did"),
        mine=[(head, item, (head.run_id, item.item_id) in whole) for head, item in asked if item.is_mine],
        others=[pair for pair in asked if not pair[1].is_mine],
        parked=[head for head in page.heads if head.parked is not None],
        next=None if page.cursor is None else look.address("waiting", cursor=page.cursor),
        poll_ms=POLL_MS,
    )
