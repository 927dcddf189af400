"""Models behind Gemini's `generateContent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from deuz_workers.providers.connection import Connection
from deuz_workers.providers.gemini.request import Dialect
from deuz_workers.providers.gemini.wire import GeminiWire
from deuz_workers.providers.wire_model import WireModel

GEMINI_URL = "https://generativelanguage.googleapis.com/v1"
"""What the `google-genai` package talks to since its version 3; names that end in `-latest` are known to `v1beta` only."""
GEMINI_KEY = "GEMINI_API_KEY"
"""The variable that Google's own client reads the key from; it is sent to Google's own server alone."""

GOOGLES_OWN = frozenset({GEMINI_URL, "https://generativelanguage.googleapis.com/v1beta"})


class GeminiModel(WireModel):
    """One model of one server that speaks `generateContent`."""

    def __init__(
        self,
        model: str,
        base_url: str = GEMINI_URL,
        *,
        provider: str | None = None,
        stream: bool = True,
        thinking: Mapping[str, object] | None = None,
        **connection: Unpack[Connection],
    ) -> None:
        """Nothing is opened or read yet. `connection`: see `Connection`.

        Args:
            model: the server's name of the model, `gemini-3.8-flash`.
            base_url: up to and including the version.
            provider: first half of `name`, and of the name that prices are looked up by. None: `google` for Google's own URL,
                else `compatible`, which no price list knows.
            stream: False sends requests for whole replies.
            thinking: as the API takes it in `thinkingConfig`, `{"thinkingLevel": "low", "includeThoughts": True}`; None: the
                model's default.

        Raises: `ConfigurationError`, for a URL that is none or that carries secrets, and for headers that are no ASCII.
        """
        own = base_url.rstrip("/") in GOOGLES_OWN
        provider = provider or ("google" if own else "compatible")
        name = f"{provider}:{model}"
        # A server may have one name on several wires, whose thoughts and signatures are not the same.
        wire = GeminiWire(provider, Dialect(f"generate-content:{name}", model, stream, thinking))
        super().__init__(name, wire, base_url, key_variable=GEMINI_KEY if own else None, **connection)
