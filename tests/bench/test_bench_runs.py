"""The bench runs and names its figures. What they are is nobody's business here: the machine decides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.table import ROWS, derived, render
from tests.bench.windows import Edge, figures_of, gates_of, medians

ROOT = Path(__file__).parents[2]
COUNTED = {"commits_per_turn", "row_bytes_per_turn_at_10", "head_bytes", "wal_bytes_per_turn_at_10"}


def bench(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench", "--quick", "--json", "--turns", "20", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_embedded_part_runs_and_names_its_figures() -> None:
    """Every store has its times; what is counted is there for files, and a turn has at most four commits."""
    printed = bench("--only", "embedded")
    assert list(printed["figures"]) == ["memory", "SQLite NORMAL", "SQLite FULL"]
    for title, figures in printed["figures"].items():
        assert {"ms_per_turn_at_10", "turns_per_s_8_runs", "commits_per_turn"} <= set(figures) <= set(ROWS)
        assert figures["commits_per_turn"] <= 4
        if title != "memory":
            assert set(figures) >= COUNTED
    assert any("Python" in line for line in printed["setting"])


@pytest.mark.processes
@pytest.mark.usefixtures("redis_url", "postgres_dsn")
def test_the_parts_on_workers_run_and_name_their_figures() -> None:
    """Floor and product share a column, so that their ratio is of one minute; the ledger has its own.

    The bench starts servers of its own; the fixtures skip this where there are none.
    """
    printed = bench("--only", "celery", "--only", "floor", "--pool", "solo")
    solo, ledger = printed["figures"]["solo 1"], printed["figures"]["ledger"]
    assert COUNTED | {"ms_per_turn_at_10", "turns_per_s_8_runs", "floor_ms_per_step", "times_floor"} <= set(solo) <= set(ROWS)
    assert solo["commits_per_turn"] <= 4
    assert set(ledger) == {"reservations_per_s_one_scope"}


@pytest.mark.processes
@pytest.mark.usefixtures("redis_url", "postgres_dsn")
def test_the_backlog_part_runs_and_names_its_figures() -> None:
    """Seeded runs are executed by a worker, newcomers too; the queue never holds more than its window."""
    printed = bench("--only", "backlog", "--backlog-runs", "400", "--window", "4")
    figures = printed["figures"]["backlog"]
    assert {"backlog_seed_s", "sweep_ms_64_places", "newcomer_starts_ms_max", "backlog_queue_max"} <= set(figures) <= set(ROWS)
    assert 0 < figures["backlog_queue_max"] <= 4 == figures["backlog_window_max"]
    assert figures["backlog_looks_above_window"] == 0


@pytest.mark.processes
@pytest.mark.usefixtures("postgres_dsn")
def test_a_long_run_is_killed_and_resumed_and_names_its_figures() -> None:
    """The next process sends the whole history, and everything takes some room."""
    printed = bench("--only", "resume", "--only", "disk")
    assert list(printed["figures"]) == ["resumed SQLite", "long SQLite", "long Postgres"]
    for figures, turns in zip(printed["figures"].values(), (20, 40, 40), strict=True):
        assert {"resume_ms", "resume_cpu_ms", "disk_times_payload"} <= set(figures) <= set(ROWS)
        assert figures["resumed_messages"] == 2 * turns + 1
        assert figures["disk_times_payload"] > 1


def test_a_window_costs_what_lies_between_its_edges() -> None:
    """Time from leaving the first gate to coming to the last; counters by difference, idle log taken off; per turn."""
    edges = {
        5: Edge(came_ns=0, went_ns=1_000_000_000, commits=10, wal_bytes=1_000, row_bytes=100, head_bytes=50),
        15: Edge(came_ns=3_000_000_000, went_ns=9_000_000_000, commits=40, wal_bytes=3_000, row_bytes=300, head_bytes=60),
    }
    assert figures_of(edges, idle_wal_bytes_per_s=500) == {
        "ms_per_turn_at_10": 200.0,
        "row_bytes_per_turn_at_10": 20.0,
        "wal_bytes_per_turn_at_10": 100.0,
        "commits_per_turn": 3.0,
        "head_bytes": 60,
    }


def test_windows_beyond_the_run_are_left_out() -> None:
    """A figure at turn 1,000 is of a run that had them."""
    assert gates_of(20) == (5, 15)
    assert gates_of(899) == (5, 15, 75, 125)
    assert gates_of(1_000) == (5, 15, 75, 125, 900, 1_000)


def test_figures_are_medians_over_repeats() -> None:
    """A repeat that was disturbed does not move them; one that lacks a figure does not count."""
    assert medians([{"a": 1.0}, {"a": 90.0}, {"a": 2.0, "b": 5.0}]) == {"a": 2.0, "b": 5.0}


def test_the_table_has_a_row_for_every_figure_and_says_where_there_is_none() -> None:
    """Columns are what was measured; the ratio to the floor is worked out from one column's own floor."""
    figures = derived({"ms_per_turn_at_100": 6.0, "floor_ms_per_step": 2.0})
    assert figures["times_floor"] == 3.0
    table = render({"solo 1": figures, "memory": {"ms_per_turn_at_100": 0.5}})
    assert [line.split() for line in table.splitlines()][1][-2:] == ["6.00", "0.50"]
    assert [line.split() for line in table.splitlines()][-1][-2:] == ["3.00", "-"]
