"""A proxy before Redis that passes a request on and cuts the connection in place of the answer."""

from __future__ import annotations

import select
import socket
import tempfile
import threading
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingUnixStreamServer
from types import TracebackType


class CutProxy:
    """Listens on a unix socket of its own; every request reaches the server, a swallowed answer reaches nobody.

    Its clients must have closed their connections when it is left.
    """

    def __init__(self, server: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="deuz-")  # short: a socket path has 100 characters
        self._cut = threading.Event()
        self.swallowed = 0
        """Answers that the server gave and nobody got."""
        proxy = self

        class Handler(BaseRequestHandler):
            def handle(self) -> None:
                with socket.socket(socket.AF_UNIX) as upstream:
                    upstream.connect(str(server))
                    proxy.pass_on(self.request, upstream)

        self._listener = ThreadingUnixStreamServer(f"{self._folder.name}/s", Handler)
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"unix://{self._folder.name}/s"

    def swallow_next_answer(self) -> None:
        """The next answer of the server is dropped and its connection cut."""
        self._cut.set()

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        """Pass data both ways until one side ends or an answer is swallowed."""
        while True:
            for source in select.select([client, server], [], [])[0]:
                data: bytes = source.recv(65536)
                if not data:
                    return
                if source is server and self._cut.is_set():
                    self._cut.clear()
                    self.swallowed += 1
                    return
                (server if source is client else client).sendall(data)

    def __enter__(self) -> CutProxy:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()
        self._folder.cleanup()
