"""The suite that every store passes, ours and yours.

Give it a store and let pytest collect it; with pytest-asyncio in auto mode that is all::

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def store(self) -> AsyncIterator[RunStore]:
            store = MyStore(...)
            yield store
            await store.close()

The store must be migrated. It need not be empty: every test keeps to a scope and a queue of its own, so that tests may share
one database, run in parallel and run beside an application. Each test claims one sentence of `deuz_workers.ports.store`;
nothing is asserted about speed.
"""

from __future__ import annotations

from deuz_workers.testing.store_conformance_budgets import BudgetConformance
from deuz_workers.testing.store_conformance_cascades import CascadeConformance
from deuz_workers.testing.store_conformance_chats import ChatConformance
from deuz_workers.testing.store_conformance_children import ChildrenConformance
from deuz_workers.testing.store_conformance_commits import CommitConformance
from deuz_workers.testing.store_conformance_controls import ControlConformance
from deuz_workers.testing.store_conformance_feeding import FeedingConformance
from deuz_workers.testing.store_conformance_inputs import InputConformance
from deuz_workers.testing.store_conformance_ledger import LedgerConformance
from deuz_workers.testing.store_conformance_ledger_compaction import LedgerCompactionConformance
from deuz_workers.testing.store_conformance_lifecycle import LifecycleConformance
from deuz_workers.testing.store_conformance_listing import ListingConformance
from deuz_workers.testing.store_conformance_runs import RunConformance
from deuz_workers.testing.store_conformance_schedule import ScheduleConformance
from deuz_workers.testing.store_conformance_slots import SlotConformance
from deuz_workers.testing.store_conformance_spawning import SpawnConformance
from deuz_workers.testing.store_conformance_swarm_journal import SwarmJournalConformance
from deuz_workers.testing.store_conformance_swarms import SwarmConformance


class StoreConformance(
    RunConformance,
    CommitConformance,
    InputConformance,
    ScheduleConformance,
    FeedingConformance,
    SlotConformance,
    ControlConformance,
    SwarmConformance,
    CascadeConformance,
    SpawnConformance,
    SwarmJournalConformance,
    ChildrenConformance,
    ChatConformance,
    LedgerConformance,
    BudgetConformance,
    LedgerCompactionConformance,
    ListingConformance,
    LifecycleConformance,
):
    """Every operation of `RunStore` and every claim of atomicity; needs a fixture named `store`."""
