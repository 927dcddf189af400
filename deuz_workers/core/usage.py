"""Usage and money of model calls.

Tokens are counts, money is an integer number of millionths of a US dollar (`_micros`). An unknown amount is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deuz_workers.errors import ConfigurationError

MAX_TOKENS = 10**12
"""Of one call; no model comes near, and the sums of a million such calls fit the 64 bits of a column."""
MAX_COST_MICROS = 10**12
"""Of one call: a million dollars."""
MAX_AMOUNT = 2**63 - 1
"""Of a budget: what a column of the databases holds."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What model calls consumed. `cached_tokens`, read from the provider's cache, and `cache_write_tokens`, written to it, are
    part of the input, `reasoning_tokens` part of the output."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_micros: int | None = 0
    """None: some call had no known price."""
    cache_write_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        cost = None if self.cost_micros is None or other.cost_micros is None else self.cost_micros + other.cost_micros
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            cost,
            self.cache_write_tokens + other.cache_write_tokens,
        )

    def to_record(self) -> dict[str, object]:
        """Without `cache_write_tokens` where there are none, as records from before the field are."""
        written = {"cache_write_tokens": self.cache_write_tokens} if self.cache_write_tokens else {}
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "cost_micros": self.cost_micros,
            **written,
        }

    @staticmethod
    def from_record(record: Mapping[str, object]) -> Usage:
        def count(name: str) -> int:
            value = record.get(name, 0)
            return value if isinstance(value, int) else 0

        cost = record.get("cost_micros")
        return Usage(
            count("input_tokens"),
            count("output_tokens"),
            count("cached_tokens"),
            count("reasoning_tokens"),
            cost if isinstance(cost, int) else None,
            count("cache_write_tokens"),
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """What a scope may spend, both limits optional.

    `tokens` counts input and output tokens together; `usd` is stored in millionths of a dollar.
    """

    tokens: int | None = None
    usd_micros: int | None = None

    @staticmethod
    def of(*, tokens: int | None = None, usd: float | None = None) -> Budget:
        return Budget(tokens, None if usd is None else round(usd * 1_000_000))

    @property
    def is_limited(self) -> bool:
        return self.tokens is not None or self.usd_micros is not None


def check_budget(whose: str, budget: object) -> Budget:
    """The budget. Raises `ConfigurationError` for one that limits nothing, or by what is no amount."""
    if not isinstance(budget, Budget):
        raise ConfigurationError(f"{whose}: the budget is a {type(budget).__name__}; pass Budget.of(tokens=..., usd=...)")
    amounts = [amount for amount in (budget.tokens, budget.usd_micros) if amount is not None]
    if not amounts or any(type(amount) is not int or not 0 <= amount <= MAX_AMOUNT for amount in amounts):
        raise ConfigurationError(f"{whose}: a budget limits tokens, usd or both, to zero or more and up to {MAX_AMOUNT}")
    return budget
