"""The one table: figures down, what was measured across."""

from __future__ import annotations

from collections.abc import Mapping

from tests.bench.windows import WINDOWS, Figures

ROWS: Mapping[str, str] = {
    **{f"ms_per_turn_at_{at}": f"ms a turn, 1 run, at turn {at:,}" for at in WINDOWS},
    "turns_per_s_8_runs": "turns/s, 8 runs",
    "floor_ms_per_step": "floor: ms a step, 1 run",
    "floor_steps_per_s_8_runs": "floor: steps/s, 8 runs",
    "times_floor": "ms a turn / floor's ms a step",
    "commits_per_turn": "commits a turn",
    **{f"row_bytes_per_turn_at_{at}": f"rows B a turn, at turn {at:,}" for at in WINDOWS},
    "head_bytes": "head B",
    **{f"wal_bytes_per_turn_at_{at}": f"WAL B a turn, at turn {at:,}" for at in WINDOWS},
    "backlog_seed_s": "seconds to seed the backlog",
    "sweep_ms_0_places": "ms a sweep, no place to give",
    "sweep_ms_64_places": "ms a sweep, 64 places",
    "sweep_ms_500_places": "ms a sweep, 500 places",
    "backlog_queue_median": "doorbells in the queue, median",
    "backlog_queue_max": "doorbells in the queue, most",
    "backlog_window_max": "its window, widest",
    "backlog_looks_above_window": "looks that found more than the window",
    "newcomer_starts_ms_median": "ms until a newcomer's run begins, median",
    "newcomer_starts_ms_max": "ms until a newcomer's run begins, most",
    "backlog_runs_per_s": "runs/s off the backlog",
    "resume_ms": "ms from a resume to the model's call",
    "resume_cpu_ms": "of the processor meanwhile, ms",
    "resumed_messages": "messages of the resumed run",
    "disk_times_payload": "room on disk / results alone",
    "reservations_per_s_one_scope": "reservations/s, 1 scope, 8 clients",
}
"""Names of figures in `--json`, and in the table."""


def derived(figures: Figures) -> Figures:
    """The figures and what follows from them: overhead of a turn late in the run as a multiple of the floor's step."""
    turn = next((figures[name] for at in (500, 100, 10) if (name := f"ms_per_turn_at_{at}") in figures), None)
    floor = figures.get("floor_ms_per_step")
    return figures if turn is None or floor is None else {**figures, "times_floor": turn / floor}


def render(columns: Mapping[str, Figures]) -> str:
    names = [name for name in ROWS if any(name in figures for figures in columns.values())]
    first = max((len(ROWS[name]) for name in names), default=0)
    widths = {title: max(len(title), 9) for title in columns}
    lines = ["  ".join([" " * first, *(title.rjust(widths[title]) for title in columns)])]
    for name in names:
        cells = (_cell(figures.get(name)).rjust(widths[title]) for title, figures in columns.items())
        lines.append("  ".join([ROWS[name].ljust(first), *cells]))
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 20 else f"{value:.2f}"
