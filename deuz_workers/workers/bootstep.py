"""How ours begins and ends with a Celery worker, whichever way it was started."""

from __future__ import annotations

from typing import Any

from celery import bootsteps, signals
from celery.concurrency import prefork, solo, thread

from deuz_workers.app.bell import broker_queue, local_queue
from deuz_workers.core.unclean_ends import quarantine_queue
from deuz_workers.errors import UnsupportedPoolError
from deuz_workers.workers.celery_settings import direct_queue
from deuz_workers.workers.drain import Urgency
from deuz_workers.workers.host import host_of


class Duties(bootsteps.StartStopStep):
    """Sweep and heartbeat run with every process that executes steps; a signal reaches all of them.

    In a prefork parent nothing of ours runs but the handler of that signal, which sets a byte (architecture D8).
    """

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        """Raises `UnsupportedPoolError`, and what the application raises when it is imported."""
        super().__init__(worker, **kwargs)
        check_pool(worker.pool_cls)
        host = host_of(worker.app)
        _ = host.app
        queues = worker.app.amqp.queues
        host.queues = tuple(local_queue(name) for name in queues.consume_from)
        host.alone = not issubclass(worker.pool_cls, thread.TaskPool) or worker.concurrency == 1
        taken = list(host.queues)
        if host.alone:  # it needs no companion for runs that have to be executed alone
            for name in map(quarantine_queue, host.queues):
                queues.select_add(direct_queue(broker_queue(name)))
                taken.append(name)
        host.announced = tuple(dict.fromkeys(taken))
        for name in host.announced:
            queues.select_add(direct_queue(broker_queue(host.app.build.queue(name))))
        host.echo_queue = f"echo.{host.app.ids.token()}"
        queues.select_add(direct_queue(broker_queue(host.echo_queue)))
        host.steps_block = issubclass(worker.pool_cls, solo.TaskPool)
        self._is_prefork = issubclass(worker.pool_cls, prefork.TaskPool)

        def child_started(**_: Any) -> None:
            if self._is_prefork:  # solo sends this signal too, and from a process that is no child
                host.start(is_child=True)

        def asked_to_end(*, how: str, **_: Any) -> None:
            if how == "Cold":
                host.flag.ask(Urgency.HURRY)
            else:
                host.flag.ask_again()

        def ended(**_: Any) -> None:
            host.stop()

        signals.worker_process_init.connect(child_started, weak=False)
        signals.worker_process_shutdown.connect(ended, weak=False)
        signals.worker_shutting_down.connect(asked_to_end, weak=False)
        signals.worker_shutdown.connect(ended, weak=False)

    def start(self, parent: Any) -> None:
        if not self._is_prefork:
            host_of(parent.app).start()

    def info(self, obj: Any) -> Any:
        """For `inspect stats`."""
        host = host_of(obj.app)
        return {"deuz": {"dropped": dict(host.dropped), "misfits": dict(host.misfits), "build": host.app.build.name}}


def check_pool(pool: type[Any] | str) -> None:
    """Raises `UnsupportedPoolError` for any pool but threads, prefork and solo; `pool` as a class or by Celery's name."""
    if isinstance(pool, str):
        fits, name = pool in ("threads", "prefork", "processes", "solo"), pool
    else:
        fits, name = issubclass(pool, thread.TaskPool | prefork.TaskPool | solo.TaskPool), pool.__module__.rpartition(".")[2]
    if not fits:
        raise UnsupportedPoolError(
            f"the pool {name!r} cannot run agent steps: a step is a coroutine on the event loop of its process, and "
            "greenlets that patch sockets and threads under it would stop that loop; use threads, prefork or solo",
            pool=name,
        )
