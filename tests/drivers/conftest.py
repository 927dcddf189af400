"""The drivers. Workers are started once, for all tests of this directory."""

from __future__ import annotations

import inspect
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deuz_workers import Settings
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.embedded import EmbeddedRedis
from deuz_workers.errors import ServerUnavailableError
from deuz_workers.store import migrate
from tests import servers
from tests.drivers.driver import Driver, Workers, in_process
from tests.workers.agents import TRACES
from tests.workers.pool import Pool

MEMORY = "sqlite://:memory:"
SLOTS = 8
DRIVERS = ("memory", "file", "embedded", "celery")


@pytest.fixture(scope="package")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Where tools leave their traces, in this process and in workers. No settings but the tests' have a say."""
    folder = tmp_path_factory.mktemp("drivers") / "traces"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("DEUZ_"):
                patch.delenv(name)
        patch.setenv("DEUZ_CONFIG", "/dev/null")
        patch.setenv(TRACES, str(folder))
        yield folder


@contextmanager
def _workers(name: str, traces: Path, settings: Settings) -> Generator[Driver]:
    folder = traces.parent / name
    folder.mkdir()
    pool = Pool(folder, settings, module="tests.drivers.agents:app")
    pool.traces = traces
    try:
        pool.start("threads", SLOTS)
        found = Workers(name, pool, slots=SLOTS)
        yield found
        found.close()
    finally:
        pool.close()


@pytest.fixture(scope="package")
def file_driver(traces: Path) -> Generator[Driver]:
    """In process, over a file."""
    url = f"sqlite:///{traces.parent / 'runs.db'}"
    LOOP.run(migrate(url))
    found = in_process("file", url, traces)
    yield found
    found.close()


@pytest.fixture(scope="package")
def embedded_driver(traces: Path) -> Generator[Driver]:
    """A worker without Celery over a file: one machine, no server."""
    url = f"sqlite:///{traces.parent / 'worker.db'}"
    LOOP.run(migrate(url))
    with _workers("embedded", traces, Settings(database_url=url, lease_ttl_ms=1_000)) as found:
        yield found


@pytest.fixture(scope="package")
def celery_driver(traces: Path, databases: servers.Databases) -> Generator[Driver]:
    """Celery on threads, with Postgres, and a Redis of its own, since other tests empty theirs."""
    server = EmbeddedRedis()
    try:
        server.start()
    except ServerUnavailableError as error:
        servers.unavailable(error)
    with server, databases.fresh(databases.migrated_template(migrate)) as url:
        settings = Settings(database_url=url, redis_url=server.url, lease_ttl_ms=1_000, sweep_interval_ms=200)
        with _workers("celery", traces, settings) as found:
            yield found


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.processes] * (name in DRIVERS[2:])) for name in DRIVERS])
def driver(request: pytest.FixtureRequest, traces: Path) -> Generator[Driver]:
    """Each way to execute runs; no run of this test has begun."""
    if request.param == "memory":
        found = in_process("memory", MEMORY, traces)
        yield found
        found.close()
        return
    found = request.getfixturevalue(f"{request.param}_driver")
    found.started.clear()
    found.swarms.clear()
    yield found


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """What a test's runs came to is what they come to in process over memory: the test is done there once more."""
    done = yield
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    tried = arguments.get("driver")
    if isinstance(tried, Driver) and tried.name != "memory":
        memory = in_process("memory", MEMORY, tried.traces)
        try:
            pyfuncitem.obj(**{**arguments, "driver": memory})
            assert tried.outcomes() == memory.outcomes()
        finally:
            memory.close()
    return done
