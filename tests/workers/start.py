"""A worker process of these tests: ``python -m tests.workers.start``, everything else in the environment."""

from __future__ import annotations

import logging
import os
import sys

from deuz_workers.app.discovery import load_app
from deuz_workers.workers.run import run_worker

if __name__ == "__main__":
    logging.basicConfig(
        level="INFO", format="%(relativeCreated)d %(process)d %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    sys.exit(run_worker(load_app(os.environ["DEUZ_APP"]), name=os.environ.get("TEST_NODE")))
