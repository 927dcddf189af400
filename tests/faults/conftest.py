"""The pool of real workers."""

from __future__ import annotations

from tests.workers.conftest import pool

__all__ = ["pool"]
