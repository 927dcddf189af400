"""The application that a command works with, and what several commands take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from deuz_workers.errors import ConfigurationError

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz

T = TypeVar("T")

AppOption = Annotated[
    str | None,
    typer.Option("--app", envvar="DEUZ_APP", metavar="MODULE:ATTR", help="The application, such as my_agents:app."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout, and nothing else.")]
ScopeOption = Annotated[str, typer.Option("--scope", help="Tenant that the run belongs to.")]


def application(place: str | None) -> Deuz:
    """The named application; without a name one that knows no agent and only looks at what is stored."""
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.app.discovery import load_app

    return Deuz() if place is None else load_app(place)


def needed_application(place: str | None) -> Deuz:
    """The named application. Raises `ConfigurationError` when none is named."""
    if place is None:
        raise ConfigurationError("no application to run: pass --app MODULE:ATTR, such as my_agents:app, or set DEUZ_APP")
    return application(place)


def on_app(app: Deuz, work: Callable[[Deuz], Awaitable[T]]) -> T:
    """What `work` returns; connections are closed afterwards. Raises what `work` raises."""

    async def session() -> T:
        try:
            return await work(app)
        finally:
            await app.aclose()

    return asyncio.run(session())


def pairs(given: list[str], option: str) -> dict[str, str]:
    """`key=value` options as a mapping. Raises `ConfigurationError` for one without `=`."""
    found: dict[str, str] = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ConfigurationError(f"{option} takes key=value, not {item!r}")
        found[key] = value
    return found
