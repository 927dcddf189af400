"""The store and the lease server as one process sees them: over the network."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from deuz_workers.core.change import Change, Outcome
from deuz_workers.errors import LeaseStoreUnavailableError, StoreUnavailableError
from deuz_workers.ports.leases import Gone, Held, Lease, Peek, Released, Renewed, Young
from deuz_workers.store.dialect import AnswerLost, Row
from deuz_workers.store.migrations import Migration
from deuz_workers.store.sql_store import SqlStore
from deuz_workers.testing.virtual.network import ask

if TYPE_CHECKING:
    from deuz_workers.testing.virtual.process import VirtualProcess

T = TypeVar("T")
COMMITS = {"commit_plain": "commit", "commit_settle": "commit", "commit_reserve": "commit"}
"""Sizes of the same operation."""


class ProcessStore(SqlStore):
    """The store of one process. Complains about a commit that is offered by a holder who was told that its lease is gone."""

    def __init__(self, process: VirtualProcess, *, ttl_ms: int, patience_ms: int) -> None:
        super().__init__(RemoteDialect(process), ttl_ms=ttl_ms, patience_ms=patience_ms)
        self._process = process

    async def commit(self, change: Change) -> Outcome:
        self._process.check_may_write(change)
        return await super().commit(change)


class RemoteDialect:
    """A `Dialect` over the network."""

    def __init__(self, process: VirtualProcess) -> None:
        self._process = process
        self.name = process.world.dialect.name

    async def fetch(self, operation: str, params: Mapping[str, object], *, connection: Any = None) -> Sequence[Row]:
        world = self._process.world
        fate, faults = world.fate, world.fate.faults

        def unreachable() -> BaseException | None:
            if world.store_is_away or fate.happens(faults.unsent):
                return StoreUnavailableError("the simulated database is away")
            return None

        def lost() -> BaseException | None:
            return AnswerLost("the connection broke") if fate.happens(faults.lost_answers) else None

        name = COMMITS.get(operation, operation)
        world.operations[name] += 1
        return await ask(
            self._process,
            name,
            lambda: world.dialect.fetch(operation, params),
            unreachable=unreachable,
            lost=lost,
            settles=True,
        )

    async def schema_version(self) -> int:
        return await self._process.world.dialect.schema_version()

    async def migrate(self, migrations: Sequence[Migration]) -> tuple[int, ...]:
        return await self._process.world.dialect.migrate(migrations)

    async def close(self) -> None:
        """The process has no connection."""


class RemoteLeases:
    """A `LeaseProvider` over the network."""

    def __init__(self, process: VirtualProcess) -> None:
        self._process = process

    async def acquire(
        self, key: str, owner: str, ttl_ms: int, *, revision: int = 0, force: bool = False
    ) -> Lease | Held | Young:
        world = self._process.world

        async def claim_there() -> Lease | Held | Young:
            answer = await world.lease_server.acquire(key, owner, ttl_ms, revision=revision, force=force)
            if force and key.startswith("run:") and isinstance(answer, Lease):
                world.forced.add(key)  # from this moment on, which the claimer hears of later
            return answer

        claim = await self._ask("acquire", claim_there)
        if isinstance(claim, Lease):
            self._process.claimed(claim)
        return claim

    async def release(self, lease: Lease) -> Released | Gone:
        """A release that nobody confirmed counts as `again`, as every provider has it."""
        try:
            return await self._ask("release", lambda: self._process.world.lease_server.release(lease))
        except LeaseStoreUnavailableError:
            return Released(again=True)

    async def signal(self, key: str, kind: Literal["cancel", "drain"]) -> bool:
        return await self._ask("signal", lambda: self._process.world.lease_server.signal(key, kind))

    async def peek(self, key: str) -> Peek:
        return await self._ask("peek", lambda: self._process.world.lease_server.peek(key))

    def renewer(self, *, timeout_ms: int) -> RemoteRenewer:
        return RemoteRenewer(self._process)

    async def close(self) -> None:
        """The process has no connection."""

    async def _ask(self, name: str, operation: Callable[[], Coroutine[Any, Any, T]]) -> T:
        world = self._process.world

        def unreachable() -> BaseException | None:
            return LeaseStoreUnavailableError("the simulated lease server is away") if world.leases_are_away else None

        def lost() -> BaseException | None:
            if world.fate.happens(world.fate.faults.lost_lease_answers):
                return LeaseStoreUnavailableError("the answer of the simulated lease server got lost")
            return None

        return await ask(self._process, name, operation, unreachable=unreachable, lost=lost)


class RemoteRenewer:
    """A `LeaseRenewer` in the heartbeat's lane. One call is one moment: it may not reach the server, or lose the answer."""

    def __init__(self, process: VirtualProcess) -> None:
        self._process = process

    def renew(self, leases: Sequence[Lease]) -> Sequence[Renewed | Gone]:
        process, world = self._process, self._process.world
        process.point_now("before renew")
        if world.leases_are_away:
            raise LeaseStoreUnavailableError("the simulated lease server is away")
        answers = world.renew(leases)
        process.point_now("after renew")
        if world.fate.happens(world.fate.faults.lost_lease_answers):
            raise LeaseStoreUnavailableError("the answer of the simulated lease server got lost")
        for lease, answer in zip(leases, answers, strict=True):
            if isinstance(answer, Gone):
                process.told_gone(lease)
        return answers

    def close(self) -> None:
        """There is no connection."""
