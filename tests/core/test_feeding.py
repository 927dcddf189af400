"""Who gets the next places in a queue."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from deuz_workers.core.feeding import Waiting, choose

QUEUES = st.lists(
    st.builds(
        Waiting,
        run=st.binary(min_size=2, max_size=2),
        key=st.sampled_from("abcd"),
        priority=st.integers(-2, 2),
        since_ms=st.integers(0, 50),
        running=st.just(0),
    ),
    max_size=40,
    unique_by=lambda run: run.run,
)


def runs(key: str, count: int, *, running: int = 0, priority: int = 0, since_ms: int = 0) -> list[Waiting]:
    return [Waiting(f"{key}{n:02}".encode(), key, priority, since_ms + n, running) for n in range(count)]


def keys(waiting: list[Waiting], room: int, spare: int = 0) -> str:
    """Keys of those that were chosen, in order."""
    return "".join(run[:1].decode() for run in choose(waiting, room, spare))


def test_keys_take_turns_and_then_the_older_one_begins() -> None:
    """Whoever has a backlog gets every second place while another one waits, and the rest when nobody does."""
    assert keys([*runs("a", 9), *runs("b", 3, since_ms=100)], 8) == "abababaa"


def test_a_key_of_which_more_runs_waits_until_others_have_as_many() -> None:
    """Two at work count like two turns."""
    assert keys([*runs("a", 9, running=2), *runs("b", 9, since_ms=100)], 6) == "bbabab"


def test_a_priority_goes_before_everything() -> None:
    """Whatever runs already."""
    assert keys([*runs("a", 2, running=9, priority=1), *runs("b", 3)], 3) == "aab"


def test_spare_places_are_for_keys_of_which_nothing_runs() -> None:
    """One each, in a queue that has no room; whoever was chosen anyway takes none."""
    waiting = [*runs("a", 5, running=1, priority=5), *runs("b", 5), *runs("c", 5)]
    assert keys(waiting, 0, spare=9) == "bc"
    assert keys(waiting, -3, spare=1) == "b"
    assert keys(waiting, 6, spare=2) == "aaaaabc"


@given(QUEUES, st.integers(0, 50), st.integers(0, 5))
def test_a_choice_is_the_best_of_what_waits(waiting: list[Waiting], room: int, spare: int) -> None:
    """Nobody is chosen twice, no room is left beside somebody who waits, and none who waits has a higher priority than one
    that got room, nor an older turn of the same key."""
    chosen = choose(waiting, room, spare)
    assert len(chosen) == len(set(chosen)) <= room + spare
    assert len(chosen) >= min(room, len(waiting))
    by_run = {run.run: run for run in waiting}
    placed = [by_run[run] for run in chosen[: min(room, len(waiting))]]
    left = [run for run in waiting if run.run not in set(chosen)]
    if placed and left:
        assert max(run.priority for run in left) <= min(run.priority for run in placed)
    for key in "abcd":
        mine = sorted((-run.priority, run.since_ms, run.run) for run in waiting if run.key == key)
        taken = sum(by_run[run].key == key for run in chosen)
        assert {run for *_, run in mine[:taken]} == {run for run in chosen if by_run[run].key == key}
    if len({run.priority for run in waiting}) == 1 and not spare:
        turns, most = Counter(run.key for run in placed), Counter(run.key for run in waiting)
        for key in most:  # nobody has two turns more than one that still waits
            assert turns[key] == most[key] or turns[key] >= max(turns.values(), default=0) - 1
