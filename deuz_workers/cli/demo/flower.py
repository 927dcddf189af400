"""Flower for the demo's pool, behind a password of its own."""

from __future__ import annotations

import base64
import http.client
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from deuz_workers.cli.demo.child import Child

USER = "demo"
ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class Flower:
    child: Child
    port: int
    password: str

    @classmethod
    def start(cls, folder: Path, environment: Mapping[str, str]) -> Self:
        """Begins to start on a free port of the loopback interface; the password is in no command line."""
        password = secrets.token_urlsafe(9)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        secret = {"FLOWER_BASIC_AUTH": f"{USER}:{password}"}
        return cls(Child("flower", str(port), folder=folder, environment={**environment, **secret}), port, password)

    @property
    def url(self) -> str:
        """With user and password: for a browser on this machine."""
        return f"http://{USER}:{self.password}@127.0.0.1:{self.port}"

    def wait(self) -> None:
        """It answers those who know the password. Raises ServerUnavailableError if it ended."""
        self.child.wait_for(lambda: self._status() == http.client.OK)

    def _status(self) -> int | None:
        token = base64.b64encode(f"{USER}:{self.password}".encode()).decode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            connection.request("GET", "/workers", headers={"Authorization": f"Basic {token}"})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
