"""Requests of ASGI and WSGI servers, checked once: the body is read here, and whoever checks again is told so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from deuz_workers.core.webhook_check import Checked, UnsignedRequest, Verifier

USED = "deuz.body_used"
MOST_BYTES = 5_000_000


async def verify_asgi(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
    verifier: Verifier,
    *,
    most_bytes: int = MOST_BYTES,
) -> Checked:
    """The body of the request is consumed. Raises `ValueError` for one that is longer, whoever signed it."""
    if scope.get(USED):
        return UnsignedRequest("body-used")
    scope[USED] = True
    body, goes_on = bytearray(), True
    while goes_on:
        message = await receive()
        if message["type"] != "http.request":
            break  # the sender is gone; what there is of the body fits no signature
        body += message.get("body", b"")
        if len(body) > most_bytes:
            raise ValueError(f"the body has more than {most_bytes} bytes")
        goes_on = message.get("more_body", False)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return verifier(headers, bytes(body))


def verify_wsgi(environ: MutableMapping[str, Any], verifier: Verifier, *, most_bytes: int = MOST_BYTES) -> Checked:
    """The same of a WSGI request. Raises `ValueError` also for a length that is none: some servers pass on what comes."""
    if environ.get(USED):
        return UnsignedRequest("body-used")
    environ[USED] = True
    size = int(environ.get("CONTENT_LENGTH") or 0)
    if size < 0:
        raise ValueError("the request does not say how long its body is")
    if size > most_bytes:
        raise ValueError(f"the body has more than {most_bytes} bytes")
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): str(value)
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    return verifier(headers, environ["wsgi.input"].read(size))
