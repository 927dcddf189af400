"""Which words about interrupted calls count: all of a note, or none while it leaves a call open."""

from __future__ import annotations

import pytest

from deuz_workers.core.receipts import Receipt
from deuz_workers.core.reconciliation import Word, accepted


def interrupted(call_id: str, *, idempotent: bool = False, attempt: int = 1) -> Receipt:
    return Receipt(3, call_id, 0, "executing", "pay", idempotent, attempt)


RECEIPTS = {"a": interrupted("a"), "b": interrupted("b", attempt=2), "c": interrupted("c", idempotent=True)}
ABOUT_A, ABOUT_B = Word("a", output="paid", step=3, attempt=1), Word("b", again=True, step=3, attempt=2)


def test_words_about_every_unknown_call_count() -> None:
    """What may be repeated needs no word, and may have one."""
    assert accepted([ABOUT_A, ABOUT_B], RECEIPTS) == (ABOUT_A, ABOUT_B)
    about_c = Word("c", output=1)
    assert accepted([ABOUT_A, ABOUT_B, about_c], RECEIPTS) == (ABOUT_A, ABOUT_B, about_c)


@pytest.mark.parametrize(
    "left",
    [
        [ABOUT_A],
        [ABOUT_B],
        [ABOUT_A, Word("b", again=True, step=3, attempt=1)],
        [ABOUT_A, Word("b", again=True, step=2, attempt=2)],
        [],
    ],
    ids=["b is open", "a is open", "another execution", "another turn", "nothing"],
)
def test_no_word_counts_while_a_call_is_left_open(left: list[Word]) -> None:
    """Half of an answer would let a run go on half settled."""
    assert accepted(left, RECEIPTS) == ()


def test_a_call_that_is_settled_otherwise_needs_no_word() -> None:
    """Such as one that the registered tool says may be repeated."""
    assert accepted([ABOUT_A], RECEIPTS, settled={"b"}) == (ABOUT_A,)
