"""The agents, the reducer and the graph."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deuz_workers import (
    Agent,
    Budget,
    ChatCompletionsModel,
    ConfigurationError,
    Deuz,
    Limits,
    MockModel,
    Swarm,
    Task,
    reducer,
)
from deuz_workers.examples.code_review import script, tools
from deuz_workers.examples.code_review.assignment import API_KEY, Assignment
from deuz_workers.examples.code_review.report import merged

OUTPUT_TOKENS = 4_000
"""Of one answer: a report of a dozen files takes half of it."""
TOKENS_PER_TASK = 40_000
"""Cap of the swarm, per task: four turns that each send the beginning of a file, reserved at their upper bound."""


def _model(assignment: Assignment, answers: script.Script) -> str | MockModel | ChatCompletionsModel:
    if assignment.model is None:
        return script.scripted(answers, pace_ms=assignment.pace_ms)
    if assignment.base_url is None:
        return assignment.model
    provider, colon, model = assignment.model.partition(":")
    if not colon or not model:
        raise ConfigurationError(f"{assignment.model!r} is no model; write provider:model, such as openai:gpt-5-mini")
    return ChatCompletionsModel(model, assignment.base_url, provider=provider, api_key=os.environ.get(API_KEY))


@reducer
def merge(results: Mapping[str, Any]) -> dict[str, Any]:
    """All reviews as totals, a table and remarks."""
    return merged(results)


def make_agents(assignment: Assignment) -> tuple[Agent, ...]:
    """Planner, reviewer and reporter with the model of the assignment."""
    limits = Limits(max_steps=8)
    return (
        Agent(
            "planner",
            model=_model(assignment, script.plan),
            instructions="Call list_files once. Then say in one sentence what will be reviewed.",
            tools=[tools.list_files],
            limits=limits,
            max_output_tokens=OUTPUT_TOKENS,
        ),
        Agent(
            "reviewer",
            model=_model(assignment, script.review),
            instructions=(
                "Review one file. Call read_file, measure and, for Python, parse. Then answer with one JSON object and nothing "
                'else: {"path": the path you were given, "numbers": every field that measure and parse returned, '
                '"remark": the one thing that most deserves a change, in a sentence}.'
            ),
            tools=[tools.read_file, tools.measure, tools.parse],
            limits=limits,
            max_output_tokens=OUTPUT_TOKENS,
        ),
        Agent(
            "reporter",
            model=_model(assignment, script.report),
            instructions=(
                "Write a Markdown report from the merged reviews: the totals, the table exactly as it is given, and the "
                "remarks in order of importance. Call write_report with it once; then say what became of it."
            ),
            tools=[tools.write_report],
            limits=limits,
            max_output_tokens=OUTPUT_TOKENS,
        ),
    )


def review_swarm(files: tuple[Path, ...], *, concurrency: int, budget_tokens: int | None = None) -> Swarm:
    """plan → one review per file → merge → report. `budget_tokens` None: enough for tasks of usual length."""
    reviews = [
        Task(f"{place:02}-{_slug(file.name)}", agent="reviewer", prompt=f"Review the file `{file}`.", depends_on=["plan"])
        for place, file in enumerate(files, start=1)
    ]
    cap = budget_tokens or TOKENS_PER_TASK * (len(files) + 3)
    return Swarm(
        "code-review",
        [
            Task("plan", agent="planner", prompt="Which files are under review?"),
            *reviews,
            Task("merge", reducer=merge, depends_on=[review.task_id for review in reviews]),
            Task("report", agent="reporter", prompt="Report what was found.", depends_on=["merge"]),
        ],
        concurrency=concurrency,
        budget=Budget.of(tokens=cap),
    )


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:40]


app = Deuz(make_agents(tools.ASSIGNMENT), reducers=[merge])
