"""The conformance suite on SQLite, in memory and in a file, and the requirement rows that its tests check.

On Postgres it runs in `test_postgres_conformance.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deuz_workers.ports.store import RunStore
from deuz_workers.store import open_store
from deuz_workers.testing.store_conformance import StoreConformance

pytest.mark.spec("CKP-004")(StoreConformance.test_a_run_id_is_unique_over_all_scopes)
pytest.mark.spec("CKP-005")(StoreConformance.test_the_same_run_id_again_writes_nothing)
pytest.mark.spec("CKP-011", "SST-002")(StoreConformance.test_one_of_many_commits_from_a_revision_wins)
pytest.mark.spec("LEA-006", "SST-007")(StoreConformance.test_a_stale_revision_writes_nothing)
pytest.mark.spec("LEA-006")(StoreConformance.test_a_revision_from_the_future_is_a_conflict)
pytest.mark.spec("SST-008")(StoreConformance.test_pages_return_each_run_once)
pytest.mark.spec("JRN-010")(StoreConformance.test_events_of_many_commits_at_once_have_no_gap)
pytest.mark.spec("BUD-001")(StoreConformance.test_two_runs_share_a_scope)
pytest.mark.spec("BUD-003")(StoreConformance.test_all_scopes_admit_or_none)
pytest.mark.spec("BUD-005")(StoreConformance.test_a_hold_is_settled_by_what_was_used)
pytest.mark.spec("BUD-005")(StoreConformance.test_a_released_hold_costs_nothing)
pytest.mark.spec("BUD-009")(StoreConformance.test_an_unknown_price_is_refused_under_a_money_limit)
pytest.mark.spec("BUD-006")(StoreConformance.test_an_unknown_outcome_keeps_its_estimate)
pytest.mark.spec("BUD-007")(StoreConformance.test_a_reply_without_a_price_keeps_what_was_reserved_in_money)
pytest.mark.spec("BUD-008")(StoreConformance.test_the_same_request_is_admitted_again)
pytest.mark.spec("BUD-008")(StoreConformance.test_the_same_request_is_refused_again)
pytest.mark.spec("BUD-008")(StoreConformance.test_the_same_request_with_other_amounts_is_an_error)
pytest.mark.spec("BUD-012")(StoreConformance.test_two_callers_hold_one_scope_to_different_limits)
pytest.mark.spec("BUD-016")(StoreConformance.test_usage_is_summed_by_model)
pytest.mark.spec("BUD-017")(StoreConformance.test_what_pruned_runs_used_is_still_known)
pytest.mark.spec("LED-010")(StoreConformance.test_no_total_changes_by_a_compaction)
pytest.mark.spec("LED-010")(StoreConformance.test_settled_calls_are_sums_and_released_ones_forgotten)
pytest.mark.spec("WIN-002")(StoreConformance.test_a_window_is_that_of_the_first_use)
pytest.mark.spec("WIN-002")(StoreConformance.test_a_stored_window_stays)
pytest.mark.spec("BUD-018", "BUD-019")(StoreConformance.test_of_fifty_admissions_into_room_for_ten_ten_pass)


class TestSqliteMemory(StoreConformance):
    """A store that lives in this process alone."""

    @pytest.fixture
    async def store(self) -> AsyncIterator[RunStore]:
        store = open_store("sqlite://:memory:")
        yield store
        await store.close()


class TestSqliteFile(StoreConformance):
    """The embedded default."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[RunStore]:
        store = open_store(f"sqlite:///{tmp_path / 'runs.db'}")
        yield store
        await store.close()
