"""Models behind an OpenAI responses endpoint: OpenAI's own, and servers that speak like it."""

from __future__ import annotations

from typing import Unpack

from deuz_workers.providers.connection import Connection
from deuz_workers.providers.openai_url import OPENAI_KEY, OPENAI_URL, is_openai, openai_provider
from deuz_workers.providers.responses.request import Dialect
from deuz_workers.providers.responses.wire import ResponsesWire
from deuz_workers.providers.wire_model import WireModel


class ResponsesModel(WireModel):
    """One model of one server that speaks Responses.

    Nothing is kept at the provider unless the agent's `model_extra` has `store`: the history is this side's, and thoughts
    come and go encrypted.
    """

    def __init__(
        self,
        model: str,
        base_url: str = OPENAI_URL,
        *,
        provider: str | None = None,
        stream: bool = True,
        encrypted_reasoning: bool = True,
        **connection: Unpack[Connection],
    ) -> None:
        """Nothing is opened or read yet. `connection`: see `Connection`.

        Args:
            model: the server's name of the model.
            base_url: up to and including the version, `http://localhost:8000/v1`.
            provider: first half of `name`, and of the name that prices are looked up by. None: `openai` for OpenAI's own
                URL, else `compatible`, which no price list knows.
            stream: False sends requests for whole replies.
            encrypted_reasoning: ask for thoughts that can be sent back. A server that refuses it is asked again without, at
                once, and remembered to be of that kind.

        Raises: `ConfigurationError`, for a URL that is none or that carries secrets, and for headers that are no ASCII.
        """
        provider = provider or openai_provider(base_url)
        name = f"{provider}:{model}"
        dialect = Dialect(author=name, model=model, stream=stream, encrypted_reasoning=encrypted_reasoning)
        key_variable = OPENAI_KEY if is_openai(base_url) else None
        super().__init__(name, ResponsesWire(provider, dialect), base_url, key_variable=key_variable, **connection)
