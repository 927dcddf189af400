"""What a run has cost, from its record: spent, set aside, unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deuz_workers.core.accounting import Accounting, Amount, accounting_of
from deuz_workers.core.codec import decode, encode
from deuz_workers.core.envelope import OpenCall
from deuz_workers.core.events import ModelCallAbandoned, ModelCallFailed, ModelCallStarted, ModelReplied
from deuz_workers.core.messages import Message, TextPart
from deuz_workers.core.run import Run, to_change
from deuz_workers.core.usage import Usage
from tests.core.runs import COMMIT, after, queued, reload


def begun(cost: int | None = 30, tokens: int = 100) -> ModelCallStarted:
    return ModelCallStarted(OpenCall("q", 1, tokens, cost))


def said(cost: int | None = 12) -> ModelReplied:
    return ModelReplied(Message("assistant", (TextPart("x"),)), "stop", Usage(10, 5, cost_micros=cost))


def accounted(run: Run) -> Accounting:
    """As whoever loads the run sees it; the same as whoever made it."""
    known = accounting_of(run.envelope)
    assert accounting_of(reload(run, to_change(run, COMMIT)).envelope) == known
    return known


def test_an_open_call_is_set_aside_until_it_ends() -> None:
    """Then its usage is spent; what was rejected unbilled is free; of what nobody knows the estimate stays."""
    run = after(queued(), begun())
    assert accounted(run) == Accounting(reserved=Amount(100, 30))
    assert accounted(after(run, said())) == Accounting(spent=Amount(15, 12))
    assert accounted(after(run, ModelCallFailed({"code": "x"}, "no", "timeout", 5))) == Accounting()
    for ending in (ModelCallAbandoned(), ModelCallFailed({"code": "x"}, "unknown", "timeout", 5)):
        assert accounted(after(run, ending)) == Accounting(unknown=Amount(100, 30))


def test_a_call_without_usage_leaves_what_others_cost_known() -> None:
    """Its own estimate is unknown, and the cost of the whole run as well; what was paid for the other call is not."""
    silent = ModelReplied(Message("assistant", (TextPart("x"),)), "stop", None)
    run = after(queued(), begun(), said(), begun(), silent)
    assert accounted(run) == Accounting(spent=Amount(15, 12), unknown=Amount(100, 30))
    assert accounted(run).committed == Amount(115, 42)
    assert run.envelope.usage.cost_micros is None


@pytest.mark.parametrize("unpriced", ["spent", "reserved", "unknown"])
def test_an_unknown_price_is_no_zero(unpriced: str) -> None:
    """Nor is a sum that it is part of."""
    paid = (begun(None), said(None)) if unpriced == "spent" else (begun(), said())
    run = after(queued(), *paid)
    run = after(run, begun(None if unpriced == "unknown" else 30), ModelCallAbandoned())
    run = after(run, begun(None if unpriced == "reserved" else 30))
    found = accounted(run)
    for name in ("spent", "reserved", "unknown"):
        amount: Amount = getattr(found, name)
        assert (amount.tokens > 0, amount.cost_micros is None) == (True, name == unpriced)
    assert (found.committed.tokens, found.committed.cost_micros) == (215, None)


def test_an_older_record_says_no_more_than_it_knows() -> None:
    """Without the two sums: the cost of the usage was spent, and what unknown calls cost is not known."""
    run = after(queued(), begun(), said(), begun(), ModelCallAbandoned())
    change = to_change(run, COMMIT)
    record = decode(change.body)
    assert isinstance(record, dict)
    older = encode({name: value for name, value in record.items() if name != "unknown_cost_micros"})
    loaded = reload(run, replace(change, body=older))
    assert accounting_of(loaded.envelope) == Accounting(spent=Amount(15, 12), unknown=Amount(100, None))


@pytest.mark.spec("LED-001")
def test_a_reply_without_a_price_leaves_what_was_reserved_unknown() -> None:
    """Where a price was reserved, nobody knows what was spent; what others spent is told apart from it."""
    run = after(queued(), begun(), said(), begun(), said(None))
    assert accounted(run) == Accounting(spent=Amount(15, 12), unknown=Amount(100, 30))
    assert run.envelope.usage.total_tokens == 30


@pytest.mark.spec("LED-002")
def test_committed_is_the_sum_of_its_parts() -> None:
    """Spent, reserved and unknown, in tokens and money."""
    found = accounted(after(queued(), begun(), said(), begun(), ModelCallAbandoned(), begun(7, 50)))
    assert found == Accounting(Amount(15, 12), Amount(50, 7), Amount(100, 30))
    assert found.committed == Amount(15 + 50 + 100, 12 + 7 + 30)


def test_what_was_used_is_told_by_model() -> None:
    """The sums of each, as they are stored; a reply without usage adds nothing to any."""
    run = queued()
    for model, cost in (("a", 5), ("b", None), ("a", 7), ("a", 0)):
        used = None if not cost and cost is not None else Usage(10, 5, cost_micros=cost)
        run = after(run, begun(), ModelReplied(Message("assistant", (TextPart("x"),)), "stop", used, model))
    told = reload(run, to_change(run, COMMIT)).envelope.usage_by_model
    assert told == {"a": Usage(20, 10, cost_micros=12), "b": Usage(10, 5, cost_micros=None)}
