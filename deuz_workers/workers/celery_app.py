"""The Celery application of a `Deuz`.

For tools that take a Celery application by name (`celery --app deuz_workers.workers.celery_app flower`, `inspect ping`, or a
plain `worker`): `app` is made at the first use, from settings in the environment; the `Deuz` is the one that `DEUZ_APP` names
(`package.module:attribute`) and is imported only when a worker starts.
"""

from __future__ import annotations

import os
from typing import Any, Final

from celery import Celery
from celery.app.amqp import AMQP

from deuz_workers.app.broker_connection import SteadyConnection
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.discovery import load_app
from deuz_workers.app.settings import Settings
from deuz_workers.errors import ConfigurationError
from deuz_workers.workers.answer_task import add_answer_tasks
from deuz_workers.workers.bootstep import Duties
from deuz_workers.workers.celery_settings import celery_settings
from deuz_workers.workers.enqueue_task import add_enqueue_task
from deuz_workers.workers.hearing import Hearing
from deuz_workers.workers.host import Host, attach
from deuz_workers.workers.step_task import add_step_task

APP_VARIABLE: Final = "DEUZ_APP"


class SteadyAmqp(AMQP):
    """What the application publishes and consumes goes over `SteadyConnection`."""

    Connection = SteadyConnection
    BrokerConnection = SteadyConnection


def make_celery(deuz_app: Deuz | None = None, settings: Settings | None = None) -> Celery:
    """A Celery application whose workers run the steps of `deuz_app`; None: of the one that `DEUZ_APP` names.

    `settings` None: those of `deuz_app`, else from the environment. Nothing is connected.
    """
    settings = settings or (Settings() if deuz_app is None else deuz_app.settings)
    celery = Celery("deuz", set_as_current=False, amqp=SteadyAmqp)
    celery.conf.update(celery_settings(settings))
    host = Host(load_named_app if deuz_app is None else lambda: deuz_app)
    attach(host, celery)
    celery.steps["worker"].add(Duties)
    celery.steps["consumer"].add(Hearing)
    add_step_task(celery, host)
    add_enqueue_task(celery, host)
    add_answer_tasks(celery, host)
    return celery


def load_named_app() -> Deuz:
    """The application that `DEUZ_APP` names. Raises `ConfigurationError` when it names none."""
    place = os.environ.get(APP_VARIABLE)
    if not place:
        raise ConfigurationError(
            f"no application to run: set {APP_VARIABLE}=package.module:attribute, or start with `deuz worker --app`"
        )
    return load_app(place)


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()["app"] = make_celery()
    return made
