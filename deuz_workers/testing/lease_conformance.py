"""What every lease provider must do. Subclass it and give it a fixture `bench`::

    class TestMyLeases(LeaseConformance):
        @pytest.fixture
        async def bench(self):
            async with my_bench() as bench:
                yield bench

Tests are coroutines, so pytest needs a plugin that runs them (pytest-asyncio with ``asyncio_mode = "auto"``). For assertions
that explain themselves, call ``pytest.register_assert_rewrite("deuz_workers.testing.lease_conformance")`` in a conftest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from deuz_workers.ports.leases import Gone, Held, Lease, LeaseProvider, Released, Renewed, Young

LONG_MS = 60_000
"""A TTL that no test outlives."""
RENEWER_TIMEOUT_MS = 5_000
KEY = "run:tenant%2Fa/run-1"


class LeaseBench(Protocol):
    """An empty provider, and power over its time and memory."""

    @property
    def leases(self) -> LeaseProvider: ...

    @property
    def short_ms(self) -> int:
        """A TTL that `pass_ms` can let pass: any with a fake clock, some 20 ms with a real one."""
        ...

    async def pass_ms(self, ms: int) -> None:
        """Afterwards the provider's own time has gone on by at least `ms`."""
        ...

    async def forget(self) -> None:
        """Afterwards the provider remembers nothing, as after a flush."""
        ...


