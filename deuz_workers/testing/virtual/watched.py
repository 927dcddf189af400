"""A database whose every operation a witness sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from deuz_workers.ports.runtime import Clock
from deuz_workers.store.dialect import Dialect
from deuz_workers.store.migrations import Migration
from deuz_workers.testing.migrated_sqlite import MigratedSqlite
from deuz_workers.testing.virtual.witness import Witness


class Database(Dialect, Protocol):
    """Of one schedule. Every operation is carried out at once, in one moment of virtual time."""

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What no operation shows; writes nothing."""
        ...

    def linger_s(self) -> float:
        """How much later the answer to the newest operation leaves, seconds."""
        ...

    def settle(self) -> None:
        """Whatever was carried out is committed: the answer to somebody may leave now."""
        ...


class Settled:
    """The database of somebody whose answers come at once: each operation is committed by then."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.name = database.name

    async def fetch(
        self, operation: str, params: Mapping[str, object], *, connection: Any = None
    ) -> Sequence[Mapping[str, Any]]:
        rows = await self._database.fetch(operation, params, connection=connection)
        self._database.settle()
        return rows

    async def schema_version(self) -> int:
        return await self._database.schema_version()

    async def migrate(self, migrations: Sequence[Migration]) -> tuple[int, ...]:
        return await self._database.migrate(migrations)

    async def close(self) -> None:
        await self._database.close()


class WatchedSqlite(MigratedSqlite):
    """In memory, under the clock of a schedule."""

    def __init__(self, clock: Clock, witness: Witness) -> None:
        super().__init__(clock=clock)
        self._witness = witness

    async def fetch(
        self, operation: str, params: Mapping[str, object], *, connection: Any = None
    ) -> Sequence[Mapping[str, Any]]:
        rows = await super().fetch(operation, params, connection=connection)
        self._witness.saw(operation, params, rows)
        return rows

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        connection = self._of_this_process().connection
        connection.transact("begin", lambda tx, _: found.extend(tx.execute(query)) or [], {}, 0)
        return found

    def linger_s(self) -> float:
        return 0.0

    def settle(self) -> None:
        """Each operation commits itself."""
