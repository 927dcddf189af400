"""Models behind an OpenAI-compatible chat completions endpoint: OpenAI, hosted gateways, vLLM, Ollama, llama.cpp."""

from __future__ import annotations

from typing import Unpack

from deuz_workers.providers.chat.request import Dialect, MaxTokensField
from deuz_workers.providers.chat.wire import ChatWire
from deuz_workers.providers.connection import Connection
from deuz_workers.providers.openai_url import OPENAI_KEY, OPENAI_URL, is_openai, openai_provider
from deuz_workers.providers.wire_model import WireModel


class ChatCompletionsModel(WireModel):
    """One model of one server that speaks Chat Completions."""

    def __init__(
        self,
        model: str,
        base_url: str = OPENAI_URL,
        *,
        provider: str | None = None,
        stream: bool = True,
        max_tokens_field: MaxTokensField | None = None,
        replay_reasoning: bool = False,
        **connection: Unpack[Connection],
    ) -> None:
        """Nothing is opened or read yet. `connection`: see `Connection`.

        Args:
            model: the server's name of the model.
            base_url: up to and including the version, `http://localhost:8000/v1`.
            provider: first half of `name`, and of the name that prices are looked up by. None: `openai` for OpenAI's own
                URL, else `compatible`, which no price list knows.
            stream: False sends requests for whole replies, for servers that cannot stream tool calls.
            max_tokens_field: None: `max_completion_tokens` for OpenAI's own URL, else `max_tokens`.
            replay_reasoning: send thoughts of this model back to it (DeepSeek's thinking mode needs them).

        Raises: `ConfigurationError`, for a URL that is none or that carries secrets, and for headers that are no ASCII.
        """
        own = is_openai(base_url)
        provider = provider or openai_provider(base_url)
        name = f"{provider}:{model}"
        dialect = Dialect(
            author=name,
            model=model,
            max_tokens_field=max_tokens_field or ("max_completion_tokens" if own else "max_tokens"),
            stream=stream,
            replay_reasoning=replay_reasoning,
        )
        super().__init__(name, ChatWire(provider, dialect), base_url, key_variable=OPENAI_KEY if own else None, **connection)
