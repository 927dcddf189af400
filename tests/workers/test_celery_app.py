"""The Celery application itself: its settings, what it refuses, and what it does not need."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from celery.app.defaults import NAMESPACES, flatten
from celery.app.utils import find_app
from celery.concurrency import prefork, solo, thread
from celery.concurrency.base import BasePool
from celery.worker.control import Panel

from deuz_workers.app.agent import Agent
from deuz_workers.app.broker_connection import SteadyChannel
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.errors import ConfigurationError, UnsupportedPoolError
from deuz_workers.providers.mock import MockModel
from deuz_workers.workers import celery_app
from deuz_workers.workers.bootstep import Duties, check_pool
from deuz_workers.workers.celery_app import load_named_app, make_celery
from deuz_workers.workers.celery_settings import celery_settings, concurrency_of
from deuz_workers.workers.consumer import ALLOWED_COMMANDS
from deuz_workers.workers.run import run_worker


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("DEUZ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DEUZ_CONFIG", "/dev/null")


def settings(**values: Any) -> Settings:
    return Settings(database_url="sqlite:///x.db", redis_url="redis://127.0.0.1:1/0", **values)


def test_every_setting_is_one_of_celery() -> None:
    """A name that this release of Celery does not know would be ignored in silence."""
    known = {name for name, _ in flatten(NAMESPACES)}
    assert celery_settings(settings()).keys() <= known


def test_every_transport_option_is_known() -> None:
    """The same for the options of the Redis transport, and of ours over it."""
    assert celery_settings(settings())["broker_transport_options"].keys() <= set(SteadyChannel.from_transport_options)


def test_nothing_waits_in_the_broker_for_longer_than_a_step() -> None:
    """No second copy after a visibility timeout, no results, no content type but JSON, one waiting message per slot."""
    conf = make_celery(Deuz(settings=settings())).conf
    assert conf.broker_transport_options["ack_emulation"] is False
    assert (conf.task_acks_late, conf.task_reject_on_worker_lost, conf.worker_prefetch_multiplier) == (True, True, 1)
    assert (conf.task_ignore_result, conf.result_backend) == (True, None)
    assert conf.accept_content == ["json"]
    assert conf.worker_cancel_long_running_tasks_on_connection_loss is False


def test_prefork_gets_a_process_per_core_where_nobody_chose() -> None:
    """The default number of steps is meant for threads, which cost nothing while they wait."""
    assert concurrency_of(settings()) == Settings.model_fields["concurrency"].default
    assert concurrency_of(settings(pool="prefork")) == os.cpu_count()
    assert concurrency_of(settings(pool="prefork", concurrency=3)) == 3


@pytest.mark.parametrize("pool", [thread.TaskPool, prefork.TaskPool, solo.TaskPool, "threads", "prefork", "solo"])
def test_three_pools_are_taken(pool: Any) -> None:
    """By class, as a bootstep sees them, and by name."""
    check_pool(pool)


class Greenlets(BasePool):
    """Stands for the pools of gevent and eventlet, which need not be installed."""

    is_green = True


@pytest.mark.parametrize("pool", ["gevent", "eventlet", Greenlets])
def test_greenlets_are_refused_with_a_reason(pool: Any) -> None:
    """The error says why and what to use."""
    with pytest.raises(UnsupportedPoolError, match=r"greenlets.*use threads, prefork or solo"):
        check_pool(pool)


def test_a_worker_with_greenlets_does_not_start() -> None:
    """Neither by `deuz worker`, nor by Celery's own command, in whose worker our bootstep is."""
    app = Deuz([Agent("a", model=MockModel(["x"]))], settings=settings())
    with pytest.raises(UnsupportedPoolError):
        run_worker(app, pool="gevent")
    celery = make_celery(app)
    assert Duties in celery.steps["worker"]
    with pytest.raises(UnsupportedPoolError):
        Duties(SimpleNamespace(app=celery, pool_cls=Greenlets))


def test_the_module_has_an_application_without_naming_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower and `inspect ping` need the broker only; the agents are imported when a worker starts."""
    monkeypatch.setenv("DEUZ_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.delattr(celery_app, "app", raising=False)
    found = find_app("deuz_workers.workers.celery_app")
    assert found is celery_app.app
    assert {"deuz.step", "deuz.enqueue"} <= set(found.tasks)
    monkeypatch.delattr(celery_app, "app")


def test_a_worker_without_an_application_says_what_to_set() -> None:
    """A typed error with the name of the variable."""
    with pytest.raises(ConfigurationError, match="DEUZ_APP"):
        load_named_app()


def test_remote_control_only_looks() -> None:
    """Every command that is allowed is one of Celery's that inspect, and no other is."""
    kinds = {name: Panel.meta[name].type for name in ALLOWED_COMMANDS}
    assert set(kinds.values()) == {"inspect"}


def test_importing_an_application_imports_no_celery() -> None:
    """A producer pays for Celery only if it uses it."""
    code = "import sys, deuz_workers.app.deuz; sys.exit('celery' in sys.modules or 'kombu' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
