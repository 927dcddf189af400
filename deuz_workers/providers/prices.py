"""What model calls cost, from the price tables that the `genai-prices` package carries, or as the application says.

Nothing is fetched: the tables are as old as the installed package. A model that they do not list under its provider has no
known price, and is never priced as another that is called alike.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any, cast

from deuz_workers.core.usage import Usage
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.runtime import Clock

NO_OVERRIDES: Mapping[str, Price] = {}


@dataclass(frozen=True, slots=True)
class Price:
    """A model's own price, in US dollars for a million tokens. `cached_input_usd` is for input read from the provider's cache,
    `cache_write_usd` for input written to it; None: it costs like any other."""

    input_usd: float
    output_usd: float
    cached_input_usd: float | None = None
    cache_write_usd: float | None = None

    def cost_micros(self, usage: Usage) -> int:
        """Dollars for a million tokens are millionths of a dollar for one."""
        cached, written = _parts(usage)
        cached_usd = self.input_usd if self.cached_input_usd is None else self.cached_input_usd
        written_usd = self.input_usd if self.cache_write_usd is None else self.cache_write_usd
        # Decimal of the shortest text: 0.1 means a tenth, so that the rounding up below adds nothing of its own.
        parts = (
            (usage.input_tokens - cached - written, self.input_usd),
            (cached, cached_usd),
            (written, written_usd),
            (usage.output_tokens, self.output_usd),
        )
        return _up(sum((tokens * Decimal(repr(usd)) for tokens, usd in parts), Decimal(0)))


class PriceList:
    """The `Prices` port. Amounts are rounded up to a whole millionth of a dollar, so that sums never fall short."""

    def __init__(self, overrides: Mapping[str, Price] = NO_OVERRIDES, *, clock: Clock | None = None) -> None:
        """`overrides`: by `provider:model`, before any table; `provider:*` for all models of a provider (`Price(0, 0)` for
        one's own machines); `*`, behind the tables, for every model whose price is not known. `clock`: for tables with prices
        by the hour; None: the machine's."""
        self._overrides = dict(overrides)
        self._given = frozenset(overrides)
        self._clock = clock

    def read(self, path: Path) -> None:
        """Take overrides from a TOML file: tables by name with the fields of `Price`.

        What the application gave goes before them. Raises `ConfigurationError`, naming file and entry; nothing is taken then.
        """
        try:
            document = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise ConfigurationError(f"the prices file {str(path)!r} cannot be read ({error.strerror})") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the prices file {str(path)!r} is no TOML: {error}") from None
        found = {name: _price(path, name, entry) for name, entry in document.items()}
        self._overrides |= {name: price for name, price in found.items() if name not in self._given}

    def load(self) -> None:
        """The tables are in memory: no model call of this process, nor of those forked from it, waits for that.

        It takes a quarter of a second, in which the loop of a process that loads them at its first model call stands still.
        """
        self._listed("openai", "none", Usage())

    def cost_micros(self, model: str, usage: Usage) -> int | None:
        """Price of `usage`, in millionths of a US dollar; None where no price is known.

        `model` is `provider:model`, as models and replies name themselves; a name without a provider is not guessed at.
        """
        provider, _, name = model.partition(":")
        price = self._overrides.get(model) or self._overrides.get(f"{provider}:*")
        if price is not None:
            return price.cost_micros(usage)
        known = self._listed(provider, name, usage) if name else None
        stated = self._overrides.get("*")
        return stated.cost_micros(usage) if known is None and stated is not None else known

    def _listed(self, provider: str, name: str, usage: Usage) -> int | None:
        # At the first use: producers, and processes that call no priced model, need not pay for it.
        import genai_prices

        cached, written = _parts(usage)
        counted = genai_prices.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=cached,
            cache_write_tokens=written,
        )
        moment = None if self._clock is None else datetime.fromtimestamp(self._clock.unix_ms() / 1000, UTC)
        try:
            found = genai_prices.calc_price(counted, name, provider_id=provider, genai_request_timestamp=moment)
        except LookupError:
            return None
        return _up(found.total_price * 1_000_000)


def _parts(usage: Usage) -> tuple[int, int]:
    """Input read from the cache and input written to it, together no more than the input."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    return cached, min(usage.cache_write_tokens, usage.input_tokens - cached)


def _price(path: Path, name: str, entry: object) -> Price:
    """Of an entry of a file. Raises `ConfigurationError`."""
    known = {field.name for field in fields(Price)}
    given = cast("Mapping[str, object]", entry) if isinstance(entry, dict) else {}
    amounts = {key: value for key, value in given.items() if type(value) in (int, float) and 0 <= cast(float, value) < math.inf}
    if amounts.keys() != given.keys() or not {"input_usd", "output_usd"} <= given.keys() <= known:
        raise ConfigurationError(
            f"the prices file {str(path)!r}: {name!r} is a table with input_usd, output_usd and perhaps cached_input_usd and "
            "cache_write_usd, each in US dollars for a million tokens"
        )
    return Price(**cast("Mapping[str, Any]", amounts))


def _up(micros: Decimal) -> int:
    return math.ceil(micros.to_integral_value(ROUND_CEILING))
