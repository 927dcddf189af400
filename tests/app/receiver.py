"""A real server that takes webhooks and remembers what it was sent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Received = tuple[dict[str, str], bytes]
"""Headers, in lower case, and body."""


@dataclass
class Receiver:
    """`answer` decides by what came; the status, or none to break the connection off."""

    answer: Callable[[Received], int | None] = lambda received: 204
    received: list[Received] = field(default_factory=list[Received])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Of every answer."""

    def __enter__(self) -> Receiver:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                came = ({name.lower(): value for name, value in self.headers.items()}, body)
                receiver.received.append(came)
                status = receiver.answer(came)
                if status is None:
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/hooks?key=1"

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.received]
