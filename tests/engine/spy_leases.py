"""Leases in memory that note every renewal and can fall silent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from deuz_workers.errors import LeaseStoreUnavailableError
from deuz_workers.leases.sqlite import SqliteLeases
from deuz_workers.leases.table import MEMORY
from deuz_workers.ports.leases import Gone, Lease, LeaseRenewer, Renewed
from deuz_workers.ports.runtime import Clock


class SpyLeases(SqliteLeases):
    """What the heartbeat asks of a provider, noted under `changed`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(MEMORY, clock=clock)
        self.silent = False
        """Renewals get no answer."""
        self.broken = False
        """Renewals raise what nobody expects."""
        self.during: Callable[[], None] = lambda: None
        """Happens between the renewal and its answer."""
        self.renewed: list[list[str]] = []
        """Keys of each call that was made, answered or not."""
        self.threads: set[int] = set()
        self.timeouts_ms: list[int] = []
        self.closed = 0
        self.changed = threading.Condition()

    def renewer(self, *, timeout_ms: int) -> LeaseRenewer:
        self.timeouts_ms.append(timeout_ms)
        return _SpyRenewer(self, super().renewer(timeout_ms=timeout_ms))

    def wait_for_calls(self, count: int, patience_s: float) -> bool:
        """True once `count` more renewal calls were made. Blocks this thread, whatever runs in it."""
        with self.changed:
            wanted = len(self.renewed) + count
            return self.changed.wait_for(lambda: len(self.renewed) >= wanted, patience_s)


class _SpyRenewer:
    def __init__(self, spy: SpyLeases, renewer: LeaseRenewer) -> None:
        self._spy = spy
        self._renewer = renewer

    def renew(self, leases: Sequence[Lease]) -> Sequence[Renewed | Gone]:
        try:
            if self._spy.silent:
                raise LeaseStoreUnavailableError("nobody answers; wait for it")
            if self._spy.broken:
                raise KeyError("a defect")
            answers = self._renewer.renew(leases)
            self._spy.during()
            return answers
        finally:
            with self._spy.changed:
                self._spy.renewed.append([lease.key for lease in leases])
                self._spy.threads.add(threading.get_ident())
                self._spy.changed.notify_all()

    def close(self) -> None:
        self._spy.closed += 1
        self._renewer.close()
