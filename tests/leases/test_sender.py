"""A verb whose answer gets lost, whichever server it is sent to."""

from __future__ import annotations

import pytest

from deuz_workers.errors import LeaseStoreUnavailableError
from deuz_workers.leases.sender import Sender
from deuz_workers.ports.leases import Gone, Released


def sender(*answers: str | None) -> tuple[Sender[str, str], list[str]]:
    """One whose attempts are answered so, None for a lost answer; and what was sent."""
    left, sent = list(answers), list[str]()

    async def exchange(call: str) -> str:
        sent.append(call)
        answer = left.pop(0)
        if answer is None:
            raise OSError
        return answer

    return Sender(exchange, (OSError,), lambda error: LeaseStoreUnavailableError(type(error).__name__)), sent


def read(answer: str) -> Released | Gone:
    return Gone() if answer == "gone" else Released(again=answer == "again")


async def test_a_call_is_sent_once_more_and_no_oftener() -> None:
    """The answer says whether it was; a second loss means that nothing is known."""
    for answers, expected in ((("yes",), ("yes", False)), ((None, "yes"), ("yes", True))):
        asking, sent = sender(*answers)
        assert await asking.ask("call") == expected
        assert sent == ["call"] * len(answers)
    asking, sent = sender(None, None, "yes")
    with pytest.raises(LeaseStoreUnavailableError, match="OSError"):
        await asking.ask("call")
    assert sent == ["call"] * 2


@pytest.mark.parametrize(
    ("answers", "released"),
    [
        (("free",), Released(again=False)),
        (("again",), Released(again=True)),
        (("gone",), Gone()),
        ((None, "free"), Released(again=False)),
        ((None, "gone"), Released(again=True)),
        ((None, None), Released(again=True)),
    ],
)
async def test_a_release_that_nobody_confirmed_may_have_been_rung(
    answers: tuple[str | None, ...], released: Released | Gone
) -> None:
    """A lease that is gone at the second sending may have been given back by the first, with a mark that nobody read."""
    asking, _ = sender(*answers)
    assert await asking.give_back("release", read) == released
