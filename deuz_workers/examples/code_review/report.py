"""From what the reviewers answered to one table. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

COLUMNS = ("lines", "functions", "classes", "branches", "docstring_percent")
HEADER = "| file | lines | functions | classes | branches | docstrings | longest function |\n|---|--:|--:|--:|--:|--:|---|"


def review_of(answer: object, task_id: str) -> dict[str, Any]:
    """A reviewer's answer as a record; prose of a model that sent no JSON becomes the remark of a file without numbers."""
    text = str(answer).strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        record = json.loads(text)
    except ValueError:
        record = None
    if not isinstance(record, dict) or "path" not in record:
        return {"path": task_id, "numbers": {}, "remark": str(answer).strip()}
    return {"path": record["path"], "numbers": record.get("numbers") or {}, "remark": record.get("remark") or ""}


def merged(answers: Mapping[str, object]) -> dict[str, Any]:
    """Totals, the table in Markdown and one line per remark; the same for every order in which reviewers finished."""
    reviews = [review_of(answer, task_id) for task_id, answer in sorted(answers.items())]
    totals: dict[str, int] = {"files": len(reviews)}
    for name in ("lines", "functions", "classes", "branches"):
        totals[name] = sum(review["numbers"].get(name) or 0 for review in reviews)
    return {
        "totals": totals,
        "table": "\n".join([HEADER, *map(_row, reviews)]),
        "remarks": [f"`{short(review['path'])}`: {review['remark']}" for review in reviews if review["remark"]],
    }


def short(path: str) -> str:
    """The last two parts: enough to tell files apart in a table."""
    return "/".join(Path(path).parts[-2:])


def markdown(result: Mapping[str, Any]) -> str:
    """The report of what `merged` made."""
    totals = result["totals"]
    counted = ", ".join(f"{totals[name]:,} {name}" for name in ("lines", "functions", "classes", "branches"))
    return "\n".join(
        [
            f"# Review of {totals['files']} files\n",
            f"{counted}.\n",
            result["table"],
            "\n## Remarks\n",
            *(_bullets(result["remarks"]) or ["Nothing stands out."]),
            "",
        ]
    )


def _row(review: Mapping[str, Any]) -> str:
    numbers = review["numbers"]
    lines, functions, classes, count, share = (_cell(numbers.get(name)) for name in COLUMNS)
    longest = numbers.get("longest_function")
    described = f"`{longest['name']}`, {longest['lines']} lines" if isinstance(longest, dict) else "–"
    share = share if share == "–" else f"{share} %"
    return f"| `{short(review['path'])}` | {lines} | {functions} | {classes} | {count} | {share} | {described} |"


def _cell(value: object) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _bullets(lines: Iterable[str]) -> list[str]:
    return [f"- {line}" for line in lines]
