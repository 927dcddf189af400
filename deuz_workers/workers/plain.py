"""A worker without Celery, for a pool on one machine over an SQLite database: nobody has to run a server.

Any number of them may work on one file. What another process makes due is found by looking, ten times a second.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.embedded import driver
from deuz_workers.app.settings import Settings
from deuz_workers.core.addresses import without_account
from deuz_workers.core.failure import place_of
from deuz_workers.engine.in_process import InProcess
from deuz_workers.workers.wedge import EXIT_CODE

LOOK_MS = 100
"""One indexed read of the file, a fifth of a millisecond."""

HASTENED = 10_000
"""Runs at most that a worker looks at when it comes, although others put them off."""

log = logging.getLogger(__name__)


def run_plain_worker(app: Deuz, *, concurrency: int | None = None, queues: Sequence[str] | None = None) -> int:
    """Take steps until SIGTERM or SIGINT, drain, and return 0; a second signal ends model calls at once.

    Returns 70 when a task that user code started beside its own has ended the event loop, by `SystemExit`.

    What is None comes from the settings. Raises `MigrationMissingError`, `SchemaTooNewError`, `StoreUnavailableError` before
    anything is taken.
    """
    settings = app.settings
    try:
        asyncio.run(_serve(app, concurrency or settings.concurrency, tuple(queues or settings.queues)))
    except SystemExit as error:
        log.error("loop_died error=SystemExit at=%s", place_of(error))
        return EXIT_CODE
    return 0


async def _serve(app: Deuz, concurrency: int, queues: tuple[str, ...]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with driver(app, concurrency=concurrency, queues=queues, sweep_interval_ms=LOOK_MS) as driving:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _asked_to_end, stop, driving)
        working_on = what_it_works_on(app, app.settings.model_copy(update={"queues": queues}))
        log.info("worker_open pid=%d pool=none concurrency=%d %s", os.getpid(), concurrency, working_on)
        await app.store.hasten(queues, sorted(app.registry.names), HASTENED)  # what no other worker could execute
        courier = app.webhooks.aio.courier()
        telling = None if courier is None else asyncio.create_task(courier.run(), name="deuz-webhooks")
        try:
            await driving.serve(stop, grace_ms=app.settings.drain_grace_ms)
        finally:
            if telling is not None:
                telling.cancel()
                await asyncio.wait((telling,))
    await app.aclose()


def what_it_works_on(app: Deuz, settings: Settings) -> str:
    """Queues, number of agents and reducers, and the database without account, for the log."""
    names = f"agents={len(app.registry.agents)} reducers={len(app.registry.reducers)}"
    return f"queues={','.join(settings.queues)} {names} database={without_account(settings.database_url)}"


def _asked_to_end(stop: asyncio.Event, driving: InProcess) -> None:
    if stop.is_set():
        driving.hurry()
    log.info(
        "%s pid=%d steps=%d", "worker_hurrying" if stop.is_set() else "worker_draining", os.getpid(), driving.running_steps
    )
    stop.set()
