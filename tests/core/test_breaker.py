"""The rules of a circuit breaker, and the one that a process keeps in memory."""

from __future__ import annotations

import pytest

from deuz_workers.breakers import MemoryBreakers
from deuz_workers.core.breaker import CLOSED, OPEN_MS, OPENS_AFTER, counts, is_answer
from deuz_workers.core.transient import TransientKind
from deuz_workers.errors import (
    ModelAuthenticationError,
    ModelError,
    ModelRateLimitedError,
    ModelRequestError,
    ModelResponseError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from tests.fake_clock import FakeClock


def failed(times: int, at_ms: int = 0):
    breaker = CLOSED
    for _ in range(times):
        breaker = breaker.after_failure(at_ms)
    return breaker


@pytest.mark.spec("FOV-016")
def test_it_opens_after_five_failures_for_thirty_seconds_and_then_one_call_tries() -> None:
    """Four are not enough; behind the thirty seconds one call passes, and the next waits for what becomes of it."""
    assert failed(4).asked(0)[0] == 0
    breaker = failed(5, at_ms=100)
    assert (OPENS_AFTER, OPEN_MS) == (5, 30_000)
    assert breaker.asked(100)[0] == 30_000
    assert breaker.asked(30_099)[0] == 1
    wait_ms, tried = breaker.asked(30_100)
    assert (wait_ms, tried.asked(30_101)[0]) == (0, 29_999)
    assert tried.after_failure(31_000).asked(31_000)[0] == 30_000, "one failure of the call that tries opens it again"


@pytest.mark.spec("FOV-016")
@pytest.mark.parametrize(
    ("kind", "after_content", "counted"),
    [
        ("no-connection", False, True),
        ("timeout", False, True),
        ("server-error", False, True),
        ("overload", False, True),
        ("broken-stream", False, True),
        ("server-error", True, False),
        ("broken-stream", True, False),
        ("rate-limit", False, False),
        ("breaker-open", False, False),
        (None, False, False),
    ],
)
def test_what_counts(kind: TransientKind | None, after_content: bool, counted: bool) -> None:
    """Failures that say that nobody is there, before the first content."""
    assert counts(kind, after_content=after_content) is counted


@pytest.mark.parametrize(
    ("failure", "answered"),
    [
        (ModelRateLimitedError("x", status=429), True),
        (ModelRequestError("x", status=400), True),
        (ModelAuthenticationError("x", status=401), True),
        (ModelAuthenticationError("no key is set"), False),
        (ModelRequestError("not sent"), False),
        (ModelTimeoutError("x", status=408), False),
        (ModelUnavailableError("x", status=503), False),
        (ModelResponseError("x"), False),
    ],
)
def test_a_refusal_is_an_answer(failure: ModelError, answered: bool) -> None:
    """A server that refuses is there, unlike one that was not asked, and one behind a gateway that says that it is away."""
    assert is_answer(failure) is answered


async def test_a_call_that_tries_and_is_not_sent_leaves_its_turn_to_the_next() -> None:
    """Behind the thirty seconds one is let pass; if it is held back elsewhere, the next one tries. A failure that opened the
    breaker anew meanwhile is not forgotten by that, and giving back twice changes nothing."""
    clock = FakeClock()
    breakers = MemoryBreakers(clock)
    await breakers.untried("p:m")
    for _ in range(5):
        await breakers.failed("p:m")
    await breakers.untried("p:m")
    assert await breakers.wait_ms("p:m") == 30_000
    clock.advance(30_000)
    assert (await breakers.wait_ms("p:m"), await breakers.wait_ms("p:m")) == (0, 30_000)
    await breakers.untried("p:m")
    assert (await breakers.wait_ms("p:m"), await breakers.wait_ms("p:m")) == (0, 30_000)
    clock.advance(1_000)
    await breakers.failed("p:m")
    await breakers.untried("p:m")
    await breakers.untried("p:m")
    assert await breakers.wait_ms("p:m") == 30_000


@pytest.mark.spec("FOV-016")
async def test_the_first_content_ends_the_row() -> None:
    """By a clock that stands still: four failures, an answer, four failures keep nobody back; the fifth in a row does, for that
    model alone, until something is heard of it."""
    clock = FakeClock()
    breakers = MemoryBreakers(clock)
    for _ in range(4):
        await breakers.failed("p:m")
    breakers.heard("p:m")
    for _ in range(4):
        await breakers.failed("p:m")
    assert await breakers.wait_ms("p:m") == 0
    await breakers.failed("p:m")
    clock.advance(10_000)
    assert (await breakers.wait_ms("p:m"), await breakers.wait_ms("p:other")) == (20_000, 0)
    clock.advance(20_000)
    assert (await breakers.wait_ms("p:m"), await breakers.wait_ms("p:m")) == (0, 30_000)
    breakers.heard("p:m")
    assert await breakers.wait_ms("p:m") == 0
