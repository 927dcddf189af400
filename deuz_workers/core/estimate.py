"""Upper bound of a model call, reserved before it is sent.

A token of the common tokenizers covers about four characters of English, and rarely less than one character of any text; three
characters a token is above the average of prose and code alike and below what a budget would notice as waste. An answer counts
at its limit, or at `DEFAULT_OUTPUT_TOKENS` where the agent sets none.
"""

from __future__ import annotations

from deuz_workers.core.usage import Usage

CHARS_PER_TOKEN = 3
DEFAULT_OUTPUT_TOKENS = 4_096


def estimate_call(history_chars: int, fixed_chars: int, max_output_tokens: int | None) -> tuple[int, Usage]:
    """Tokens in all, and the same as a usage to be priced. `fixed_chars`: instructions and tool descriptions."""
    read = (history_chars + fixed_chars) // CHARS_PER_TOKEN + 1
    written = max_output_tokens if max_output_tokens is not None else DEFAULT_OUTPUT_TOKENS
    return read + written, Usage(read, written)
