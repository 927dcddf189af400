"""Approval tokens: what they bind, and what is none."""

from __future__ import annotations

import pytest

from deuz_workers import ConfigurationError
from deuz_workers.core.approval_token import ApprovalSigner, ApprovalToken

SIGNER = ApprovalSigner("k" * 32, ttl_s=60)
NOW_MS = 1_000_000_000_000


def token() -> str:
    return SIGNER.sign("shop", "r1", "c1@00ff", now_ms=NOW_MS)


@pytest.mark.spec("APR-016")
def test_a_token_has_three_segments_and_says_what_it_was_made_for() -> None:
    """`v1.<payload>.<mac>`; reading gives the payload back."""
    form, payload, mac = token().split(".")
    assert form == "v1"
    assert payload
    assert mac
    assert SIGNER.read(token(), now_ms=NOW_MS) == ApprovalToken("shop", "r1", "c1@00ff", NOW_MS // 1000 + 60)


@pytest.mark.spec("APR-016")
def test_an_expired_token_is_none() -> None:
    """Good for its time to the last millisecond, and nothing after; without a clock only its making is checked."""
    assert SIGNER.read(token(), now_ms=NOW_MS + 59_999) is not None
    assert SIGNER.read(token(), now_ms=NOW_MS + 60_000) is None
    assert SIGNER.read(token(), now_ms=None) is not None


@pytest.mark.spec("APR-016")
@pytest.mark.parametrize("place", range(3))
def test_a_token_that_was_changed_anywhere_is_none(place: int) -> None:
    """One character of any segment is enough."""
    parts = token().split(".")
    parts[place] = ("B" if parts[place][0] != "B" else "C") + parts[place][1:]
    assert SIGNER.read(".".join(parts), now_ms=NOW_MS) is None


@pytest.mark.spec("APR-016")
@pytest.mark.parametrize(
    "odd", [None, "", "v1", "v1.x.y", 7, "é.ü.ß", "v1..", b"v1.x.y", "\ud800.x.y", {"token": 1}, "." * 10_000], ids=repr
)
def test_whatever_is_no_token_is_none(odd: object) -> None:
    """Reading never raises."""
    assert SIGNER.read(odd, now_ms=NOW_MS) is None


@pytest.mark.spec("APR-016")
def test_a_further_segment_and_another_key_make_it_none() -> None:
    """Three segments, no more; and the key decides."""
    assert SIGNER.read(token() + ".x", now_ms=NOW_MS) is None
    assert SIGNER.read("x." + token(), now_ms=NOW_MS) is None
    assert ApprovalSigner("l" * 32).read(token(), now_ms=NOW_MS) is None


@pytest.mark.spec("APR-016")
def test_an_empty_secret_is_refused() -> None:
    """When the signer is made, before any request is shown."""
    with pytest.raises(ConfigurationError, match="empty"):
        ApprovalSigner("")


def test_a_token_fits_one_request_of_one_run() -> None:
    """Another scope, run or request: it does not fit."""
    names = ("shop", "r1", "c1@00ff")
    assert SIGNER.fits(token(), *names, now_ms=NOW_MS)
    for place in range(3):
        other = [*names]
        other[place] = "other"
        assert not SIGNER.fits(token(), *other, now_ms=NOW_MS)
