"""The Celery task `deuz.step`: one doorbell, one look at one run."""

from __future__ import annotations

import logging
import threading
from typing import Any

from celery import Celery

from deuz_workers.app.bell import STEP_TASK, local_queue
from deuz_workers.core.change import Bell
from deuz_workers.core.failure import place_of
from deuz_workers.errors import DeuzError
from deuz_workers.workers.host import Host

QUIET_REQUEST = "deuz_workers.workers.request:QuietRequest"

log = logging.getLogger(__name__)


def add_step_task(celery: Celery, host: Host) -> None:
    """`celery` executes doorbells."""

    @celery.task(name=STEP_TASK, bind=True, shared=False, Request=QUIET_REQUEST)
    def step(task: Any, scope: str, run_id: str, revision: int = 0) -> str:
        """Look at a run; returns its id and how the step ended, for the events of the worker.

        `revision` is for people who read the queue: anybody may have written it, so the signed one beside it counts.
        """
        queue = local_queue(str(task.request.delivery_info.get("routing_key")))
        # What leaves a Celery task is pickled, logged and sent in events, so nothing of the original error does.
        code, place = "crashed", ""
        try:
            report = host.here.step(Bell(scope, run_id, queue, host.seen_in(task.request, scope, run_id)))
        except DeuzError as error:
            code, place = error.code, place_of(error)
        except BaseException as error:
            if _is_shutdown(error):
                raise
            code, place = type(error).__name__, place_of(error)  # named without its values
        else:
            return f"{run_id} {report.end}"
        log.error("step_failed run=%s error=%s at=%s", run_id, code, place)
        raise DeuzError(f"a step of run {run_id!r} failed: {code}", code=code, run_id=run_id)


def _is_shutdown(error: BaseException) -> bool:
    """A signal handler of Celery or billiard raised it, to end this process. Anything else that got past a pool would take
    one of its slots along."""
    return isinstance(error, SystemExit | KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
