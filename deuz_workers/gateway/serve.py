"""`deuz serve`: the gateway in a process of its own.

Events, in the log as a name and key-values: ``gateway_open`` (`url`), ``gateway_closing``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Generator

import uvicorn

from deuz_workers.app.deuz import Deuz
from deuz_workers.gateway.application import Gateway, for_browsers
from deuz_workers.gateway.bridge import IDLE_S

SHUTDOWN_S = 10
"""Requests that are being answered may end within this time after a signal."""

log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Lets readers of streams go at a signal, and then ends by itself: the process has done what it was told."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for listener in server.sockets:
                log.info("gateway_open url=http://%s:%d", *listener.getsockname()[:2])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("gateway_closing")
        await self._gateway.let_go()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


def serve(app: Deuz, *, host: str, port: int) -> None:
    """Serve until SIGTERM or Ctrl-C. Addresses are not logged: they hold tickets.

    One process; several of them may share the address behind a proxy, with one `gateway_secret`.
    """
    inner = Gateway(app, None, IDLE_S)
    config = uvicorn.Config(
        for_browsers(inner),
        host=host,
        port=port,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    asyncio.run(_Server(config, inner).serve())
