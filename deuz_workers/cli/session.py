"""The application that a command works with, and what several commands take."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from deuz_workers.cli.output import report_warning
from deuz_workers.cli.user_code import user_code
from deuz_workers.errors import ConfigurationError

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz

T = TypeVar("T")

log = logging.getLogger(__name__)

AppOption = Annotated[
    str | None,
    typer.Option("--app", envvar="DEUZ_APP", metavar="MODULE:ATTR", help="The application, such as my_agents:app."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout, and nothing else.")]
ScopeOption = Annotated[str, typer.Option("--scope", help="Tenant that the run belongs to.")]


def application(place: str | None, *, logs: bool = False) -> Deuz:
    """The named application; without a name one that knows no agent and only looks at what is stored.

    What its module raises when it is imported becomes a `ModuleFailedError`. `logs`: warnings go to the log, not to stderr.
    """
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.app.discovery import load_app

    _warn_of_mistyped_variables(logs=logs)
    if place is None:
        return Deuz()
    with user_code(place):
        return load_app(place)


def stored(place: str | None) -> Deuz:
    """The application for a command that works with runs that are there. Raises `ConfigurationError` where no file is."""
    deuz = application(place)
    if file := missing_file(deuz):
        raise ConfigurationError(
            f"there is no SQLite file {str(file)!r}, and looking makes none; set DEUZ_DATABASE_URL (setting database_url) to "
            "the database that holds the runs, or start from the folder that it is relative to; `deuz db migrate` makes the "
            "file, and so does a first run",
            code="no_database",
        )
    return deuz


def missing_file(deuz: Deuz) -> Path | None:
    """The SQLite file that the settings name, if it is not there yet."""
    from deuz_workers.store.opening import sqlite_file

    file = None if deuz.has_own_store else sqlite_file(deuz.settings.database_url)
    return None if file is None or file.exists() else file.absolute()


def _warn_of_mistyped_variables(*, logs: bool) -> None:
    for name, meant in mistyped().items():
        if logs:
            log.warning("unknown_variable name=%s meant=%s", name, meant)
        else:
            report_warning("unknown_variable", f"{name} is no setting and has no effect; did you mean {meant}?")


def mistyped() -> dict[str, str]:
    """Variables of the environment that look like a setting and are none, with what was probably meant."""
    from deuz_workers.app.setting_mistakes import mistyped_variables
    from deuz_workers.app.settings import Settings

    return mistyped_variables(Settings.model_fields, os.environ)


def needed_application(place: str | None, *, logs: bool = False) -> Deuz:
    """The named application. Raises `ConfigurationError` when none is named."""
    if place is None:
        raise ConfigurationError("no application to run: pass --app MODULE:ATTR, such as my_agents:app, or set DEUZ_APP")
    return application(place, logs=logs)


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
