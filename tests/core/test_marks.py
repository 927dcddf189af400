"""Revisions that only the pool itself can have written."""

from __future__ import annotations

import pytest

from deuz_workers.core.lost_commits import LEAP, revision_after, seen_before
from deuz_workers.core.marks import Marks

SECRET = b"the pool's"


def test_a_mark_is_read_by_whoever_has_the_secret() -> None:
    """And says the revision that was written."""
    assert Marks(SECRET).read("run:s/r", Marks(SECRET).write("run:s/r", 41)) == 41


@pytest.mark.parametrize(
    "mark",
    [
        "",
        "7",
        "7:",
        ":",
        "7:0123456789abcdef0123456789abcdef",
        "-7:x",
        "\u0667:x",
        "9" * 5_000 + ":x",
        Marks(b"another pool's").write("run:s/r", 7),
        Marks(SECRET).write("run:s/other", 7),
        Marks(SECRET, "bell").write("run:s/r", 7),
        Marks(SECRET).write("run:s/r", 7).replace("7:", "8:", 1),
        Marks(SECRET).write("run:s/r", 7).replace("7:", "07:", 1) + "0",
        "7:\u00e4",
    ],
)
def test_what_the_pool_did_not_sign_for_this_very_lease_is_nothing(mark: str) -> None:
    """Of another pool, another run, another kind, with another number, or no mark at all."""
    assert Marks(SECRET).read("run:s/r", mark) == 0


def test_without_a_secret_nothing_is_written_and_nothing_is_believed() -> None:
    """An unsigned revision could be anybody's."""
    assert Marks(None).write("run:s/r", 7) == "0"
    assert Marks(None).read("run:s/r", Marks(b"").write("run:s/r", 7)) == 0
    assert Marks(None).read("run:s/r", "7") == 0


def test_a_run_that_lost_commits_goes_on_above_all_that_was_seen() -> None:
    """Whatever the executors of the lost record still do, they do not reach it."""
    assert revision_after(41) == 41 + LEAP
    assert seen_before(revision_after(41)) == 41
