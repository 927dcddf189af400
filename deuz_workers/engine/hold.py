"""A lease as its holder sees it: what the heartbeat last heard of it, and until when it vouches for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from deuz_workers.ports.leases import Gone, Lease, Renewed
from deuz_workers.ports.runtime import Clock

Callback = Callable[[], None]


class Hold:
    """Made by `Heartbeat.hold`. Readable from any thread; `extend` and `saw` are the holder's, the rest is the heartbeat's."""

    def __init__(
        self, lease: Lease, clock: Clock, *, limit_ms: int, on_lost: Callback, on_cancel: Callback, label: str
    ) -> None:
        self.lease = lease
        """As of the last confirmed renewal: its epoch is a new one after the provider lost its memory."""
        self.label = label
        """What the step is doing, for logs: names of tools, never their arguments."""
        self.drain_asked = False
        """Somebody wants the holder to take no new step."""
        self._clock = clock
        self._on_lost = on_lost
        self._on_cancel = on_cancel
        self._lost = False
        self._revision_seen = lease.revision_seen
        self._confirmed_ms = clock.monotonic_ms()
        self._limit_ms = limit_ms
        self._limit_from_ms = self._confirmed_ms
        self._limit_reported = False

    @property
    def state(self) -> Literal["held", "suspected", "lost"]:
        """`lost`: another holder has the key; write nothing more. `suspected`: nobody confirmed it for a TTL."""
        if self._lost:
            return "lost"
        return "held" if self._clock.monotonic_ms() < self._confirmed_ms + self.lease.ttl_ms else "suspected"

    @property
    def may_start(self) -> bool:
        """A new model call, tool or step may begin. Outcomes of those that began are offered unless it is `lost`."""
        return self.state == "held"

    @property
    def is_past_limit(self) -> bool:
        """The heartbeat does not vouch for it any more: the lease lapses unless `extend` comes first."""
        return self._clock.monotonic_ms() - self._limit_from_ms >= self._limit_ms

    @property
    def to_renew(self) -> Lease:
        """The lease, with the highest revision that its holder knows to be saved. For the heartbeat."""
        return replace(self.lease, revision_seen=max(self._revision_seen, self.lease.revision_seen))

    def saw(self, revision: int) -> None:
        """This revision is saved; the next renewal tells whoever takes the lease over."""
        self._revision_seen = max(self._revision_seen, revision)

    def extend(self, limit_ms: int, label: str | None = None) -> None:
        """The limit starts again, now and at `limit_ms`; what runs is called `label` from now on.

        With several tools in flight, give the longest of what is left to them: a shorter limit replaces a longer one.
        """
        if label is not None:
            self.label = label
        self._limit_ms = limit_ms
        self._limit_from_ms = self._clock.monotonic_ms()
        self._limit_reported = False

    def limit_just_passed(self) -> bool:
        """True once per limit, when it has passed. For the heartbeat."""
        if self._limit_reported or not self.is_past_limit:
            return False
        self._limit_reported = True
        return True

    def told(self, answer: Renewed | Gone, sent_ms: int) -> Callback | None:
        """Takes the answer to a renewal that was sent at `sent_ms`; returns whom to call. For the heartbeat."""
        if self._lost:
            return None
        if isinstance(answer, Gone):
            self._lost = True
            return self._on_lost
        self.lease = answer.lease
        self._confirmed_ms = max(self._confirmed_ms, sent_ms)
        self.drain_asked = self.drain_asked or answer.signal == "drain"
        return self._on_cancel if answer.signal == "cancel" else None
