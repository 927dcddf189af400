"""A swarm that reviews files: a plan, one reviewer per file, a merge, a report that a person lets through.

`deuz demo` runs it; its workers are `deuz worker --app deuz_workers.examples.code_review:app`. What it reviews, and with which
model, comes from the environment (see `assignment`), so that every process of the pool has the same.
"""

from __future__ import annotations

from deuz_workers.examples.code_review.application import app, review_swarm
from deuz_workers.examples.code_review.assignment import Assignment

__all__ = ["Assignment", "app", "review_swarm"]
