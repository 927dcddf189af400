"""One thing that the gateway does: where, for whom, with what, and what comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from deuz_workers.gateway.bodies import Body, Parameters, Query
from deuz_workers.gateway.principal import Principal

if TYPE_CHECKING:
    from deuz_workers.gateway.application import Gateway


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose sender is known, with its parts read and checked."""

    gateway: Gateway
    request: Request
    principal: Principal
    scope: str
    """The one that the request is about; its sender may touch it."""
    path: dict[str, str]
    query: Any
    body: Any

    @property
    def run_id(self) -> str:
        return self.path["run_id"]


Handler = Callable[[Call], Awaitable[Response | BaseModel]]
Access = Literal["open", "token", "ticket", "operator"]


@dataclass(frozen=True, slots=True)
class Operation:
    """`answer`: what a good response holds, with `status`; `access`: `ticket` takes a ticket or a token,
    `operator` a token with the scope of operators; such a request is about no tenant, and its `Call.scope` is empty."""

    method: str
    path: str
    """With names of parameters in braces, each a whole segment."""
    name: str
    summary: str
    handler: Handler
    answer: type[BaseModel] | None = None
    status: int = 200
    body: type[Body] | None = None
    query: type[Parameters] = Query
    access: Access = "token"
    is_idempotent: bool = False
    """Takes an `Idempotency-Key`."""
    media: str = "application/json"
    segments: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", tuple(self.path.strip("/").split("/")))

    @property
    def methods(self) -> tuple[str, ...]:
        """`HEAD` asks for what `GET` would say; of a stream it would never end."""
        return ("GET", "HEAD") if self.method == "GET" and self.access != "ticket" else (self.method,)

    def match(self, segments: tuple[str, ...]) -> dict[str, str] | None:
        """The parameters, if the operation is meant by these segments."""
        if len(segments) != len(self.segments):
            return None
        found: dict[str, str] = {}
        for mine, given in zip(self.segments, segments, strict=True):
            if mine.startswith("{"):
                found[mine[1:-1]] = given
            elif mine != given:
                return None
        return found
