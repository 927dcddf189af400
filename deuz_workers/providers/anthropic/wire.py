"""The Messages API as a wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deuz_workers.errors import ModelError
from deuz_workers.ports.model import ModelReply, ModelRequest
from deuz_workers.providers.anthropic.errors import status_failure
from deuz_workers.providers.anthropic.reply import parse_message, read_reply
from deuz_workers.providers.anthropic.request import Dialect, build_body
from deuz_workers.providers.anthropic.stream import MessageStream


@dataclass(frozen=True, slots=True)
class MessagesWire:
    provider: str
    """First half of the names that prices are looked up by."""
    dialect: Dialect

    @property
    def name(self) -> str:
        return "messages"

    @property
    def path(self) -> str:
        return "/messages"

    def headers(self, key: str) -> Mapping[str, str]:
        """The key as the `anthropic` package sends it since its version 2, read 2026-11."""
        version = {"anthropic-version": self.dialect.api_version}
        return version | {"Authorization": f"Bearer {key}"} if key else version

    def build(self, request: ModelRequest) -> Mapping[str, Any]:
        return build_body(request, self.dialect)

    def stream(self) -> MessageStream:
        return MessageStream()

    def parse(self, body: bytes) -> Mapping[str, Any]:
        return parse_message(body)

    def read(self, completion: Mapping[str, Any]) -> ModelReply:
        return read_reply(completion, author=self.dialect.author, provider=self.provider, model=self.dialect.model)

    def failure(self, status: int, body: bytes, *, host: str, retry_after_ms: int | None) -> ModelError:
        return status_failure(status, body, host=host, retry_after_ms=retry_after_ms)

    def plainer(self, status: int, body: bytes) -> None:
        """No field of a request is left out for an older server."""
