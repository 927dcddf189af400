"""What the agents can do. All but the last may be repeated: reading twice changes nothing."""

from __future__ import annotations

from deuz_workers import ToolContext, tool
from deuz_workers.examples.code_review.assignment import Assignment
from deuz_workers.examples.code_review.measuring import measure_python, measure_text

SHOWN_CHARS = 6_000
"""Of a file, to a model: some two thousand tokens."""

ASSIGNMENT = Assignment.from_environment()


@tool(replay="idempotent")
def list_files() -> list[dict[str, object]]:
    """The files under review with their size in bytes, largest first."""
    return [{"path": str(file), "bytes": file.stat().st_size} for file in ASSIGNMENT.files]


@tool(replay="idempotent")
def read_file(path: str) -> str:
    """The beginning of a file.

    Args:
        path: as list_files gives it.
    """
    text = _text(path)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}\n[{len(text) - SHOWN_CHARS} further characters]"


@tool(replay="idempotent")
def measure(path: str, context: ToolContext) -> dict[str, object]:
    """Lines, blank lines, longest line and bytes of a file.

    Args:
        path: as list_files gives it.
    """
    _take_time(context)
    return measure_text(_text(path))


@tool(replay="idempotent")
def parse(path: str, context: ToolContext) -> dict[str, object]:
    """Functions, classes, branches, longest function and share of docstrings of a Python file.

    Args:
        path: as list_files gives it; only Python can be parsed.
    """
    _take_time(context)
    return measure_python(_text(path))


@tool(needs_approval=True)
def write_report(markdown: str) -> str:
    """Write the report, once a person agreed. Returns where it is.

    Args:
        markdown: the whole report.
    """
    ASSIGNMENT.out.write_text(markdown, encoding="utf-8")
    return str(ASSIGNMENT.out)


def _text(path: str) -> str:
    return ASSIGNMENT.file(path).read_text(encoding="utf-8", errors="replace")


def _take_time(context: ToolContext) -> None:
    """Beside a scripted model a tool takes as long as one that asks another server; a real model is slow enough."""
    context.signal.wait(ASSIGNMENT.pace_ms)
