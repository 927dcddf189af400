"""How much a model call may use at most, before anybody has counted: what its reservation sets aside.

Counting exactly needs the tokenizer of the very model. The bound here needs a length only: text of any language and code has
three characters or more to a token in the vocabularies of 2024 and later; only rare scripts and random bytes have fewer, and
usage settles the difference afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Protocol

from deuz_workers.core.usage import Usage

CHARS_PER_TOKEN = 3
DEFAULT_OUTPUT_TOKENS = 4_096
"""Assumed where the agent sets no `max_output_tokens`. A model may then use more than was reserved; under a strict budget set
the limit, which the provider enforces."""
TOOL_TOKENS = 16
"""What a provider adds around the description of one tool."""


class DescribedTool(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, object]: ...


def tool_chars(tools: Iterable[DescribedTool]) -> int:
    """Characters that these tools add to every request; the same for the life of a process."""
    return sum(
        len(tool.name)
        + len(tool.description)
        + len(json.dumps(dict(tool.parameters), default=str))
        + TOOL_TOKENS * CHARS_PER_TOKEN
        for tool in tools
    )


def usage_bound(chars: int, max_output_tokens: int | None) -> Usage:
    """Upper bound of one call whose messages and tools have `chars` characters (`History.chars` and `tool_chars`).

    Its total is what to reserve in tokens, and its price, asked of `Prices`, what to reserve in money.
    """
    output_tokens = DEFAULT_OUTPUT_TOKENS if max_output_tokens is None else max_output_tokens
    return Usage(input_tokens=-(-chars // CHARS_PER_TOKEN), output_tokens=output_tokens, cost_micros=None)
