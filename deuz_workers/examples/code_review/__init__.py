"""A swarm that reviews Python files: a planner, one reviewer per file, a reducer, and a writer who asks first.

This is the application of `deuz demo`, and a pattern to copy::

    deuz worker --app deuz_workers.examples.code_review:app

Every process of it reads its files and its model from `CODE_REVIEW_*` variables, so that all have the same.
"""

from __future__ import annotations

import os

from deuz_workers import Agent, Budget, ChatCompletionsModel, Deuz, Limits, MockModel, Swarm, Task
from deuz_workers.examples.code_review.merge import merge_reviews
from deuz_workers.examples.code_review.scripted import scripted_model
from deuz_workers.examples.code_review.tools import list_files, measure_file, parse_file, read_file, write_report
from deuz_workers.examples.code_review.workspace import Workspace

MODEL = "CODE_REVIEW_MODEL"
"""`openai:NAME`, or any name with `CODE_REVIEW_BASE_URL`; without it the scripted model answers."""
BASE_URL = "CODE_REVIEW_BASE_URL"
API_KEY = "CODE_REVIEW_API_KEY"
"""For a server of `CODE_REVIEW_BASE_URL`; OpenAI's own reads `OPENAI_API_KEY`."""

TOKENS_PER_FILE = 40_000
"""Cap of the whole swarm for every file: three calls that are reserved at their upper bound, and as much in reserve."""


def chosen_model(pace_ms: int) -> str | ChatCompletionsModel | MockModel:
    """The model that the environment names."""
    name = os.environ.get(MODEL)
    if not name:
        return scripted_model(pace_ms)
    base_url = os.environ.get(BASE_URL)
    if not base_url:
        return name
    provider, _, model = name.rpartition(":")
    return ChatCompletionsModel(model, base_url, api_key=os.environ.get(API_KEY), provider=provider or None)


workspace = Workspace.from_environment()
model = chosen_model(workspace.pace_ms)

planner = Agent(
    "planner",
    model=model,
    instructions="You plan code reviews. Call list_files once, then say in one or two sentences what will be reviewed.",
    tools=[list_files],
    limits=Limits(max_steps=4),
    max_output_tokens=500,
    deps=workspace,
)
reviewer = Agent(
    "reviewer",
    model=model,
    instructions=(
        "You review one Python file. Call read_file, then parse_file and measure_file in one turn. Then answer with one JSON "
        "object and nothing else: everything that measure_file returned, unchanged, with `path` and with `finding`, the one "
        "sentence that helps the author most."
    ),
    tools=[read_file, parse_file, measure_file],
    limits=Limits(max_steps=8),
    max_output_tokens=800,
    deps=workspace,
)
writer = Agent(
    "writer",
    model=model,
    instructions=(
        "You write the report of a code review. You are given its Markdown. Call write_report once with a heading, two or "
        "three sentences that sum it up, and then that Markdown unchanged. Then say in one sentence what became of it."
    ),
    tools=[write_report],
    limits=Limits(max_steps=4),
    max_output_tokens=8_000,
    deps=workspace,
)

app = Deuz([planner, reviewer, writer], reducers=[merge_reviews])


def review_swarm(files: tuple[str, ...], *, concurrency: int = 6) -> Swarm:
    """plan -> one review per file -> merge -> report. The graph is fixed here, so the files are known before."""
    reviews = [
        Task(f"review-{number:02}", agent=reviewer, prompt=f"Review the file `{name}`.", depends_on=["plan"])
        for number, name in enumerate(files, start=1)
    ]
    return Swarm(
        "code-review",
        [
            Task("plan", agent=planner, prompt="Plan the review of these files."),
            *reviews,
            Task("merge", reducer=merge_reviews, depends_on=[task.task_id for task in reviews]),
            Task("report", agent=writer, depends_on=["merge"]),
        ],
        concurrency=concurrency,
        budget=Budget.of(tokens=TOKENS_PER_FILE * (len(files) + 4)),
    )
