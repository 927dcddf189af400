"""The reducer: many reviews to one table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from deuz_workers import reducer

_JSON = re.compile(r"\{.*\}", re.DOTALL)
_COLUMNS = ("lines", "code_lines", "functions", "classes")


@reducer(name="merge-reviews")
def merge_reviews(reviews: Mapping[str, Any]) -> str:
    """Markdown: totals, one row per file, one remark per file. Reviews come in any order, and the text is the same."""
    read = [read_review(task_id, str(text)) for task_id, text in sorted(reviews.items())]
    read.sort(key=lambda review: str(review.get("path")))
    totals = {name: sum(_count(review, name) for review in read) for name in _COLUMNS}
    table = [
        "| file | lines | code | functions | classes | longest function | most complex function |",
        "|---|---:|---:|---:|---:|---|---|",
        *(_row(review) for review in read),
        f"| **{len(read)} files** | {' | '.join(f'**{totals[name]:,}**' for name in _COLUMNS)} | | |",
    ]
    remarks = [f"- `{review.get('path')}`: {_line(review.get('finding'))}" for review in read]
    return "\n".join([*table, "", "## Remarks", "", *remarks])


def read_review(task_id: str, text: str) -> dict[str, object]:
    """What a reviewer answered. One that wrote prose instead of JSON has a remark and no numbers."""
    found = _JSON.search(text)
    try:
        value: object = json.loads(found.group()) if found else None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        return {"path": task_id, "finding": text}
    return cast(dict[str, object], value)


def _row(review: Mapping[str, object]) -> str:
    longest = _function(review, "longest_function", "longest_function_lines", "lines")
    hardest = _function(review, "most_complex_function", "complexity", "paths")
    counts = " | ".join(f"{_count(review, name):,}" for name in _COLUMNS)
    return f"| `{review.get('path')}` | {counts} | {longest} | {hardest} |"


def _function(review: Mapping[str, object], name: str, amount: str, unit: str) -> str:
    found = review.get(name)
    return f"`{found}` ({_count(review, amount)} {unit})" if found else ""


def _count(review: Mapping[str, object], name: str) -> int:
    value = review.get(name)
    return value if isinstance(value, int) else 0


def _line(text: object) -> str:
    return " ".join(str(text or "no remark").split())
