"""How much a model call may use at most, before anybody has counted: what its reservation sets aside.

Counting exactly needs the tokenizer of the very model. The bound here needs the length of the UTF-8 text only: three bytes to a
token. Ordinary text has more in the vocabularies in use, also where a character is one token of three bytes, as in Chinese;
digits, random strings and rare scripts can have fewer. Usage settles the difference afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Protocol

from deuz_workers.core.usage import Usage

BYTES_PER_TOKEN = 3
DEFAULT_OUTPUT_TOKENS = 4_096
"""Assumed where the agent sets no `max_output_tokens`. A model may then use more than was reserved; under a strict budget set
the limit, which the provider enforces."""
TOOL_TOKENS = 16
"""What a provider adds around the description of one tool."""


FIRST_CALIBRATION = 1_000
"""Thousandths, while no provider has counted anything of a run."""
LEAST_CALIBRATION, MOST_CALIBRATION = 250, 4_000
"""Thousandths. Between 12 bytes to a token and less than one lies every vocabulary and every script in use."""


class DescribedTool(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, object]: ...


def text_bytes(text: str) -> int:
    """Length as UTF-8; a lone surrogate counts as three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def tool_bytes(tools: Iterable[DescribedTool]) -> int:
    """UTF-8 bytes that these tools add to every request; the same for the life of a process."""
    return sum(
        len(tool.name)
        + text_bytes(tool.description)
        + text_bytes(json.dumps(dict(tool.parameters), ensure_ascii=False, default=str))
        + TOOL_TOKENS * BYTES_PER_TOKEN
        for tool in tools
    )


def usage_bound(size_bytes: int, max_output_tokens: int | None, *, writes_cache: bool = False) -> Usage:
    """Upper bound of one call whose messages and tools are `size_bytes` long (`History.size_bytes` and `tool_bytes`).

    Its total is what to reserve in tokens, and its price, asked of `Prices`, what to reserve in money. `writes_cache`: the
    provider is asked to keep the input, all of which may then cost what writing to its cache costs.
    """
    input_tokens = -(-size_bytes // BYTES_PER_TOKEN)
    output_tokens = DEFAULT_OUTPUT_TOKENS if max_output_tokens is None else max_output_tokens
    return Usage(input_tokens, output_tokens, cost_micros=None, cache_write_tokens=input_tokens if writes_cache else 0)


def calibrated_tokens(size_bytes: int, calibration: int) -> int:
    """How many tokens text of that length likely is; `calibration` in thousandths, see `calibration_of`."""
    return -(-size_bytes // BYTES_PER_TOKEN) * calibration // 1_000


def calibration_of(estimated: int, counted: int) -> int:
    """Thousandths: what a provider counted for a request of `estimated` tokens by `usage_bound`, within reason."""
    return min(max(counted * 1_000 // max(estimated, 1), LEAST_CALIBRATION), MOST_CALIBRATION)