class LeaseConformance:
    """The contract of `deuz_workers.ports.leases`, one claim per test."""

    async def test_a_key_has_one_holder(self, bench: LeaseBench) -> None:
        """While one owner holds a key, another gets nothing but the news of who has it and for how long."""
        await claim(bench, "a")
        answer = await bench.leases.acquire(KEY, "b", LONG_MS)
        assert isinstance(answer, Held)
        assert answer.owner == "a"
        assert 0 < answer.ms_left <= LONG_MS

    async def test_one_of_many_simultaneous_claims_wins(self, bench: LeaseBench) -> None:
        """Of twenty claims at once exactly one is granted, and the others name its owner."""
        claims = (bench.leases.acquire(KEY, f"owner-{n}", LONG_MS, force=True) for n in range(20))
        answers = await asyncio.gather(*claims)
        winners = [answer for answer in answers if isinstance(answer, Lease)]
        assert len(winners) == 1
        assert {answer.owner for answer in answers if isinstance(answer, Held)} == {winners[0].owner}

    async def test_keys_are_independent(self, bench: LeaseBench) -> None:
        """Another key is free while one is held."""
        await claim(bench, "a")
        assert isinstance(await bench.leases.acquire(f"{KEY}0", "b", LONG_MS, force=True), Lease)

    async def test_tokens_grow_with_every_new_holder(self, bench: LeaseBench) -> None:
        """Each new holder's token is greater than the one before, whether that was released or lapsed."""
        first = await claim(bench, "a")
        await bench.leases.release(first)
        second = await lapsed(bench, "b")
        third = await claim(bench, "c")
        assert first.token < second.token < third.token

    async def test_a_renewal_prolongs(self, bench: LeaseBench) -> None:
        """A lease renewed for longer is held past the end that it had before."""
        lease = await claim(bench, "a", bench.short_ms)
        renew(bench, replace(lease, ttl_ms=LONG_MS))
        await bench.pass_ms(bench.short_ms)
        assert isinstance(await bench.leases.acquire(KEY, "b", LONG_MS), Held)

    async def test_expiry_alone_is_not_loss(self, bench: LeaseBench) -> None:
        """A lapsed lease that nobody claimed is renewed, and is held again."""
        lease = replace(await lapsed(bench, "a"), ttl_ms=LONG_MS)
        assert isinstance(renew(bench, lease), Renewed)
        assert isinstance(await bench.leases.acquire(KEY, "b", LONG_MS), Held)

    async def test_a_lapsed_lease_goes_to_the_next_claim(self, bench: LeaseBench) -> None:
        """Nobody waits longer than the TTL of a holder that died."""
        await lapsed(bench, "a")
        assert isinstance(await bench.leases.acquire(KEY, "b", LONG_MS, force=True), Lease)

    async def test_a_superseded_holder_is_told_gone(self, bench: LeaseBench) -> None:
        """Once somebody else claimed the lapsed key, the old holder's renewal says so, and changes nothing."""
        old = await lapsed(bench, "a")
        new = await claim(bench, "b")
        assert renew(bench, old) == Gone()
        assert isinstance(renew(bench, new), Renewed)

    async def test_a_taken_over_and_released_key_is_gone_too(self, bench: LeaseBench) -> None:
        """A holder whose key was taken over and given back meanwhile is not let in again."""
        old = await lapsed(bench, "a")
        await bench.leases.release(await claim(bench, "b"))
        assert renew(bench, old) == Gone()

    async def test_an_outdated_release_has_no_effect(self, bench: LeaseBench) -> None:
        """The current holder keeps the key, and its mark, when an old one gives it back."""
        old = await lapsed(bench, "a")
        new = await claim(bench, "b")
        await bench.leases.acquire(KEY, "c", LONG_MS)
        assert await bench.leases.release(old) == Gone()
        assert await bench.leases.release(replace(new, token=old.token)) == Gone()
        assert await bench.leases.release(new) == Released(again=True)

    async def test_a_released_key_is_free(self, bench: LeaseBench) -> None:
        """The next claim is granted at once and learns of no predecessor."""
        await bench.leases.release(await claim(bench, "a"))
        assert (await bench.leases.peek(KEY)).ms_left is None
        assert (await claim(bench, "b")).predecessor == "none"

    async def test_a_claim_learns_that_its_predecessor_lapsed(self, bench: LeaseBench) -> None:
        """A lease that was not given back is news: its step may have ended in the middle."""
        await lapsed(bench, "a")
        assert (await claim(bench, "b")).predecessor == "lapsed"

    async def test_a_second_claim_of_the_same_owner_is_the_same_lease(self, bench: LeaseBench) -> None:
        """It has the token it had, is held from now on, and knows that it was its own."""
        first = await claim(bench, "a", bench.short_ms)
        second = await claim(bench, "a")
        assert second == replace(first, ttl_ms=LONG_MS, predecessor="mine")
        await bench.pass_ms(bench.short_ms)
        assert isinstance(await bench.leases.acquire(KEY, "b", LONG_MS), Held)

    async def test_a_release_tells_whether_somebody_rang(self, bench: LeaseBench) -> None:
        """A claim that met a held key is returned to the holder with the release; without one there is nothing to tell."""
        quiet = await claim(bench, "a")
        assert await bench.leases.release(quiet) == Released(again=False)
        rung = await claim(bench, "b")
        await bench.leases.acquire(KEY, "c", LONG_MS)
        renew(bench, rung)
        assert await bench.leases.release(rung) == Released(again=True)

    async def test_the_mark_belongs_to_one_holder(self, bench: LeaseBench) -> None:
        """Who rang a holder that died is not told to the next one, whose own claim is the answer to it."""
        lease = await claim(bench, "a")
        await bench.leases.acquire(KEY, "b", LONG_MS)
        renew(bench, replace(lease, ttl_ms=bench.short_ms))
        await bench.pass_ms(bench.short_ms)
        assert await bench.leases.release(await claim(bench, "c")) == Released(again=False)

    async def test_a_second_release_finds_nothing(self, bench: LeaseBench) -> None:
        """Releasing twice is harmless, also when somebody else holds the key by then."""
        old = await claim(bench, "a")
        await bench.leases.release(old)
        assert await bench.leases.release(old) == Gone()
        new = await claim(bench, "b")
        assert await bench.leases.release(old) == Gone()
        assert isinstance(renew(bench, new), Renewed)

    async def test_a_signal_says_whether_anybody_holds_the_key(self, bench: LeaseBench) -> None:
        """True with a holder; False with none, and with one that lapsed."""
        for kind in ("cancel", "drain"):
            assert await bench.leases.signal(KEY, kind) is False
        lease = await claim(bench, "a")
        for kind in ("cancel", "drain"):
            assert await bench.leases.signal(KEY, kind) is True
        await bench.leases.release(lease)
        await lapsed(bench, "b")
        assert await bench.leases.signal(KEY, "cancel") is False

    async def test_a_signal_is_handed_over_once(self, bench: LeaseBench) -> None:
        """The first renewal brings it, sent twice or not; the next one brings nothing."""
        lease = await claim(bench, "a")
        for kind in ("cancel", "drain"):
            await bench.leases.signal(KEY, kind)
            await bench.leases.signal(KEY, kind)
            assert [signal_of(renew(bench, lease)) for _ in range(2)] == [kind, ""]

    async def test_two_signals_come_one_after_the_other(self, bench: LeaseBench) -> None:
        """A cancel goes first, and the drain is not lost."""
        lease = await claim(bench, "a")
        await bench.leases.signal(KEY, "drain")
        await bench.leases.signal(KEY, "cancel")
        assert [signal_of(renew(bench, lease)) for _ in range(3)] == ["cancel", "drain", ""]

    async def test_a_cancel_waits_for_a_holder(self, bench: LeaseBench) -> None:
        """It outlives a release and a holder that died, and reaches whoever renews first."""
        first = await claim(bench, "a")
        await bench.leases.signal(KEY, "cancel")
        await bench.leases.release(first)
        await lapsed(bench, "b")
        third = await claim(bench, "c")
        assert [signal_of(renew(bench, third)) for _ in range(2)] == ["cancel", ""]

    async def test_a_drain_dies_with_its_holder(self, bench: LeaseBench) -> None:
        """The next holder does not hear of it: not after a release, not after a lapse, not when nobody held the key."""
        first = await claim(bench, "a")
        await bench.leases.signal(KEY, "drain")
        await bench.leases.release(first)
        await bench.leases.signal(KEY, "drain")
        second = await claim(bench, "b", bench.short_ms)
        assert signal_of(renew(bench, second)) == ""
        await bench.leases.signal(KEY, "drain")
        await bench.pass_ms(second.ttl_ms)
        assert signal_of(renew(bench, await claim(bench, "c"))) == ""

    async def test_one_call_renews_many_in_order(self, bench: LeaseBench) -> None:
        """Each lease has its own answer at its own place, and one that is gone does not touch its neighbours."""
        leases = [await claim(bench, f"owner-{n}", key=f"{KEY}-{n}") for n in range(5)]
        await bench.leases.release(leases[2])
        await bench.leases.signal(leases[4].key, "cancel")
        answers = renew_all(bench, leases)
        assert answers[2] == Gone()
        assert [answer.lease for answer in answers if isinstance(answer, Renewed)] == [*leases[:2], *leases[3:]]
        assert signal_of(answers[3]) == ""
        assert signal_of(answers[4]) == "cancel"
        assert list(renew_all(bench, [])) == []

    async def test_a_look_changes_nothing(self, bench: LeaseBench) -> None:
        """A peek tells what is left of a lease and whose it is, and leaves no mark; a free and a lapsed key have neither."""
        assert (await bench.leases.peek(KEY)).ms_left is None
        lease = await claim(bench, "a")
        peek = await bench.leases.peek(KEY)
        assert peek.ms_left is not None
        assert 0 < peek.ms_left <= LONG_MS
        assert peek.owner == "a"
        assert await bench.leases.release(lease) == Released(again=False)
        await lapsed(bench, "b")
        lapsed_peek = await bench.leases.peek(KEY)
        assert (lapsed_peek.ms_left, lapsed_peek.owner) == (None, "")

    async def test_the_highest_revision_outlives_a_dead_holder(self, bench: LeaseBench) -> None:
        """The next holder is told the highest revision that its predecessor claimed or renewed with."""
        lease = await lapsed(bench, "a", revision=7)
        renew(bench, replace(lease, revision_seen=9))
        await bench.pass_ms(lease.ttl_ms)
        lower = await claim(bench, "b", bench.short_ms, revision=8)
        assert lower.revision_seen == 9
        await bench.pass_ms(lower.ttl_ms)
        assert (await claim(bench, "c", revision=10)).revision_seen == 10

    async def test_a_young_memory_claims_nothing(self, bench: LeaseBench) -> None:
        """After a loss of memory a key without a predecessor is not claimed for a TTL, and the answer says how long."""
        await bench.forget()
        answer = await bench.leases.acquire(KEY, "a", LONG_MS)
        assert isinstance(answer, Young)
        assert 0 < answer.ms_until_old <= LONG_MS
        assert (await bench.leases.peek(KEY)).ms_left is None
        assert (await bench.leases.acquire(KEY, "b", LONG_MS, force=True)) == replace(
            await claim(bench, "b"), predecessor="none"
        )

    async def test_a_memory_grows_old(self, bench: LeaseBench) -> None:
        """Once the memory has the age of the TTL, a key without a predecessor is claimed."""
        await bench.forget()
        await bench.leases.peek(KEY)
        await bench.pass_ms(bench.short_ms)
        assert (await bench.leases.peek(KEY)).memory_age_ms >= bench.short_ms
        assert isinstance(await bench.leases.acquire(KEY, "a", bench.short_ms), Lease)

    async def test_a_living_holder_comes_back_after_a_loss_of_memory(self, bench: LeaseBench) -> None:
        """Its renewal re-creates the lease in the new epoch before anybody else is let in, and later tokens are greater."""
        lease = await claim(bench, "a")
        await bench.forget()
        assert isinstance(await bench.leases.acquire(KEY, "b", LONG_MS), Young)
        answer = renew(bench, lease)
        assert isinstance(answer, Renewed)
        assert answer.lease == replace(lease, epoch=answer.lease.epoch)
        assert answer.lease.epoch != lease.epoch
        assert isinstance(await bench.leases.acquire(KEY, "b", LONG_MS, force=True), Held)
        assert await bench.leases.release(answer.lease) == Released(again=True)
        assert (await claim(bench, "c")).token > lease.token

    async def test_only_the_first_comes_back(self, bench: LeaseBench) -> None:
        """Whoever renews after somebody else claimed the forgotten key is told that it is gone."""
        old = await claim(bench, "a")
        await bench.forget()
        new = await claim(bench, "b")
        assert renew(bench, old) == Gone()
        assert isinstance(renew(bench, new), Renewed)

    async def test_a_release_into_a_new_memory_counts_as_rung(self, bench: LeaseBench) -> None:
        """The mark was forgotten with the lease, so the holder rings once more."""
        lease = await claim(bench, "a")
        await bench.forget()
        assert await bench.leases.release(lease) == Released(again=True)

    async def test_a_closed_provider_opens_again(self, bench: LeaseBench) -> None:
        """Closing gives up connections, so another call works; closing twice is harmless."""
        await bench.leases.close()
        await bench.leases.close()
        assert isinstance(await claim(bench, "a"), Lease)


async def claim(bench: LeaseBench, owner: str, ttl_ms: int = LONG_MS, *, key: str = KEY, revision: int = 0) -> Lease:
    """The lease of a claim that must be granted, however young the memory is."""
    answer = await bench.leases.acquire(key, owner, ttl_ms, revision=revision, force=True)
    assert isinstance(answer, Lease), answer
    return answer


async def lapsed(bench: LeaseBench, owner: str, *, revision: int = 0) -> Lease:
    """A lease whose TTL has passed without a release."""
    lease = await claim(bench, owner, bench.short_ms, revision=revision)
    await bench.pass_ms(lease.ttl_ms)
    return lease


def renew(bench: LeaseBench, lease: Lease) -> Renewed | Gone:
    """The answer to a renewal of this one."""
    return renew_all(bench, [lease])[0]


def renew_all(bench: LeaseBench, leases: Sequence[Lease]) -> Sequence[Renewed | Gone]:
    renewer = bench.leases.renewer(timeout_ms=RENEWER_TIMEOUT_MS)
    try:
        return renewer.renew(leases)
    finally:
        renewer.close()


def signal_of(answer: Renewed | Gone) -> str:
    assert isinstance(answer, Renewed), answer
    return answer.signal
