"""Models behind the Anthropic Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from deuz_workers.providers.anthropic.request import DEFAULT_MAX_TOKENS, NEWEST_VERSION, ApiVersion, Dialect
from deuz_workers.providers.anthropic.wire import MessagesWire
from deuz_workers.providers.connection import Connection
from deuz_workers.providers.wire_model import WireModel

ANTHROPIC_URL = "https://api.anthropic.com/v1"
ANTHROPIC_KEY = "ANTHROPIC_API_KEY"
"""The variable that Anthropic's own clients read the key from; it is sent to `ANTHROPIC_URL` alone."""


class AnthropicModel(WireModel):
    """One model of one server that speaks the Messages API."""

    def __init__(
        self,
        model: str,
        base_url: str = ANTHROPIC_URL,
        *,
        provider: str | None = None,
        stream: bool = True,
        api_version: ApiVersion = NEWEST_VERSION,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        thinking: Mapping[str, object] | None = None,
        cache: bool = False,
        **connection: Unpack[Connection],
    ) -> None:
        """Nothing is opened or read yet. `connection`: see `Connection`.

        Args:
            model: the server's name of the model, `claude-opus-5-5`.
            base_url: up to and including the version.
            provider: first half of `name`, and of the name that prices are looked up by. None: `anthropic` for Anthropic's own
                URL, else `compatible`, which no price list knows.
            stream: False sends requests for whole replies.
            api_version: an older one is for models and servers that need it; it alone takes a `temperature`, which an agent's
                request is otherwise sent without, unless `rejects` says something else.
            max_tokens: limit of a reply, thoughts included, where the agent sets no `max_output_tokens`; the API wants one.
            thinking: as the API takes it, `{"type": "adaptive"}` or `{"type": "enabled", "budget_tokens": 4096}`; None: the
                model's default. It is switched off in requests that force a call, and with a budget also in those that go on
                from calls of another model, since the API refuses both.
            cache: the provider keeps the prefix of each request for five minutes, so that the next turn reads it for less.
                Writing to its cache costs a quarter more than sending, which reservations count in.

        Raises: `ConfigurationError`, for a URL that is none or that carries secrets, and for headers that are no ASCII.
        """
        own = base_url.rstrip("/") == ANTHROPIC_URL
        provider = provider or ("anthropic" if own else "compatible")
        name = f"{provider}:{model}"
        # Claude models read each other's signed thoughts (FOV-014). What else stands behind other servers nobody knows, and one
        # may have a name on several wires, whose thoughts and signatures are not the same.
        author = "messages:anthropic" if provider == "anthropic" else f"messages:{name}"
        dialect = Dialect(author, model, stream, api_version, max_tokens, thinking, cache)
        wire = MessagesWire(provider, dialect)
        self.writes_cache = cache
        if api_version == NEWEST_VERSION:
            connection.setdefault("rejects", ("temperature",))
        super().__init__(name, wire, base_url, key_variable=ANTHROPIC_KEY if own else None, **connection)
