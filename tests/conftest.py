"""Fixtures with real servers. Which servers, and why one set per pytest process, says :mod:`tests.servers`."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from deuz_workers import embedded
from deuz_workers.embedded import EmbeddedPostgres, EmbeddedRedis
from deuz_workers.errors import ServerUnavailableError
from tests import servers

FIRST_SEED = "DEUZ_SIMULATION_FIRST"


def pytest_configure(config: pytest.Config) -> None:
    """Simulated schedules have other seeds in every test run; the processes of one run share the first."""
    os.environ.setdefault(FIRST_SEED, str(secrets.randbelow(10**9)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The seeds of this run, where schedules were among its tests."""
    reports = [report for found in terminalreporter.stats.values() for report in found if isinstance(report, pytest.TestReport)]
    if any(report.nodeid.startswith("tests/simulation/") for report in reports):
        terminalreporter.write_line(f"simulated schedules: {FIRST_SEED}={os.environ[FIRST_SEED]} plays the same ones")


@pytest.fixture(scope="session")
def data_folder() -> Generator[Path]:
    """Where the data directories of this test run lie."""
    with servers.vanishing_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def databases(data_folder: Path) -> Generator[servers.Databases]:
    """The Postgres server of this test run, as a maker of databases."""
    with servers.shared_databases(data_folder) as databases:
        yield databases


@pytest.fixture
def postgres_dsn(databases: servers.Databases) -> Generator[str]:
    """URL of an empty database of this test's own."""
    with databases.fresh() as url:
        yield url


@pytest.fixture
def migrated_postgres_dsn(databases: servers.Databases) -> Generator[str]:
    """URL of a database of this test's own with the schema of the store, empty of rows."""
    from deuz_workers.store import migrate

    with databases.fresh(databases.migrated_template(migrate)) as url:
        yield url


@pytest.fixture(scope="session")
def shared_redis_url() -> Generator[str]:
    """The Valkey server of this test run; tests ask for `redis_url`."""
    with servers.shared_redis() as url:
        yield url


@pytest.fixture
def redis_url(shared_redis_url: str) -> str:
    """URL (redis-py's spelling) of a Valkey database that is empty when the test begins."""
    servers.flush(shared_redis_url)
    return shared_redis_url


@pytest.fixture
def broker_url(redis_url: str) -> str:
    """The database of `redis_url` in Celery's spelling."""
    return embedded.broker_url(redis_url)


@pytest.fixture(scope="session")
def pristine_cluster(data_folder: Path) -> servers.PristineCluster:
    """Source of data directories for servers that a test may break."""
    return servers.PristineCluster(data_folder)


@pytest.fixture
def private_postgres(pristine_cluster: servers.PristineCluster) -> Generator[EmbeddedPostgres]:
    """A Postgres server of this test's own, which it may kill, restart or fill."""
    try:
        data_dir = pristine_cluster.copy()
    except ServerUnavailableError as error:
        servers.unavailable(error)
    with EmbeddedPostgres(data_dir, durable=False) as server:
        yield server
    shutil.rmtree(data_dir)


@pytest.fixture
def private_redis() -> Generator[EmbeddedRedis]:
    """A Valkey server of this test's own, which it may kill, restart or fill."""
    server = EmbeddedRedis()
    try:
        server.start()
    except ServerUnavailableError as error:
        servers.unavailable(error)
    with server:
        yield server
