"""The tools of the reviewers. All are real: they read, parse and measure files, and one writes the report."""

from __future__ import annotations

import tokenize
from typing import cast

from deuz_workers import ToolContext, ToolError, tool
from deuz_workers.examples.code_review.measure import measurements, outline
from deuz_workers.examples.code_review.workspace import Workspace

SHOWN_LINES = 120
"""Of a file, for the model; the measuring tools see all of it."""


@tool(replay="idempotent")
def list_files(context: ToolContext) -> list[dict[str, object]]:
    """The files of this review with their sizes in bytes."""
    workspace = workspace_of(context)
    return [{"path": name, "bytes": (workspace.root / name).stat().st_size} for name in workspace.files()]


@tool(replay="idempotent")
def read_file(path: str, context: ToolContext) -> str:
    """The first lines of a file.

    Args:
        path: as list_files names it.
    """
    lines = workspace_of(context).read(path).splitlines()
    shown = "\n".join(lines[:SHOWN_LINES])
    return shown if len(lines) <= SHOWN_LINES else f"{shown}\n... {len(lines) - SHOWN_LINES} more lines"


@tool(replay="idempotent")
def parse_file(path: str, context: ToolContext) -> dict[str, object]:
    """Imports, classes and functions of a Python file.

    Args:
        path: as list_files names it.
    """
    try:
        return outline(workspace_of(context).read(path))
    except SyntaxError as error:
        raise ToolError(f"{path} is no Python of this version: {error.msg} (line {error.lineno})") from None


@tool(replay="idempotent")
def measure_file(path: str, context: ToolContext) -> dict[str, object]:
    """Lines, functions, classes, the longest and the most complex function of a Python file.

    Args:
        path: as list_files names it.
    """
    workspace = workspace_of(context)
    context.signal.wait(workspace.pace_ms)
    context.signal.raise_if_set()
    try:
        return measurements(workspace.read(path))
    except (SyntaxError, tokenize.TokenError) as error:
        raise ToolError(f"{path} is no Python of this version: {error}") from None


@tool(replay="idempotent", needs_approval=True)
def write_report(markdown: str, context: ToolContext) -> dict[str, object]:
    """Write the report. A person is asked before.

    Args:
        markdown: the whole report.
    """
    report = workspace_of(context).report
    unfinished = report.with_name(f".{report.name}.unfinished")
    text = markdown.rstrip() + "\n"
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(report)  # a reader sees the old report or the new one, and a repetition changes nothing
    except OSError as error:
        raise ToolError(f"the report cannot be written to {report}: {error.strerror}") from None
    return {"path": str(report), "bytes": len(text.encode()), "lines": text.count("\n")}


def workspace_of(context: ToolContext) -> Workspace:
    """What the application registered for its agents."""
    return cast(Workspace, context.deps)
