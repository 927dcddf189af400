"""Usage: sums, and what is stored of it."""

from __future__ import annotations

from deuz_workers.core.usage import Usage


def test_every_count_is_added() -> None:
    """Each kind of token to its own, and the cost, which one unknown makes unknown."""
    one, two = Usage(10, 5, 4, 3, 2, 1), Usage(100, 50, 40, 30, 20, 11)
    assert one + two == Usage(110, 55, 44, 33, 22, 12)
    assert (one + Usage(1, cost_micros=None)).cost_micros is None


def test_what_is_stored_comes_back() -> None:
    """Also from before there was a count of what was written to a cache; without one the record is what it was then."""
    for used in (Usage(10, 5, 4, 3, 2), Usage(10, 5, 4, 3, None, cache_write_tokens=7)):
        assert Usage.from_record(used.to_record()) == used
    before = {"input_tokens": 10, "output_tokens": 5, "cached_tokens": 4, "reasoning_tokens": 3, "cost_micros": 2}
    assert Usage(10, 5, 4, 3, 2).to_record() == before
    assert Usage.from_record(before) == Usage(10, 5, 4, 3, 2)
