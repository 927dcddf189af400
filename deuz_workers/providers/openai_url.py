"""OpenAI's own server, which is told from others that speak like it."""

from __future__ import annotations

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_KEY = "OPENAI_API_KEY"
"""The variable that OpenAI's own clients read the key from; it is sent to `OPENAI_URL` alone."""


def is_openai(base_url: str) -> bool:
    return base_url.rstrip("/") == OPENAI_URL


def openai_provider(base_url: str) -> str:
    """First half of the names of models there: `compatible` is one that no price list knows."""
    return "openai" if is_openai(base_url) else "compatible"
