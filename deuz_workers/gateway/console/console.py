"""The console as a part of the gateway: which page an address is, and who may see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from deuz_workers.errors import ConfigurationError, DeuzError
from deuz_workers.gateway.authentication import Authenticate, refuse_tokens_in_query
from deuz_workers.gateway.console.answers import ANSWERS
from deuz_workers.gateway.console.form import read_form
from deuz_workers.gateway.console.look import Look, address, base
from deuz_workers.gateway.console.page import Pages, redirect
from deuz_workers.gateway.console.run_page import run_page
from deuz_workers.gateway.console.runs_page import runs_page
from deuz_workers.gateway.console.sessions import FIELD, Sessions
from deuz_workers.gateway.console.waiting_page import waiting_page
from deuz_workers.gateway.principal import Principal
from deuz_workers.gateway.problems import RequestError, problem_record
from deuz_workers.gateway.reading import cursor_of

if TYPE_CHECKING:
    from deuz_workers.gateway.application import Gateway

ROOT = "console"


class Console:
    """`host`: says who a request is from, in place of signing in with a token."""

    def __init__(self, gateway: Gateway, secret: str, host: Authenticate | None) -> None:
        self._gateway = gateway
        self._pages = Pages()
        self._sessions = Sessions(secret, gateway.app.store, gateway.app.ids, host)

    async def answer(self, request: Request, segments: tuple[str, ...]) -> Response:
        """Mistakes are pages too. `segments`: of the address, the first is `ROOT`."""
        try:
            return await self._answer(request, segments[1:])
        except DeuzError as error:
            return self.problem(request, error)

    def problem(self, request: Request, error: DeuzError) -> Response:
        """What kept it from being done, as a page."""
        record = problem_record(error)
        values = {"title": record["title"], "detail": record["detail"], "code": record["code"]}
        return self._pages.page(request, "problem.html", record["status"], **base(self._pages, request), **values)

    async def _answer(self, request: Request, segments: tuple[str, ...]) -> Response:
        refuse_tokens_in_query(request)
        match segments:
            case () | ("",):
                _only(request, "GET", "HEAD")
                return redirect(address(request, "runs"))
            case ("static", name):
                _only(request, "GET", "HEAD")
                found = self._pages.asset(request, name)
                if found is None:
                    raise _nothing()
                return found
            case ("sign-in",) if self._sessions.signs_in:
                _only(request, "GET", "HEAD", "POST")
                return await (self._sign_in(request) if request.method == "POST" else self._ask(request))
            case ("sign-out",) if self._sessions.signs_in:
                _only(request, "POST")
                return await self._sign_out(request)
            case _:
                return await self._look(request, segments)

    async def _look(self, request: Request, segments: tuple[str, ...]) -> Response:
        visitor = await self._sessions.visitor(request)
        if visitor is None:
            return self._stranger(request, segments)
        look = Look(
            self._gateway,
            self._pages,
            request,
            visitor,
            _scope(visitor.principal, request.query_params.get("scope")),
            self._sessions.form_token(visitor.subject),
            self._sessions.signs_in,
        )
        match segments:
            case ("runs",):
                _only(request, "GET", "HEAD")
                return await runs_page(look)
            case ("waiting",):
                _only(request, "GET", "HEAD")
                return await waiting_page(look)
            case ("runs", run_id):
                _only(request, "GET", "HEAD")
                return await run_page(look, run_id)
            case ("runs", run_id, "stream"):
                _only(request, "GET")
                given = request.headers.get("last-event-id") or request.query_params.get("after")
                return await self._gateway.read_stream(look.scope, run_id, cursor_of(given))
            case ("runs", run_id, verb) if verb in ANSWERS:
                _only(request, "POST")
                return await self._said(look, run_id, verb)
            case _:
                raise _nothing()

    async def _said(self, look: Look, run_id: str, verb: str) -> Response:
        """What is not taken is said above the page that asked."""
        fields = await read_form(look.request, self._gateway.app.settings.gateway_max_body_bytes)
        self._sessions.check_form(look.request, fields.get(FIELD), look.visitor.subject)
        try:
            await ANSWERS[verb](look, run_id, fields)
        except DeuzError as error:
            record = problem_record(error)
            if record["status"] not in (409, 422):
                raise
            if fields.get("back") == "waiting":
                return await waiting_page(look, status=record["status"], problem=record["detail"])
            return await run_page(look, run_id, status=record["status"], problem=record["detail"])
        if fields.get("back") == "waiting":
            return redirect(look.address("waiting", did=verb))
        return redirect(look.run(fields.get("back_run") or run_id, did=verb))

    # -- signing in --------------------------------------------------------------------------------------------------------

    def _stranger(self, request: Request, segments: tuple[str, ...]) -> Response:
        """Whoever is not known. A browser that comes from another site keeps the cookie back once, and is asked again."""
        if not self._sessions.signs_in:
            raise RequestError("sign in where you usually do, and come back", 401, code="unauthorized")
        if request.method not in ("GET", "HEAD") or segments[2:] == ("stream",):
            raise RequestError("you are not signed in any more; sign in, and do it again", 401, code="unauthorized")
        if request.headers.get("sec-fetch-site") == "cross-site":
            return self._pages.page(request, "again.html", **base(self._pages, request))
        query = f"?{request.url.query}" if request.url.query else ""
        return redirect(address(request, "sign-in", next=address(request, *segments) + query))

    async def _ask(self, request: Request, status: int = 200, problem: str | None = None) -> Response:
        visit = self._sessions.visit(request)
        page = self._pages.page(
            request,
            "sign_in.html",
            status,
            **base(self._pages, request),
            next=_local(request, request.query_params.get("next")),
            form_token=self._sessions.form_token(f"visit:{visit}"),
            problem=problem,
        )
        self._sessions.keep_visit(request, page, visit)
        return page

    async def _sign_in(self, request: Request) -> Response:
        fields = await read_form(request, self._gateway.app.settings.gateway_max_body_bytes)
        self._sessions.check_form(request, fields.get(FIELD), f"visit:{self._sessions.visit(request)}")
        answer = redirect(_local(request, fields.get("next")))
        if await self._sessions.open(request, fields.get("token", "").strip(), answer):
            return answer
        self._gateway.metrics.refused.inc()
        return await self._ask(request, 403, "That token is not good: it is misspelled, was revoked, or has expired.")

    async def _sign_out(self, request: Request) -> Response:
        answer = redirect(address(request, "sign-in"))
        fields = await read_form(request, self._gateway.app.settings.gateway_max_body_bytes)
        visitor = await self._sessions.visitor(request)
        if visitor is not None:
            self._sessions.check_form(request, fields.get(FIELD), visitor.subject)
        self._sessions.close(request, answer)
        return answer


def _scope(principal: Principal, asked: str | None) -> str:
    """The one that is asked for, or the first that they may touch. Raises `ForbiddenError`."""
    try:
        return principal.scope(asked or None)
    except ConfigurationError:
        if asked or not principal.tenants:
            raise
        return min(principal.tenants)


def _local(request: Request, given: str | None) -> str:
    """An address of the console; anything else is its first page. Browsers read a backslash as a slash."""
    home = address(request)
    is_ours = given is not None and (given == home or given.startswith((f"{home}/", f"{home}?")))
    if given is None or not is_ours or not given.isascii() or not given.isprintable() or "\\" in given:
        return address(request, "runs")
    return given


def _only(request: Request, *methods: str) -> None:
    if request.method not in methods:
        allowed = ", ".join(methods)
        raise RequestError(f"only {allowed} is served here", 405, code="method_not_allowed", headers={"allow": allowed})


def _nothing() -> RequestError:
    return RequestError("There is no such page.", 404, code="not_found")
