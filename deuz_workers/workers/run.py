"""Starting a worker in this process: what `deuz worker` does."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from celery import concurrency as pools
from celery import signals

from deuz_workers.app.deuz import Deuz
from deuz_workers.workers.bootstep import check_pool
from deuz_workers.workers.celery_app import make_celery
from deuz_workers.workers.celery_settings import concurrency_of
from deuz_workers.workers.plain import run_plain_worker, what_it_works_on

log = logging.getLogger(__name__)


def run_worker(
    app: Deuz,
    *,
    pool: str | None = None,
    concurrency: int | None = None,
    queues: Sequence[str] | None = None,
    name: str | None = None,
) -> int:
    """Execute steps until a signal says to end; returns the exit code, 0 after a signal.

    Without a broker this is a plain worker (`workers.plain`), else a Celery one. What is None comes from the settings.
    `name`: of the node, `celery@<hostname>` where there are no others on this host.
    Logging is the caller's: Celery adds no handler. Raises `UnsupportedPoolError`, `ConfigurationError`.
    """
    given = {"pool": pool, "concurrency": concurrency, "queues": None if queues is None else tuple(queues)}
    settings = app.settings.model_copy(update={key: value for key, value in given.items() if value is not None})
    app.prices.load()  # before the fork, so that children share it
    if settings.broker is None:
        return run_plain_worker(app, concurrency=concurrency, queues=queues)
    check_pool(settings.pool)
    _ = app.leases
    celery = make_celery(app, settings)
    signals.setup_logging.connect(_logging_is_set_up, weak=False)
    worker: Any = celery.Worker(
        hostname=name,
        pool_cls=pools.get_implementation(settings.pool),
        concurrency=concurrency_of(settings),
        loglevel="INFO",
        quiet=True,
    )
    asked: list[str] = []

    def told_to_end(*, sig: str, **_: Any) -> None:
        asked.append(sig)

    signals.worker_shutting_down.connect(told_to_end)
    log.info("worker_starting pool=%s concurrency=%d %s", settings.pool, settings.concurrency, what_it_works_on(app, settings))
    worker.start()
    # Celery ends with 1 after Ctrl-C and with 0 after SIGTERM, although it does the same.
    return 0 if asked else worker.exitcode or 0


def _logging_is_set_up(**_: Any) -> None:
    """Celery configures logging unless somebody listens to this signal."""
