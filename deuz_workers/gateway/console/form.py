"""Posted forms of pages, read within limits."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.requests import Request

from deuz_workers.app.names import is_keepable
from deuz_workers.gateway.problems import RequestError

MOST_FIELDS = 20
KIND = "application/x-www-form-urlencoded"


async def read_form(request: Request, most_bytes: int) -> Mapping[str, str]:
    """The fields by name, the last of each. Line ends are those of this system.

    Raises `RequestError` for what no form of ours sends.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != KIND:
        raise RequestError("pages send forms; programs use the operations of /openapi.json", 415, code="media_type")
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > most_bytes:
            raise RequestError(f"the form is larger than {most_bytes} bytes", 413, code="body_too_large")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except (UnicodeError, ValueError):
        raise RequestError("the form cannot be read", 422) from None
    fields = {name: value.replace("\r\n", "\n") for name, value in pairs}
    if not all(map(is_keepable, (*fields, *fields.values()))):
        raise RequestError("the form holds a NUL, which no database keeps; take it out", 422)
    return fields
