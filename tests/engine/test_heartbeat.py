"""The heartbeat's rounds, under a clock that a test moves: what a holder is told, and when nobody vouches for it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

import pytest

from deuz_workers.engine.heartbeat import Heartbeat
from deuz_workers.engine.hold import Hold
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.leases import Gone, Held, Lease
from deuz_workers.testing.lying_leases import LyingLeases
from tests.engine.spy_leases import SpyLeases
from tests.fake_clock import FakeClock

TTL_MS = 30_000
LIMIT_MS = 600_000
KEY = "run:tenant/1"


def ignore() -> None:
    """A callback of one who does not want to know."""


@dataclass(slots=True)
class Bench:
    """A heartbeat without a thread: its rounds are called by the test."""

    clock: FakeClock
    leases: SpyLeases
    heartbeat: Heartbeat
    told: list[str] = field(default_factory=list[str])

    async def claim(self, owner: str = "me", key: str = KEY, *, force: bool = False) -> Lease:
        answer = await self.leases.acquire(key, owner, TTL_MS, force=force)
        assert isinstance(answer, Lease)
        return answer

    async def hold(self, key: str = KEY, *, limit_ms: int = LIMIT_MS, label: str = "tool:charge") -> Hold:
        return self.heartbeat.hold(
            await self.claim(key=key),
            limit_ms=limit_ms,
            on_lost=lambda: self.told.append("lost"),
            on_cancel=lambda: self.told.append("cancel"),
            label=label,
        )

    def beats_for(self, ms: int) -> None:
        """As many rounds as the thread would make in this time."""
        for _ in range(ms // (TTL_MS // 3)):
            self.clock.advance(TTL_MS // 3)
            self.heartbeat.beat()


@pytest.fixture
async def bench() -> AsyncGenerator[Bench]:
    clock = FakeClock()
    leases = SpyLeases(clock)
    yield Bench(clock, leases, Heartbeat(leases, TTL_MS, clock, threaded=False))
    await leases.close()


async def test_renewals_keep_a_lease(bench: Bench) -> None:
    """A lease is held for many times its TTL, as long as rounds are made."""
    hold = await bench.hold()
    bench.beats_for(10 * TTL_MS)
    assert (hold.state, hold.may_start, bench.told) == ("held", True, [])
    assert isinstance(await bench.leases.acquire(KEY, "other", TTL_MS), Held)


async def test_one_call_renews_all(bench: Bench) -> None:
    """Every round is one call for all leases of the process, over one connection whose waits fit a third of the TTL."""
    for n in range(64):
        await bench.hold(f"{KEY}-{n}")
    bench.beats_for(TTL_MS)
    assert bench.leases.renewed == [[f"{KEY}-{n}" for n in range(64)]] * 3
    assert len(bench.leases.timeouts_ms) == 1
    assert 3 * bench.leases.timeouts_ms[0] <= TTL_MS // 3


async def test_nothing_held_is_nothing_asked(bench: Bench) -> None:
    """Without leases the provider is left alone."""
    bench.beats_for(TTL_MS)
    assert bench.leases.renewed == []
    assert bench.leases.timeouts_ms == []


async def test_a_lost_lease_is_told_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """When somebody else claimed it, the holder hears of it once, may start nothing, and is not renewed any more."""
    hold = await bench.hold()
    bench.clock.advance(TTL_MS)
    await bench.claim("other")
    bench.beats_for(TTL_MS)
    assert (hold.state, hold.may_start, bench.told) == ("lost", False, ["lost"])
    assert bench.leases.renewed == [[KEY]]
    assert [record.getMessage() for record in caplog.records] == [f"lease_lost key={KEY} label=tool:charge"]


async def test_silence_is_no_loss(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """An unreachable provider makes a lease suspected after its TTL: nothing new starts, nobody is told, and it comes back."""
    hold = await bench.hold()
    bench.leases.silent = True
    bench.beats_for(TTL_MS - TTL_MS // 3)
    assert (hold.state, hold.may_start) == ("held", True)
    bench.beats_for(3 * TTL_MS)
    assert (hold.state, hold.may_start, bench.told) == ("suspected", False, [])
    bench.leases.silent = False
    bench.heartbeat.beat()
    assert (hold.state, hold.may_start, bench.told) == ("held", True, [])
    events = [record.getMessage().partition(" ")[0] for record in caplog.records]
    assert events == ["leases_unconfirmed", "leases_confirmed"]


async def test_silence_may_hide_a_loss(bench: Bench) -> None:
    """A lease that went to somebody else meanwhile is lost at the first answer after the silence."""
    hold = await bench.hold()
    bench.leases.silent = True
    bench.beats_for(2 * TTL_MS)
    await bench.claim("other")
    bench.leases.silent = False
    bench.heartbeat.beat()
    assert (hold.state, bench.told) == ("lost", ["lost"])


async def test_a_confirmation_counts_from_when_it_was_asked_for(bench: Bench) -> None:
    """A slow answer does not stretch what the provider granted before it."""
    hold = await bench.hold()
    bench.leases.during = lambda: bench.clock.advance(TTL_MS)
    bench.heartbeat.beat()
    assert hold.state == "suspected"


async def test_a_cancel_is_told_once(bench: Bench) -> None:
    """A signal reaches the holder with the next renewal and not again, and the lease stays."""
    hold = await bench.hold()
    await bench.leases.signal(KEY, "cancel")
    bench.beats_for(2 * TTL_MS)
    assert (hold.state, bench.told) == ("held", ["cancel"])


async def test_every_cancel_is_told(bench: Bench) -> None:
    """A forged signal, which points at no row, does not silence the true one after it."""
    await bench.hold()
    for _ in range(2):
        await bench.leases.signal(KEY, "cancel")
        bench.beats_for(TTL_MS)
    assert bench.told == ["cancel", "cancel"]


async def test_a_drain_is_kept_for_the_holder_to_see(bench: Bench) -> None:
    """It calls nobody, since the step may end in its own time."""
    hold = await bench.hold()
    await bench.leases.signal(KEY, "drain")
    assert not hold.drain_asked
    bench.beats_for(TTL_MS)
    assert hold.drain_asked
    assert bench.told == []


async def test_nobody_vouches_past_the_limit(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A step that does not end within its limit lapses, is named in the log once, and another owner can take over."""
    wedged = await bench.hold("run:a/wedged", limit_ms=TTL_MS, label="tool:sleepy")
    fine = await bench.hold("run:a/fine", limit_ms=LIMIT_MS)
    bench.beats_for(3 * TTL_MS)
    assert wedged.is_past_limit
    assert (wedged.state, wedged.may_start, fine.state) == ("suspected", False, "held")
    assert [record.getMessage() for record in caplog.records] == ["lease_limit_passed key=run:a/wedged label=tool:sleepy"]
    assert (await bench.claim("other", "run:a/wedged")).predecessor == "lapsed"


