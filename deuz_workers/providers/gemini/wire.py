"""Gemini's `generateContent` as a wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from deuz_workers.errors import ModelError
from deuz_workers.ports.model import ModelReply, ModelRequest
from deuz_workers.providers.gemini.errors import status_failure
from deuz_workers.providers.gemini.reply import parse_response, read_reply
from deuz_workers.providers.gemini.request import Dialect, build_body
from deuz_workers.providers.gemini.stream import ContentStream


@dataclass(frozen=True, slots=True)
class GeminiWire:
    provider: str
    """First half of the names that prices are looked up by."""
    dialect: Dialect

    @property
    def name(self) -> str:
        return "generate-content"

    @property
    def path(self) -> str:
        """The method stands behind the model; a stream of server-sent events is asked for by `alt` (https://ai.google.dev/api,
        read 2026-11). A name with a slash, as of a tuned model, says itself where it belongs."""
        model = self.dialect.model
        place = quote(model if "/" in model else f"models/{model}", safe="/")
        return f"/{place}:streamGenerateContent?alt=sse" if self.dialect.stream else f"/{place}:generateContent"

    def headers(self, key: str) -> Mapping[str, str]:
        return {"x-goog-api-key": key} if key else {}

    def build(self, request: ModelRequest) -> Mapping[str, Any]:
        return build_body(request, self.dialect)

    def stream(self) -> ContentStream:
        return ContentStream()

    def parse(self, body: bytes) -> Mapping[str, Any]:
        return parse_response(body)

    def read(self, completion: Mapping[str, Any]) -> ModelReply:
        return read_reply(completion, author=self.dialect.author, provider=self.provider, model=self.dialect.model)

    def failure(self, status: int, body: bytes, *, host: str, retry_after_ms: int | None) -> ModelError:
        return status_failure(status, body, host=host, retry_after_ms=retry_after_ms)

    def plainer(self, status: int, body: bytes) -> None:
        """No field of a request is left out for an older server."""
