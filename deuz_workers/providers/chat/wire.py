"""Chat Completions as a wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from deuz_workers.errors import ModelError
from deuz_workers.ports.model import ModelReply, ModelRequest
from deuz_workers.providers.chat.reply import parse_completion, read_reply
from deuz_workers.providers.chat.request import Dialect, build_body
from deuz_workers.providers.chat.stream import ChatStream
from deuz_workers.providers.openai_errors import status_failure


@dataclass(frozen=True, slots=True)
class ChatWire:
    provider: str
    """First half of the names that prices are looked up by."""
    dialect: Dialect

    @property
    def name(self) -> str:
        return "chat-completions"

    @property
    def path(self) -> str:
        return "/chat/completions"

    def headers(self, key: str) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    def build(self, request: ModelRequest) -> Mapping[str, Any]:
        return build_body(request, self.dialect)

    def stream(self) -> ChatStream:
        return ChatStream()

    def parse(self, body: bytes) -> Mapping[str, Any]:
        return parse_completion(body)

    def read(self, completion: Mapping[str, Any]) -> ModelReply:
        return read_reply(completion, author=self.dialect.author, provider=self.provider, model=self.dialect.model)

    def failure(self, status: int, body: bytes, *, host: str, retry_after_ms: int | None) -> ModelError:
        return status_failure(status, body, host=host, retry_after_ms=retry_after_ms)

    def plainer(self, status: int, body: bytes) -> ChatWire | None:
        if self.dialect.asks_for_usage and status in (400, 422) and _names_stream_options(body):
            return replace(self, dialect=replace(self.dialect, stream_usage=False))
        return None


def _names_stream_options(body: bytes) -> bool:
    """Whether a refusal is about `stream_options`, which older servers do not know."""
    return b"stream_options" in body or b"include_usage" in body
