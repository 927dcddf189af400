"""`deuz serve`: the HTTP gateway."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from deuz_workers.cli.session import AppOption, needed_application
from deuz_workers.cli.worker import Level, LogFormat, LogFormatOption, set_up_logging
from deuz_workers.errors import ConfigurationError


def serve(
    app: AppOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: any that is free, which the log names.")] = 8080,
    loglevel: Annotated[Level, typer.Option("--loglevel", "-l", help="What is logged.", case_sensitive=False)] = Level.info,
    log_format: LogFormatOption = LogFormat.text,
) -> None:
    """Serve runs and swarms over HTTP, and pages for people at /console, until SIGTERM or Ctrl-C.

    Workers execute the runs; see deuz token for credentials.
    """
    missing = [name for name in ("starlette", "uvicorn", "prometheus_client", "jinja2") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"{', '.join(missing)} cannot be imported; pip install 'deuz_workers[gateway]'")
    from deuz_workers.gateway.serve import serve as serve_gateway

    set_up_logging(loglevel.value, None, log_format)
    serve_gateway(needed_application(app, logs=True), host=host, port=port)
