"""What a run has cost and may still cost: tokens and money that are spent, set aside, or held for calls of unknown outcome."""

from __future__ import annotations

from dataclasses import dataclass

from deuz_workers.core.envelope import AgentRunEnvelope


@dataclass(frozen=True, slots=True)
class Amount:
    tokens: int = 0
    """Input and output together."""
    cost_micros: int | None = 0
    """Millionths of a US dollar. None: a price among them is not known."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, added(self.cost_micros, other.cost_micros))


NO_AMOUNT = Amount()


@dataclass(frozen=True, slots=True)
class Accounting:
    """Totals of one ledger."""

    spent: Amount = NO_AMOUNT
    """By calls whose provider said what they used."""
    reserved: Amount = NO_AMOUNT
    """Estimates of calls that are being made."""
    unknown: Amount = NO_AMOUNT
    """Estimates of calls that were made and of which nobody knows what they used."""

    def with_nested(self, spent: int | None, held: int | None, unknown: int | None) -> Accounting:
        """Together with so many tokens of runs in the context of this one. What these cost is counted nowhere."""

        def more(mine: Amount, tokens: int | None) -> Amount:
            return mine + Amount(tokens, None) if tokens else mine

        return Accounting(more(self.spent, spent), more(self.reserved, held), more(self.unknown, unknown))

    @property
    def committed(self) -> Amount:
        """All of it: what no other call may have."""
        return self.spent + self.reserved + self.unknown


def accounting_of(envelope: AgentRunEnvelope) -> Accounting:
    """Of the run's own calls, as its record counts them."""
    call = envelope.checkpoint.open_call
    return Accounting(
        Amount(envelope.usage.total_tokens - envelope.unsettled_tokens, envelope.settled_cost_micros),
        NO_AMOUNT if call is None else Amount(call.tokens, call.cost_micros),
        Amount(envelope.unknown_tokens, envelope.unknown_cost_micros),
    )


def added(one: int | None, other: int | None) -> int | None:
    """The sum of two costs, unknown if one of them is."""
    return None if one is None or other is None else one + other
