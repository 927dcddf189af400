"""A worker process of these tests: ``python -m tests.workers.start``, everything else in the environment.

It ends with the test's process, however that ended: its standard input is a pipe that nobody writes to.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

from deuz_workers.app.discovery import load_app
from deuz_workers.workers.run import run_worker


def end_with_the_test() -> None:
    """Kill this worker and its children when the other end of the pipe is gone."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=end_with_the_test, daemon=True).start()
    logging.basicConfig(
        level="INFO", format="%(relativeCreated)d %(process)d %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    sys.exit(run_worker(load_app(os.environ["DEUZ_APP"]), name=os.environ.get("TEST_NODE")))
