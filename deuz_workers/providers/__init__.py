"""Model providers: requests built and replies read by pure functions, sent through one HTTP client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deuz_workers.errors import ConfigurationError
from deuz_workers.providers.chat_completions import OPENAI_URL, ChatCompletionsModel
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.prices import Price, PriceList

__all__ = ["ChatCompletionsModel", "MockModel", "Price", "PriceList", "model_from_name"]


@dataclass(frozen=True, slots=True)
class _Server:
    base_url: str | None
    """None: the caller has to say."""
    provider: str


SERVERS: Mapping[str, _Server] = {
    "openai": _Server(OPENAI_URL, "openai"),
    # Source: https://github.com/ollama/ollama/blob/main/docs/openai.md, read 2026-11.
    "ollama": _Server("http://localhost:11434/v1", "ollama"),
    "compatible": _Server(None, "compatible"),
}
"""By prefix of the name. `compatible` is any server of the same protocol: vLLM, llama.cpp, a gateway."""


def model_from_name(name: str, *, base_url: str | None = None, **settings: Any) -> ChatCompletionsModel:
    """The model `prefix:model`, with the further settings of `ChatCompletionsModel`.

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
    return ChatCompletionsModel(model, url, **settings)
