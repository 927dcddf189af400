"""Pages: templates with every value escaped, and headers that let a browser do no more than the page needs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from deuz_workers.gateway.console import spelling

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
ASSETS: Mapping[str, str] = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


def _read(name: str) -> bytes:
    return files("deuz_workers.gateway.console").joinpath("static", name).read_bytes()


class Pages:
    """Renders them, and serves what they load."""

    def __init__(self) -> None:
        self._assets = {name: _read(name) for name in ASSETS}
        self._tags = {name: hashlib.sha256(body).hexdigest()[:16] for name, body in self._assets.items()}
        self._templates = Environment(
            loader=PackageLoader("deuz_workers.gateway.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters: dict[str, Any] = {
            name: getattr(spelling, name)
            for name in ("visible", "clipped", "pretty", "duration", "money", "number", "counted", "moment", "iso")
        }
        self._templates.filters.update(filters)

    def asset_address(self, name: str) -> str:
        """Below the console; another one for another content, so that browsers may keep it."""
        return f"static/{name}?v={self._tags[name]}"

    def page(self, request: Request, template: str, status: int = 200, *, says: str | None = None, **values: Any) -> Response:
        """A page. One that a reader has already is not sent again.

        `says`: names all that the page is made from, so that `known` can tell whether it has changed; None: its own text does.
        """
        body = self._templates.get_template(template).render(**values).encode("utf-8", "replace")
        tag = _tag(body if says is None else says.encode("utf-8", "replace"))
        if status == 200 and request.headers.get("if-none-match") == tag:
            return _unchanged(tag)
        return Response(body, status, {**HEADERS, "cache-control": "no-store", "etag": tag}, "text/html; charset=utf-8")

    def known(self, request: Request, says: str) -> Response | None:
        """The answer to a reader who has the page that says this; None: they have not."""
        tag = _tag(says.encode("utf-8", "replace"))
        return _unchanged(tag) if request.headers.get("if-none-match") == tag else None

    def asset(self, request: Request, name: str) -> Response | None:
        """What a page loads; None: there is nothing of that name."""
        body = self._assets.get(name)
        if body is None:
            return None
        is_current = request.query_params.get("v") == self._tags[name]
        kept = "public, max-age=31536000, immutable" if is_current else "no-cache"
        return Response(body, 200, {**HEADERS, "cache-control": kept}, ASSETS[name])


def _tag(of: bytes) -> str:
    return f'"{hashlib.sha256(of).hexdigest()[:32]}"'


def _unchanged(tag: str) -> Response:
    return Response(status_code=304, headers={**HEADERS, "cache-control": "no-store", "etag": tag})


def redirect(address: str) -> Response:
    """To be fetched with GET."""
    return Response(status_code=303, headers={**HEADERS, "cache-control": "no-store", "location": address})
