"""The gateway as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
from importlib.metadata import version
from typing import Any, TypeVar
from urllib.parse import quote, unquote_to_bytes

from pydantic import BaseModel, ValidationError
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from deuz_workers.app.access_tokens import AccessTokens
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.names import is_keepable
from deuz_workers.core.failure import place_of
from deuz_workers.core.stream_ticket import StreamTicket, TicketSigner
from deuz_workers.errors import DeuzError
from deuz_workers.gateway import brakes, budgets, runs, service, swarms, webhooks
from deuz_workers.gateway.authentication import Authenticate, bearer_tokens, refuse_tokens_in_query, unauthorized
from deuz_workers.gateway.bodies import Parameters, Query
from deuz_workers.gateway.bridge import IDLE_S
from deuz_workers.gateway.console.console import ROOT, Console
from deuz_workers.gateway.console.look import address
from deuz_workers.gateway.console.page import redirect
from deuz_workers.gateway.metrics import Metrics
from deuz_workers.gateway.openapi import openapi
from deuz_workers.gateway.operation import Call, Operation
from deuz_workers.gateway.principal import ALL, Principal
from deuz_workers.gateway.problems import RequestError, problem
from deuz_workers.gateway.reading import read_journal, read_recorder
from deuz_workers.gateway.responses import JsonResponse
from deuz_workers.gateway.sse import SseResponse
from deuz_workers.gateway.streams import Streams

OPERATIONS: tuple[Operation, ...] = (
    *runs.OPERATIONS,
    *swarms.OPERATIONS,
    *webhooks.OPERATIONS,
    *budgets.OPERATIONS,
    *brakes.OPERATIONS,
    *service.OPERATIONS,
)
NOBODY = Principal("", (ALL,))
M = TypeVar("M", bound=BaseModel)

log = logging.getLogger(__name__)


class Gateway:
    """Serves one application on one event loop. See `gateway`."""

    def __init__(self, app: Deuz, authenticate: Authenticate | None, idle_s: float) -> None:
        self.app = app
        self.access = app.access
        self.idle_s = idle_s
        self.streams = Streams(app.access)
        self.metrics = Metrics(lambda: self.streams.recorders)
        self.closing = asyncio.Event()
        given = app.settings.gateway_secret
        # Without one, tickets and sessions are good in this process alone, which is all there is unless several are served.
        secret = given.get_secret_value() if given else app.ids.token() + app.ids.token()
        self.tickets = TicketSigner(secret)
        self._authenticate = authenticate or bearer_tokens(AccessTokens(app.store, app.ids))
        self.document = openapi(OPERATIONS, version("deuz_workers"))
        self._console = Console(self, secret, authenticate) if app.settings.gateway_console else None

    def address(self, *segments: str) -> str:
        """Of something below the gateway; a slash within a segment is no separator."""
        return "/" + "/".join(quote(segment, safe="") for segment in segments)

    async def read_stream(self, scope: str, run_id: str, after: int) -> Response:
        """What the run shows behind frame `after`, to the end of the leg that is under way. Raises `RunNotFoundError`."""
        head = await self.access.head(scope, run_id)
        if head.kind == "swarm":
            raise RequestError("a swarm has no stream; read those of its tasks", 409, code="no_stream")
        if await self.streams.is_recorded(head):
            return SseResponse(read_journal(self.streams.journal(head), after))
        recorder = self.streams.recorder(head)
        self.metrics.streams.inc()

        async def gone() -> None:
            self.metrics.streams.dec()

        return SseResponse(read_recorder(recorder, after, self.idle_s), on_end=gone)

    async def let_go(self) -> None:
        """Readers of streams and whoever waits are answered now, and nothing more is recorded here."""
        self.closing.set()
        await self.streams.close()

    async def close(self) -> None:
        """The same, and connections of the application are closed."""
        await self.let_go()
        await self.app.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:  # nothing else is spoken here
            await send({"type": "websocket.close", "code": 1003})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        began_ms = self.app.clock.monotonic_ms()
        name, console = "none", None
        try:
            segments = _segments(request)
            if self._console is not None and segments[0] == ROOT:
                name, console = ROOT, self._console
                response = await console.answer(request, segments)
            elif self._console is not None and segments == ("",) and request.method in ("GET", "HEAD"):
                name, response = ROOT, redirect(address(request))
            else:
                operation, path = _find(request, segments)
                name = operation.name
                response = await self._answer(operation, request, path)
        except DeuzError as error:
            response = problem(error)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - whoever asks is told nothing, the log the place
            log.error("gateway_failed operation=%s error=%s at=%s", name, type(error).__name__, place_of(error))
            internal = DeuzError("", code="internal")
            response = problem(internal) if console is None else console.problem(request, internal)
        self.metrics.requests.labels(name, response.status_code).inc()
        if response.status_code == 401:
            self.metrics.refused.inc()
        try:
            await response(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - the server would log its message, and what is in its frames
            log.error("gateway_broke operation=%s error=%s at=%s", name, type(error).__name__, place_of(error))
            return  # in the middle of a response: the server cuts the connection
        if not isinstance(response, SseResponse):
            self.metrics.seconds.labels(name).observe((self.app.clock.monotonic_ms() - began_ms) / 1000)

    async def _answer(self, operation: Operation, request: Request, path: dict[str, str]) -> Response:
        if operation.access == "open":
            call = Call(self, request, NOBODY, "default", path, None, None)
        else:
            refuse_tokens_in_query(request)
            principal, ticket = await self._principal(operation, request, path)
            query = _read_query(operation.query, request)
            if operation.access == "operator":
                principal.check_operator()
            body = None if operation.body is None else await self._read_body(operation, request)
            scope = ""
            if isinstance(query, Query):
                asked = ticket.scope if ticket is not None and query.scope is None else query.scope
                scope = principal.scope(asked)
            call = Call(self, request, principal, scope, path, query, body)
        answer = await operation.handler(call)
        if isinstance(answer, Response):
            return answer
        # Records hold what JSON has and nothing else; mode="json" would refuse halves of surrogate pairs in names.
        return JsonResponse(answer.model_dump(), operation.status)

    async def _principal(
        self, operation: Operation, request: Request, path: dict[str, str]
    ) -> tuple[Principal, StreamTicket | None]:
        given = request.query_params.get("ticket")
        if operation.access == "ticket" and given is not None:
            ticket = self.tickets.read(given, now_ms=await self.access.store.now_ms())
            if ticket is None or ticket.run_id != path["run_id"]:
                raise unauthorized()
            return Principal(ticket.principal, (ticket.scope,)), ticket
        principal = await self._authenticate(request)
        if principal is None:
            raise unauthorized()
        return principal, None

    async def _read_body(self, operation: Operation, request: Request) -> BaseModel:
        assert operation.body is not None
        most = self.app.settings.gateway_max_body_bytes
        raw = bytearray()
        async for chunk in request.stream():
            raw += chunk
            if len(raw) > most:
                raise RequestError(f"the body is larger than {most} bytes", 413, code="body_too_large")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not raw and not kind:  # nothing to say; what has to be said is missed below
            raw += b"{}"
        elif kind != "application/json":
            raise RequestError("the body is JSON: send Content-Type: application/json", 415, code="media_type")
        try:
            return operation.body.model_validate_json(bytes(raw))
        except ValidationError as error:
            raise RequestError(_mistakes("the body", error), 422) from None


def gateway(app: Deuz, *, authenticate: Authenticate | None = None, idle_s: float = IDLE_S) -> ASGIApp:
    """An ASGI application over `app`, to be served by uvicorn or mounted in one of yours.

    Args:
        authenticate: says who a request is from, in place of the tokens of `deuz token`; None: nobody that is known.
        idle_s: seconds without news after which a stream is closed, without its end.

    Make it where the event loop runs, or at import. Where it is mounted, whoever serves calls `await app.aclose()` at the end.
    """
    return for_browsers(Gateway(app, authenticate, idle_s))


def for_browsers(inner: Gateway) -> ASGIApp:
    """The gateway, with what browsers ask for before pages of the sites in `gateway_origins` may use it."""
    origins = list(inner.app.settings.gateway_origins)
    if not origins:
        return inner
    return CORSMiddleware(
        inner,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type", "idempotency-key", "last-event-id", "x-deuz-stream"],
        expose_headers=["location", "retry-after", "x-deuz-stream"],
    )


def _find(request: Request, segments: tuple[str, ...]) -> tuple[Operation, dict[str, str]]:
    methods: list[str] = []
    for operation in OPERATIONS:
        path = operation.match(segments)
        if path is None:
            continue
        if request.method in operation.methods:
            return operation, path
        methods.extend(operation.methods)
    if methods:
        allowed = ", ".join(sorted(set(methods)))
        raise RequestError(f"only {allowed} is served here", 405, code="method_not_allowed", headers={"allow": allowed})
    raise RequestError("nothing is served here; /openapi.json lists what is", 404, code="not_found")


def _segments(request: Request) -> tuple[str, ...]:
    """Of the address below the gateway, each decoded by itself: `%2F` is part of a name."""
    raw: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    raw = raw.partition(b"?")[0].removeprefix(quote(request.scope.get("root_path", "")).encode())
    try:
        segments = tuple(unquote_to_bytes(segment).decode() for segment in raw.strip(b"/").split(b"/"))
    except UnicodeDecodeError:
        raise RequestError("the address is no UTF-8", 404, code="not_found") from None
    if not all(map(is_keepable, segments)):  # databases refuse to look for it
        raise RequestError("the address holds a NUL, and no name does", 404, code="not_found")
    return segments


def _read_query(model: type[Parameters], request: Request) -> Any:
    given: dict[str, Any] = {}
    for name in request.query_params:
        values = request.query_params.getlist(name)
        field = model.model_fields.get(name)
        is_list = field is not None and "list[" in str(field.annotation)
        if not is_list and len(values) > 1:
            raise RequestError(f"{name!r} is given {len(values)} times; give it once", 422)
        given[name] = values if is_list else values[0]
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise RequestError(_mistakes("the query", error), 422) from None


def _mistakes(what: str, error: ValidationError) -> str:
    """Where, and what is meant there; never what was given."""
    found = [
        f"{'.'.join(map(str, one['loc'])) or what}: {one['msg']}"
        for one in error.errors(include_input=False, include_url=False)
    ]
    return f"{what} is not as it should be: {'; '.join(found[:5])}"
