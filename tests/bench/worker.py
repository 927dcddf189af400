"""A worker process of the bench: ``python -m tests.bench.worker``, everything else in the environment.

It logs what a worker in production would, see `config/logging.toml`.
"""

from __future__ import annotations

import logging.config
import sys
import tomllib
from pathlib import Path

from deuz_workers.workers.run import run_worker
from tests.bench.application import app

LOGGING = Path(__file__).parents[2] / "config/logging.toml"

if __name__ == "__main__":
    logging.config.dictConfig(tomllib.loads(LOGGING.read_text()))
    sys.exit(run_worker(app))
