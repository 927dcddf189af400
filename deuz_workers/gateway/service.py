"""What the gateway says about itself; none of it needs credentials."""

from __future__ import annotations

from pydantic import BaseModel
from starlette.responses import Response

from deuz_workers.gateway.metrics import CONTENT_TYPE
from deuz_workers.gateway.operation import Call, Operation
from deuz_workers.gateway.records import Health
from deuz_workers.gateway.responses import JsonResponse


async def health(call: Call) -> BaseModel:
    """The process serves; nothing else was asked."""
    return Health()


async def ready(call: Call) -> BaseModel:
    """The store answers and its schema is this version's. 503 with the reason's code where not."""
    await call.gateway.access.store.check_schema()
    return Health()


async def metrics(call: Call) -> Response:
    return Response(call.gateway.metrics.text(), media_type=CONTENT_TYPE)


async def document(call: Call) -> Response:
    return JsonResponse(call.gateway.document)


OPERATIONS = (
    Operation("GET", "/healthz", "health", "The process serves", health, Health, access="open"),
    Operation("GET", "/readyz", "ready", "The store can be used", ready, Health, access="open"),
    Operation("GET", "/metrics", "metrics", "Counters for Prometheus", metrics, access="open", media="text/plain"),
    Operation("GET", "/openapi.json", "openapi", "This document", document, access="open"),
)
