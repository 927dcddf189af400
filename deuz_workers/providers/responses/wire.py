"""Responses as a wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from deuz_workers.errors import ModelError
from deuz_workers.ports.model import ModelReply, ModelRequest
from deuz_workers.providers.openai_errors import status_failure
from deuz_workers.providers.responses.reply import parse_response, read_reply
from deuz_workers.providers.responses.request import Dialect, build_body
from deuz_workers.providers.responses.stream import ResponseStream


@dataclass(frozen=True, slots=True)
class ResponsesWire:
    provider: str
    """First half of the names that prices are looked up by."""
    dialect: Dialect

    @property
    def name(self) -> str:
        return "responses"

    @property
    def path(self) -> str:
        return "/responses"

    def headers(self, key: str) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    def build(self, request: ModelRequest) -> Mapping[str, Any]:
        return build_body(request, self.dialect)

    def stream(self) -> ResponseStream:
        return ResponseStream()

    def parse(self, body: bytes) -> Mapping[str, Any]:
        return parse_response(body)

    def read(self, completion: Mapping[str, Any]) -> ModelReply:
        return read_reply(completion, author=self.dialect.author, provider=self.provider, model=self.dialect.model)

    def failure(self, status: int, body: bytes, *, host: str, retry_after_ms: int | None) -> ModelError:
        return status_failure(status, body, host=host, retry_after_ms=retry_after_ms)

    def plainer(self, status: int, body: bytes) -> ResponsesWire | None:
        if self.dialect.encrypted_reasoning and status in (400, 422) and _names_encryption(body):
            return replace(self, dialect=replace(self.dialect, encrypted_reasoning=False))
        return None


def _names_encryption(body: bytes) -> bool:
    """Whether a refusal is about `include`, which models that do not reason and servers of others may not know."""
    lower = body[:8_192].lower()
    return b"encrypted content" in lower or b"encrypted_content" in lower or b"'include'" in lower or b'"include"' in lower
