"""The real clock and real ids."""

from __future__ import annotations

import threading
from uuid import RFC_4122, UUID

from deuz_workers.engine.system_clock import SystemClock, SystemIds
from tests.fake_clock import FakeClock
from tests.forked import holds_in_child


def date_ms(rid: UUID) -> int:
    return rid.int >> 80


async def test_the_clock_goes_on() -> None:
    """Its monotonic time does not go back over a sleep, which takes at least as long as asked for."""
    clock = SystemClock()
    before = clock.monotonic_ms()
    await clock.sleep_ms(2)
    assert clock.monotonic_ms() >= before + 1  # both ends were rounded down


def test_rids_are_version_7_and_dated() -> None:
    """Anybody who reads UUIDs sees the version, the variant and the millisecond of the clock."""
    clock = FakeClock()
    rid = SystemIds(clock).rid()
    assert (rid.version, rid.variant) == (7, RFC_4122)
    assert date_ms(rid) == clock.unix_ms()


def test_rids_grow_within_a_process() -> None:
    """Ids of one millisecond, and of a clock that went back, are greater than all before them."""
    clock = FakeClock()
    ids = SystemIds(clock)
    made = [ids.rid() for _ in range(1_000)]
    clock.advance(-60_000)
    made += [ids.rid() for _ in range(1_000)]
    assert made == sorted(set(made))
    clock.advance(120_000)
    assert date_ms(ids.rid()) == clock.unix_ms()


def test_rids_are_unique_over_threads() -> None:
    """Two threads never get the same id."""
    ids = SystemIds(FakeClock())
    made: list[UUID] = []
    threads = [threading.Thread(target=lambda: made.extend(ids.rid() for _ in range(500))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 2_000


def test_a_forked_child_makes_ids_of_its_own() -> None:
    """It does not continue its parent's sequence, whose next ids lie within 32 random bits of the last one."""
    ids = SystemIds(FakeClock())
    last = ids.rid()
    assert holds_in_child(lambda: abs(ids.rid().int - last.int) > 1 << 40)


def test_commit_ids_and_tokens_are_random() -> None:
    """A commit id is a UUID without a date, a token 32 hex digits; none comes twice."""
    ids = SystemIds()
    commit_ids = {ids.commit_id() for _ in range(100)}
    tokens = {ids.token() for _ in range(100)}
    assert len(commit_ids) == len(tokens) == 100
    assert {commit_id.version for commit_id in commit_ids} == {4}
    assert all(len(token) == 32 and int(token, 16) >= 0 for token in tokens)