async def test_the_limit_starts_again_with_the_next_effect(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A step of many turns is vouched for as long as each of its parts is within its own limit."""
    hold = await bench.hold(limit_ms=TTL_MS)
    for n in range(5):
        hold.extend(TTL_MS + 1, f"tool:part-{n}")
        bench.beats_for(TTL_MS)
        assert (hold.state, hold.label) == ("held", f"tool:part-{n}")
    assert caplog.records == []


async def test_an_extension_brings_a_lapsed_lease_back(bench: Bench) -> None:
    """Expiry alone is not loss: a step that goes on after its limit is renewed again, if nobody claimed it."""
    hold = await bench.hold(limit_ms=TTL_MS)
    bench.beats_for(3 * TTL_MS)
    hold.extend(LIMIT_MS)
    assert not hold.may_start
    bench.beats_for(TTL_MS)
    assert hold.may_start


async def test_a_dropped_lease_is_left_alone(bench: Bench) -> None:
    """It is renewed no more, and what is known of it stays; dropping twice is harmless."""
    hold = await bench.hold()
    kept = await bench.hold(f"{KEY}-kept")
    bench.heartbeat.drop(hold)
    bench.heartbeat.drop(hold)
    bench.beats_for(TTL_MS)
    assert bench.leases.renewed == [[kept.lease.key]] * 3
    assert list(bench.heartbeat.holds) == [kept]


async def test_an_answer_after_the_drop_means_nothing(bench: Bench) -> None:
    """A renewal on its way while the lease is dropped and released does not report it as lost."""
    hold = await bench.hold()
    await bench.leases.release(hold.lease)
    bench.leases.during = lambda: bench.heartbeat.drop(hold)
    bench.heartbeat.beat()
    assert (hold.state, bench.told) == ("held", [])


async def test_a_forgotten_lease_is_created_again(bench: Bench) -> None:
    """After a flush the renewal puts the lease into the new memory, and the hold carries the epoch that its release needs."""
    hold = await bench.hold()
    epoch = hold.lease.epoch
    await bench.leases.forget()
    bench.beats_for(TTL_MS)
    assert (hold.state, bench.told) == ("held", [])
    assert hold.lease.epoch != epoch
    assert isinstance(await bench.leases.acquire(KEY, "other", TTL_MS, force=True), Held)
    assert not isinstance(await bench.leases.release(hold.lease), Gone)


async def test_a_callback_that_raises_costs_nobody_else(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The other holders are told and renewed all the same; the log names the error without its text."""

    def raises() -> None:
        raise RuntimeError("a prompt, perhaps")

    lease = await bench.claim(key=f"{KEY}-raises")
    bench.heartbeat.hold(lease, limit_ms=LIMIT_MS, on_lost=raises, on_cancel=raises, label="tool:x")
    other = await bench.hold()
    await bench.leases.signal(lease.key, "cancel")
    await bench.leases.signal(KEY, "cancel")
    bench.beats_for(2 * TTL_MS)
    assert (other.state, bench.told) == ("held", ["cancel"])
    assert [record.getMessage() for record in caplog.records] == ["heartbeat_failed error=RuntimeError"]


async def test_a_lease_shorter_than_the_rhythm_is_refused(bench: Bench) -> None:
    """Three rounds per TTL are too few for a lease with a shorter one, so it is not accepted."""
    lease = replace(await bench.claim(), ttl_ms=TTL_MS - 1)
    with pytest.raises(ConfigurationError, match="29999 ms"):
        bench.heartbeat.hold(lease, limit_ms=LIMIT_MS, on_lost=ignore, on_cancel=ignore, label="step")


async def test_a_provider_that_lies_is_believed(caplog: pytest.LogCaptureFixture) -> None:
    """Two holders that are told that they hold the same key both keep it: only the store's revision tells them apart."""
    clock = FakeClock()
    leases = LyingLeases()
    heartbeat = Heartbeat(leases, TTL_MS, clock, threaded=False)
    holds = [
        heartbeat.hold(
            await leases.acquire(KEY, owner, TTL_MS), limit_ms=LIMIT_MS, on_lost=ignore, on_cancel=ignore, label="step"
        )
        for owner in ("a", "b")
    ]
    clock.advance(TTL_MS)
    assert heartbeat.beat()
    assert [hold.state for hold in holds] == ["held", "held"]
    assert logging.WARNING not in {record.levelno for record in caplog.records}
