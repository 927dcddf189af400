"""What the gateway does with runs."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel
from starlette.responses import Response

from deuz_workers.app.answers import Answers, hand_in_and_ring
from deuz_workers.app.async_handle import AsyncHandle
from deuz_workers.app.below import reports
from deuz_workers.app.door import Answer
from deuz_workers.core.change import Head
from deuz_workers.core.stream_ticket import TTL_MS, StreamTicket
from deuz_workers.errors import ConfigurationError, RunExistsError
from deuz_workers.gateway import bodies
from deuz_workers.gateway.operation import Call, Operation
from deuz_workers.gateway.problems import RequestError
from deuz_workers.gateway.reading import cursor_of
from deuz_workers.gateway.records import (
    Accepted,
    Answered,
    EventsPage,
    Pruned,
    Resumed,
    RunDetail,
    RunRecord,
    RunsPage,
    Started,
    Ticket,
    event_record,
    run_detail,
    run_fields,
)
from deuz_workers.gateway.responses import JsonResponse
from deuz_workers.ports.store import RunQuery


async def start(call: Call) -> Response:
    """The run has an id of the gateway's making; a client's own name for it is the idempotency key."""
    body: bodies.StartRun = call.body
    if body.stream and body.start_in_ms is None:
        handle = await _start_recorded(call, body)
    else:
        handle = await _enqueue(call, body, None)
    started = Started(run_id=handle.run_id, scope=handle.scope)
    return JsonResponse(started.model_dump(), 202, {"location": call.gateway.address("v1", "runs", handle.run_id)})


async def _start_recorded(call: Call, body: bodies.StartRun) -> AsyncHandle:
    """Listened to before it exists, so that nothing of it is missed."""
    streams, run_id = call.gateway.streams, str(call.gateway.app.ids.rid())
    early = await streams.early(call.scope, run_id)
    try:
        handle = await _enqueue(call, body, run_id)
        head = await call.gateway.access.head(call.scope, run_id)
    except RunExistsError:  # its key is another run's, which is what was asked for, or is not
        await early.close()
        return await _enqueue(call, body, None)
    except BaseException:
        await early.close()
        raise
    await streams.follow(head, early, 0)
    return handle


async def _enqueue(call: Call, body: bodies.StartRun, run_id: str | None) -> AsyncHandle:
    return await call.gateway.app.aio.enqueue(
        body.agent,
        body.prompt,
        messages=None if body.messages is None else [message.model_dump() for message in body.messages],
        run_id=run_id,
        idempotency_key=idempotency_key(call),
        scope=call.scope,
        start_at=bodies.in_ms(body.start_in_ms),
        start_before=bodies.in_ms(body.start_before_in_ms),
        concurrency_key=body.concurrency_key,
        **body.options,
    )


async def list_runs(call: Call) -> BaseModel:
    query: bodies.ListQuery = call.query
    page = await call.gateway.app.aio.list_runs(
        RunQuery(
            scope=call.scope,
            status=tuple(query.status),
            kind=tuple(query.kind) or ("agent", "swarm"),
            agent=query.agent,
            queue=query.queue,
            tags=dict(tag.split("=", 1) for tag in query.tag),
            limit=query.limit,
            cursor=query.cursor,
        )
    )
    return RunsPage(runs=[RunRecord(**run_fields(head)) for head in page.heads], cursor=page.cursor)


async def show(call: Call) -> BaseModel:
    query: bodies.ShowQuery = call.query
    access = call.gateway.access
    head = await access.head(call.scope, call.run_id)
    if query.wait_ms and head.kind != "swarm" and not await reports(access.store, head):
        await _report(call, query.wait_ms)
    return await detail(call)


async def events(call: Call) -> BaseModel:
    """The journal: what happened, without what was said."""
    query: bodies.EventsQuery = call.query
    await call.gateway.access.head(call.scope, call.run_id)
    found = call.gateway.app.aio.handle(call.run_id, call.scope).events(query.after, follow=False)
    page: list[object] = []
    async for event in found:
        page.append(event_record(event))
        if len(page) == query.limit:
            break
    return EventsPage.model_validate({"events": page})


async def resume(call: Call) -> BaseModel:
    body: bodies.Resume = call.body
    if body.run_id is not None and body.run_id != call.run_id:
        raise RequestError(
            f"the request is for run {call.run_id!r}, and its body for run {body.run_id!r}", 422, code="run_differs"
        )
    verdicts = [{**given.model_dump(exclude_none=True), "by": call.principal.name} for given in body.approvals]
    answers = Answers(
        verdicts,
        [given.model_dump() for given in body.client_tool_results],
        tuple(body.retry_tool_call_ids),
        [given.model_dump() for given in body.reconciled_tool_results],
    )
    gateway = call.gateway
    head = await gateway.access.head(call.scope, call.run_id)
    early = await gateway.streams.early(call.scope, call.run_id) if body.stream and head.kind != "swarm" else None
    try:
        since, warnings = await hand_in_and_ring(gateway.access, call.scope, call.run_id, answers)
    except BaseException:
        if early is not None:
            await early.close()
        raise
    if early is not None and since is not None:
        await gateway.streams.follow(head, early, since)
    elif early is not None:
        await early.close()
    return Resumed(resumed=since is not None, warnings=[one.message for one in warnings], run=await detail(call))


async def approve(call: Call) -> BaseModel:
    """Stored at once, under the name of whoever asks."""
    body: bodies.Approve = call.body
    handle, by = call.gateway.app.aio.handle(call.run_id, call.scope), call.principal.name
    return _answered(await handle.approve(body.approval_id, body.reason, by=by, token=body.token, arguments=body.arguments))


async def deny(call: Call) -> BaseModel:
    body: bodies.Deny = call.body
    handle = call.gateway.app.aio.handle(call.run_id, call.scope)
    return _answered(await handle.deny(body.approval_id, body.reason, by=call.principal.name))


async def answer(call: Call) -> BaseModel:
    body: bodies.AnswerCall = call.body
    handle = call.gateway.app.aio.handle(call.run_id, call.scope)
    return _answered(await handle.answer(body.item_id, body.output, error=body.error, by=call.principal.name))


async def cancel(call: Call) -> BaseModel:
    body: bodies.Cancel = call.body
    handle = call.gateway.app.aio.handle(call.run_id, call.scope)
    return Accepted(accepted=await handle.cancel(body.reason))


async def prune(call: Call) -> BaseModel:
    body: bodies.Prune = call.body
    age = bodies.in_ms(body.older_than_ms)
    assert age is not None
    return Pruned(pruned=await call.gateway.app.aio.prune(age, status=body.status, scope=call.scope))


async def make_ticket(call: Call) -> Response:
    """For one reader of one run, for a minute."""
    head = await call.gateway.access.head(call.scope, call.run_id)
    expires_at_ms = await call.gateway.access.store.now_ms() + TTL_MS
    ticket = StreamTicket(head.scope, head.run_id, call.principal.name, expires_at_ms)
    made = Ticket(ticket=call.gateway.tickets.sign(ticket), expires_at_ms=expires_at_ms)
    return JsonResponse(made.model_dump(), 201, {"cache-control": "no-store"})


async def stream(call: Call) -> Response:
    """From the beginning, or behind `Last-Event-ID`, to the end of the leg that is under way."""
    wanted = call.request.headers.get("x-deuz-stream", "v2")
    if wanted != "v2":
        raise RequestError(f"the wire is v2, not {wanted[:20]!r}; leave x-deuz-stream out", 406, code="wire_version")
    after = cursor_of(call.request.headers.get("last-event-id"))
    return await call.gateway.read_stream(call.scope, call.run_id, after)


async def detail(call: Call) -> RunDetail:
    """Of one moment: head and report come from one read."""
    reported = await call.gateway.access.reported(call.scope, call.run_id)
    head, result = reported
    return run_detail(head, result)


def idempotency_key(call: Call) -> str | None:
    given = call.request.headers.get("idempotency-key")
    if given is None:
        return None
    if not given or len(given) > 512 or not given.isprintable():
        raise ConfigurationError("an Idempotency-Key has 1 to 512 printable characters", code="idempotency_key")
    return given


async def _report(call: Call, wait_ms: int) -> Head | None:
    """The run has something to report, or so long has passed; a server that ends waits no longer."""
    handle = call.gateway.app.aio.handle(call.run_id, call.scope)
    waits = asyncio.create_task(handle.wait_for_report(), name="deuz-gateway-wait")
    ends = asyncio.create_task(call.gateway.closing.wait(), name="deuz-gateway-ends")
    try:
        await asyncio.wait((waits, ends), timeout=wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        if waits.done():
            waits.result()
    finally:
        waits.cancel()
        ends.cancel()
        await asyncio.wait((waits, ends))


def _answered(given: Answer) -> Answered:
    return Answered(item_id=given.item_id, open_items=given.open_items, still_needed=given.still_needed)


_RUN = "/v1/runs/{run_id}"

OPERATIONS = (
    Operation("POST", "/v1/runs", "start_run", "Start a run", start, Started, 202, bodies.StartRun, is_idempotent=True),
    Operation("GET", "/v1/runs", "list_runs", "Runs, newest change first", list_runs, RunsPage, query=bodies.ListQuery),
    Operation("GET", _RUN, "show_run", "How a run stands", show, RunDetail, query=bodies.ShowQuery),
    Operation("GET", f"{_RUN}/events", "run_events", "Its journal", events, EventsPage, query=bodies.EventsQuery),
    Operation(
        "GET",
        f"{_RUN}/stream",
        "stream_run",
        "The run as server-sent events",
        stream,
        query=bodies.StreamQuery,
        access="ticket",
        media="text/event-stream",
    ),
    Operation("POST", f"{_RUN}/tickets", "make_ticket", "A ticket for its stream", make_ticket, Ticket, 201),
    Operation("POST", f"{_RUN}/resume", "resume_run", "Answer all that it waits for", resume, Resumed, body=bodies.Resume),
    Operation("POST", f"{_RUN}/approve", "approve", "Let one call run", approve, Answered, body=bodies.Approve),
    Operation("POST", f"{_RUN}/deny", "deny", "Refuse one call", deny, Answered, body=bodies.Deny),
    Operation("POST", f"{_RUN}/answer", "answer", "The result of one client's call", answer, Answered, body=bodies.AnswerCall),
    Operation("POST", f"{_RUN}/cancel", "cancel_run", "Ask for its end", cancel, Accepted, 202, bodies.Cancel),
    Operation("POST", "/v1/prune", "prune", "Delete runs that ended long ago", prune, Pruned, body=bodies.Prune),
)
