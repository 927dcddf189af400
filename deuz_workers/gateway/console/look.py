"""A look at the console: who looks, at what, and how a page about it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from deuz_workers.gateway.console.sessions import Visitor
from deuz_workers.gateway.principal import ALL, Principal

if TYPE_CHECKING:
    from deuz_workers.gateway.application import Gateway
    from deuz_workers.gateway.console.page import Pages


@dataclass(frozen=True, slots=True)
class Look:
    """Of somebody who is known, at a scope that they may touch."""

    gateway: Gateway
    pages: Pages
    request: Request
    visitor: Visitor
    scope: str
    form_token: str
    signs_in: bool

    @property
    def principal(self) -> Principal:
        return self.visitor.principal

    @property
    def scopes(self) -> tuple[str, ...] | None:
        """Those to choose from; None: any that has a name."""
        return None if ALL in self.principal.tenants else tuple(sorted(self.principal.tenants))

    def address(self, *segments: str, **query: object) -> str:
        """Of a page of this scope. Values that are None or empty are left out."""
        return address(self.request, *segments, scope=self.scope, **query)

    def run(self, run_id: str, **query: object) -> str:
        return self.address("runs", run_id, **query)

    def page(self, template: str, status: int = 200, *, says: str | None = None, **values: Any) -> Response:
        return self.pages.page(
            self.request,
            template,
            status,
            says=says,
            **base(self.pages, self.request),
            look=self,
            principal=self.principal.name,
            **values,
        )


def base(pages: Pages, request: Request) -> Mapping[str, Any]:
    """What every page needs."""
    return {
        "home": address(request),
        "css": address(request) + "/" + pages.asset_address("console.css"),
        "js": address(request) + "/" + pages.asset_address("console.js"),
        "icon": address(request) + "/" + pages.asset_address("icon.svg"),
    }


def address(request: Request, *segments: str, **query: object) -> str:
    """Below the console, wherever the gateway is mounted; a slash within a segment is no separator."""
    root: str = request.scope.get("root_path", "")
    path = "/".join((f"{root}/console", *(quote(segment, safe="") for segment in segments)))
    given = [
        (name, value)
        for name, values in query.items()
        for value in (values if isinstance(values, list | tuple) else [values])
        if value not in (None, "")
    ]
    return f"{path}?{urlencode(given, errors='replace')}" if given else path
