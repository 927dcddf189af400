"""What a call of a server's tool returned, as the value that is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from deuz_workers.errors import ToolError
from deuz_workers.ports.mcp import Wire

NO_TEXT = "The tool failed and did not say why."


def value_of(result: Wire) -> object:
    """Structured content as it came; else the texts, joined by line breaks; else, with images or files among it, the content
    itself. Raises `ToolError` with the text of a result that the server calls an error."""
    content = [cast(Mapping[str, Any], block) for block in cast(list[Any], result.get("content") or ())]
    texts = [str(block.get("text", "")) for block in content if block.get("type") == "text"]
    if result.get("isError") is True:
        raise ToolError("\n".join(texts) or NO_TEXT)
    if result.get("structuredContent") is not None:
        return result["structuredContent"]
    if len(texts) == len(content):
        return "\n".join(texts)
    return [dict(block) for block in content]
