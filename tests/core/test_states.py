"""The transition tables: what they list happens, what they do not list changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deuz_workers.core import events
from deuz_workers.core.change import FINAL, RunStatus, Stage
from deuz_workers.core.states import RECEIPT, RUN, ImpossibleTransition, diagram, next_run_status, next_stage

EVENTS = sorted(event.__name__ for event in get_args(events.Event))
STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)
STAGES: tuple[Stage | None, ...] = (None, *get_args(Stage))


@given(st.sampled_from(STATUSES), st.sampled_from(EVENTS), st.sampled_from((None, *STATUSES)))
def test_every_pair_of_status_and_event_is_listed_or_refused(status: RunStatus, event: str, wanted: RunStatus | None) -> None:
    """A pair of the table gives one of its statuses; every other pair raises."""
    allowed = RUN.get((status, event))
    if allowed is None or (wanted is not None and wanted not in allowed):
        with pytest.raises(ImpossibleTransition):
            next_run_status(status, event, wanted)
    else:
        assert next_run_status(status, event, wanted) in allowed


@given(st.sampled_from(STAGES), st.sampled_from(EVENTS))
def test_every_pair_of_stage_and_event_is_listed_or_refused(stage: Stage | None, event: str) -> None:
    """The same for receipts."""
    if (stage, event) in RECEIPT:
        assert next_stage(stage, event) == RECEIPT[(stage, event)]
    else:
        with pytest.raises(ImpossibleTransition):
            next_stage(stage, event)


def test_the_tables_name_only_events_that_exist() -> None:
    """A renamed event cannot leave a dead row behind."""
    assert {event for _, event in RUN} | {event for _, event in RECEIPT} == set(EVENTS)


def test_a_final_status_takes_nothing() -> None:
    """Completed and stopped have no way out in the table; failed has the one that somebody asks for. What is saved of the
    memory behind a completed end leaves it completed."""
    leads = {pair: after for pair, after in RUN.items() if pair[0] in FINAL and after != (pair[0],)}
    assert leads == {("failed", "Reopened"): ("running",)}
    behind = {event for status, event in RUN if status == "completed"}
    assert {event for event in behind if not event.startswith("Extraction")} == {"Warned"}


def test_every_status_is_reached() -> None:
    """No status of the vocabulary is unreachable from queued."""
    reached: set[RunStatus] = {"queued"}
    for _ in STATUSES:
        for (before, _event), targets in RUN.items():
            if before in reached:
                reached.update(targets)
    assert reached == set(STATUSES)


def test_the_picture_in_the_documents_is_drawn_from_the_tables() -> None:
    """`docs/states.md` holds exactly what `python -m deuz_workers.core.states` prints."""
    page = Path(__file__).parents[2] / "docs" / "states.md"
    assert diagram() in page.read_text()
