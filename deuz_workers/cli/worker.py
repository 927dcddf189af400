"""`deuz worker`: a process that executes runs."""

from __future__ import annotations

import logging
import os
from enum import StrEnum
from typing import Annotated

import typer

from deuz_workers.app.log_lines import JsonLines, TextLines
from deuz_workers.cli.session import AppOption, needed_application


class Pool(StrEnum):
    threads = "threads"
    prefork = "prefork"
    solo = "solo"


class LogFormat(StrEnum):
    text = "text"
    json = "json"


LogFormatOption = Annotated[
    LogFormat, typer.Option(envvar="DEUZ_LOG_FORMAT", help="Lines of key=value pairs, or JSON objects.", case_sensitive=False)
]


class Level(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def worker(
    app: AppOption = None,
    pool: Annotated[Pool | None, typer.Option(help="How steps share the machine; the setting `pool` if not given.")] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", min=1, help="Steps at a time; the setting `concurrency` if not given.")
    ] = None,
    queues: Annotated[
        str | None, typer.Option("--queues", "-Q", help="Queues to take from, with commas between; the setting if not given.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Name of the node, such as worker1@%h.")] = None,
    loglevel: Annotated[
        Level, typer.Option("--loglevel", "-l", help="What is logged, unless a logging file is given.", case_sensitive=False)
    ] = Level.info,
    log_config: Annotated[
        str | None, typer.Option("--log-config", metavar="FILE", help="A TOML file for logging.config.dictConfig.")
    ] = None,
    log_format: LogFormatOption = LogFormat.text,
) -> None:
    """Execute runs until SIGTERM or Ctrl-C, then drain and end with 0; a second signal hurries.

    With a broker this is a Celery worker. Without one (no Redis) it is a plain process that looks for work itself, and any
    number of them share the database.
    """
    set_up_logging(loglevel.value, log_config, log_format)
    deuz = needed_application(app, logs=True)
    os.environ.setdefault("DEUZ_APP", app or "")
    names = None if queues is None else [found for part in queues.split(",") if (found := part.strip())]
    if deuz.settings.broker is None:
        from deuz_workers.workers.plain import run_plain_worker

        raise typer.Exit(run_plain_worker(deuz, concurrency=concurrency, queues=names))
    from deuz_workers.workers.run import run_worker

    code = run_worker(
        deuz,
        pool=None if pool is None else pool.value,
        concurrency=concurrency,
        queues=names,
        name=None if name is None else name.replace("%h", os.uname().nodename),
    )
    raise typer.Exit(code)


def set_up_logging(level: str, file: str | None, form: LogFormat = LogFormat.text) -> None:
    """Log lines go to stderr, or wherever and however `file` says."""
    if file is not None:
        import tomllib
        from logging.config import dictConfig
        from pathlib import Path

        from deuz_workers.errors import ConfigurationError

        try:
            dictConfig(tomllib.loads(Path(file).read_text()))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"the logging file {file!r} cannot be used: {error}") from None
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == LogFormat.json else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # Their INFO lines repeat what ours say, once per step.
    for noisy in ("httpx", "httpcore", "celery.app.trace", "celery.worker.strategy", "kombu"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
