"""The embedded Valkey: what it is set to, and what a failing start says."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from deuz_workers.embedded import EmbeddedRedis
from deuz_workers.embedded.binaries import Program
from deuz_workers.errors import ServerUnavailableError


def test_it_keeps_nothing_and_evicts_nothing(private_redis: EmbeddedRedis) -> None:
    """No snapshot, no append-only file, writes are refused when memory runs out."""
    with redis.Redis.from_url(private_redis.url) as client:
        wanted = {"save": "", "appendonly": "no", "maxmemory-policy": "noeviction", "port": "0"}
        assert {name: client.config_get(name)[name] for name in wanted} == wanted


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_new_process_under_the_same_url_is_empty(private_redis: EmbeddedRedis, end: str) -> None:
    """Also after a SIGKILL, which leaves the socket file behind."""
    url, pid = private_redis.url, private_redis.pid
    with redis.Redis.from_url(url) as client:
        client.set("key", 1)
    if end == "kill":
        private_redis.kill()
        private_redis.start()
    else:
        private_redis.restart()
    assert private_redis.pid != pid
    with redis.Redis.from_url(url) as client:
        assert client.dbsize() == 0


def test_start_and_stop_may_be_called_again() -> None:
    """The second call of each changes nothing; a stopped server can be started anew."""
    server = EmbeddedRedis()
    server.stop()
    pid = server.start().pid
    assert server.start().pid == pid
    server.stop()
    server.stop()
    with pytest.raises(ServerUnavailableError, match="is not started"):
        _ = server.url
    with server:
        assert server.pid != pid


def source_of(script: str, folder: Path) -> Callable[[], Iterator[Program]]:
    """A server program that runs `script` in the shell and ends."""
    program = folder / "package/valkey-server"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return lambda: iter([Program(program, "test", (program.parent,))])


def test_a_start_that_fails_quotes_the_server_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error holds the exit code and the last words; the runtime folder is gone."""
    runtime = Path(tempfile.mkdtemp(prefix="dz"))
    runtime.chmod(0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(runtime))
    try:
        with pytest.raises(ServerUnavailableError, match=r"exit code 3\): bad directive: maxmemory-policy"):
            EmbeddedRedis(sources=(source_of("echo 'bad directive: maxmemory-policy'; exit 3", tmp_path),)).start()
        assert list(runtime.iterdir()) == []
    finally:
        runtime.rmdir()


def test_a_socket_path_that_would_be_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is started, with the number of bytes and the way out."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 80)))
    with pytest.raises(ServerUnavailableError, match=r"would have \d+ bytes and at most 99 work; set TMPDIR"):
        EmbeddedRedis().start()


def test_the_server_gets_none_of_our_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment holds what it needs to run, not our keys."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with pytest.raises(ServerUnavailableError) as caught:
        EmbeddedRedis(sources=(source_of("env", tmp_path),)).start()
    assert "LC_ALL=C" in caught.value.message
    assert "sk-secret" not in caught.value.message
