"""A process of the demo's pool: `python -m deuz_workers.cli.demo.tethered worker|flower NAME`.

It lives as long as its standard input is open. The demo holds the other end, so however the demo ends, SIGKILL included, the
system closes it and the process is gone with it. On Linux the kernel ends it even while it is stopped by a signal.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from importlib.resources import files

PR_SET_PDEATHSIG = 1
"""Source: https://man7.org/linux/man-pages/man2/prctl.2.html; the parent's main thread made this process."""
ORPHANED = 75
"""EX_TEMPFAIL: whoever started this process is gone."""


def main(role: str, name: str) -> int:
    """Do the work of `role` until a signal says to end; returns the exit code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_with_parent, name="tether", daemon=True).start()
    if role == "flower":
        return _flower(port=name)
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("celery.app.trace").setLevel("WARNING")
    from deuz_workers.examples.code_review import app

    if app.settings.broker is None:
        from deuz_workers.workers.plain import run_plain_worker

        return run_plain_worker(app)
    from deuz_workers.workers.run import run_worker

    return run_worker(app, name=name)


def _flower(port: str) -> int:
    from celery.bin.celery import main as celery

    conf = files("deuz_workers.cli.demo") / "flower_settings.py"
    sys.argv = ["celery", "--app", "deuz_workers.workers.celery_app", "flower", f"--conf={conf}", f"--port={port}"]
    return celery() or 0


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(ORPHANED)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
