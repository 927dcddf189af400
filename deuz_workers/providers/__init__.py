"""Model providers: requests built and replies read by pure functions, sent through one HTTP client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deuz_workers.errors import ConfigurationError
from deuz_workers.providers.anthropic.model import ANTHROPIC_URL, AnthropicModel
from deuz_workers.providers.chat.model import ChatCompletionsModel
from deuz_workers.providers.gemini.model import GEMINI_URL, GeminiModel
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.openai_url import OPENAI_URL
from deuz_workers.providers.prices import Price, PriceList
from deuz_workers.providers.responses.model import ResponsesModel
from deuz_workers.providers.wire_model import WireModel

__all__ = [
    "AnthropicModel",
    "ChatCompletionsModel",
    "GeminiModel",
    "MockModel",
    "Price",
    "PriceList",
    "ResponsesModel",
    "WireModel",
    "model_from_name",
]


@dataclass(frozen=True, slots=True)
class _Server:
    make: Callable[..., WireModel]
    """Called with the model's name, the base URL and the further settings."""
    base_url: str | None
    """None: the caller has to say."""
    provider: str
    """First half of the model's `name`, which tells who serves it and not how it is spoken to."""


SERVERS: Mapping[str, _Server] = {
    "openai": _Server(ChatCompletionsModel, OPENAI_URL, "openai"),
    "openai-responses": _Server(ResponsesModel, OPENAI_URL, "openai"),
    "anthropic": _Server(AnthropicModel, ANTHROPIC_URL, "anthropic"),
    "google": _Server(GeminiModel, GEMINI_URL, "google"),
    # Source: https://github.com/ollama/ollama/blob/main/docs/openai.md, read 2026-11.
    "ollama": _Server(ChatCompletionsModel, "http://localhost:11434/v1", "ollama"),
    "compatible": _Server(ChatCompletionsModel, None, "compatible"),
    "compatible-responses": _Server(ResponsesModel, None, "compatible"),
    "compatible-messages": _Server(AnthropicModel, None, "compatible"),
}
"""By prefix of the name. `compatible` is any server of the same protocol: vLLM, llama.cpp, a gateway."""


def model_from_name(name: str, *, base_url: str | None = None, **settings: Any) -> WireModel:
    """The model `prefix:model`, with the further settings of the class that speaks the server's wire.

    Raises: `ConfigurationError`, for an unknown prefix, a name without a model, and `compatible` without a `base_url`.
    """
    prefix, _, model = name.partition(":")
    server = SERVERS.get(prefix)
    if server is None or not model:
        known = ", ".join(f"{known}:MODEL" for known in SERVERS)
        raise ConfigurationError(f"no model is called {name!r}; write one of {known}")
    url = base_url or server.base_url
    if url is None:
        raise ConfigurationError(f"{name!r} names no server; pass base_url=, such as http://localhost:8000/v1")
    settings.setdefault("provider", server.provider)
    return server.make(model, url, **settings)
