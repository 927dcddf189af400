"""What looks like a secret is masked, and no text takes long."""

from __future__ import annotations

import pytest

from deuz_workers.core.redaction import redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("key sk-abcdef123456 was refused", "key *** was refused"),
        ("postgresql+psycopg://ann:pass@db/x", "postgresql+psycopg://ann:***@db/x"),
        ("see x" + "y" * 100 + "://ann:pass@db", "see x" + "y" * 100 + "://ann:***@db"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl, then", "***, then"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0", "***"),
        ("password: hunter22", "password: ***"),
        ("http://db:5432/x and a@b", "http://db:5432/x and a@b"),
    ],
)
def test_secrets_are_masked_and_the_rest_stays(text: str, shown: str) -> None:
    """Whatever stands around them."""
    assert redact(text) == shown


@pytest.mark.parametrize("piece", ["a", "a.", "eyJ-", "-----BEGIN ", "://", "a:", "Bearer ", "token ", "deuz_a_", "gho-"])
def test_a_long_text_is_looked_through_once(piece: str) -> None:
    """With a pattern that begins anew at every place this would not end while anybody waits."""
    text = piece * (500_000 // len(piece))
    assert redact(f"{text} sk-abcdef123456").endswith(" ***")
