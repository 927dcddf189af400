"""The page of runs: filters, and a page of what they let through."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import ValidationError
from starlette.responses import Response

from deuz_workers.core.change import RunStatus
from deuz_workers.errors import ConfigurationError
from deuz_workers.gateway.bodies import ListQuery
from deuz_workers.gateway.console.look import Look
from deuz_workers.ports.store import RunQuery

PAGE = 50
POLL_MS = 3_000
FILTERS = ("status", "kind", "agent", "tag")


async def runs_page(look: Look) -> Response:
    """Newest change of status first. What is no filter is said, and nothing is filtered by it."""
    given = {name: value for name in (*FILTERS, "cursor") if (value := look.request.query_params.get(name, "").strip())}
    problem, query = None, ListQuery.model_validate({})
    try:
        query = ListQuery.model_validate(
            {name: [value] if name in ("status", "kind", "tag") else value for name, value in given.items()}
        )
    except ValidationError as error:
        wrong = ", ".join(sorted({str(one["loc"][0]) for one in error.errors(include_input=False, include_url=False)}))
        problem = f"No such filter: {wrong}. A tag is written name=value."
    try:
        tags = dict(tag.split("=", 1) for tag in query.tag)
        wanted = RunQuery(
            scope=look.scope,
            status=tuple(query.status),
            kind=tuple(query.kind) or ("agent", "swarm"),
            agent=query.agent,
            tags=tags,
            limit=PAGE,
            cursor=query.cursor,
        )
        page = await look.gateway.app.aio.list_runs(wanted)
    except ConfigurationError as error:
        return look.page("runs.html", 422, **_values(look, given), heads=(), next=None, problem=error.message)
    further = None if page.cursor is None else look.address("runs", **{**given, "cursor": page.cursor})
    return look.page(
        "runs.html", 200 if problem is None else 422, **_values(look, given), heads=page.heads, next=further, problem=problem
    )


def _values(look: Look, given: dict[str, str]) -> dict[str, Any]:
    return {
        "given": {name: given.get(name, "") for name in FILTERS},
        "is_filtered": any(name in given for name in FILTERS),
        "first": look.address("runs", **{name: value for name, value in given.items() if name != "cursor"}),
        "is_first": "cursor" not in given,
        "statuses": get_args(RunStatus),
        "poll_ms": POLL_MS,
    }
