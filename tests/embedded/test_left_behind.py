"""Nothing outlives the process that started a server, however that process ends."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from deuz_workers.embedded import EmbeddedRedis
from deuz_workers.errors import ServerUnavailableError

DEADLINE_S = 30.0

OWNER = """
import json, os, sys
from deuz_workers.embedded import EmbeddedPostgres, EmbeddedRedis
server = EmbeddedPostgres(durable=False) if sys.argv[1] == "postgres" else EmbeddedRedis()
with server:
    if sys.argv[2] == "fork" and os.fork() == 0:
        sys.stdin.read()  # a child that holds copies of all pipes, and outlives its parent
        os._exit(0)
    print(json.dumps([server.pid, server.keeper_pid, str(server.folder)]), flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "raise":
        raise RuntimeError("an error of the application")
"""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that has started a server, and what must not outlive it."""

    process: subprocess.Popen[str]
    server: int
    keeper: int
    folder: Path


@contextmanager
def owner(server: str, what: str = "") -> Generator[Owner]:
    """A process with a running server; at the end it is gone, its server and its keeper are, and so is the folder."""
    command = [sys.executable, "-c", OWNER, server, what]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        server_pid, keeper, folder = json.loads(line)
        descriptors = [os.pidfd_open(pid) for pid in (process.pid, server_pid, keeper)]
        try:
            yield Owner(process, server_pid, keeper, Path(folder))
            for descriptor in descriptors:
                assert select.select([descriptor], [], [], DEADLINE_S)[0], "a process was left behind"
            assert not Path(folder).exists()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
            process.kill()


@pytest.mark.processes
@pytest.mark.parametrize("server", ["postgres", "redis"])
def test_a_killed_owner_takes_its_server_along(server: str) -> None:
    """SIGKILL leaves the owner no time for anything; server and folder go all the same."""
    with owner(server) as owned:
        owned.process.kill()


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_that_end_the_owner_end_the_server(number: signal.Signals) -> None:
    """SIGTERM without any handler, Ctrl-C, and a closed terminal."""
    with owner("redis") as owned:
        owned.process.send_signal(number)


@pytest.mark.processes
def test_ctrl_c_in_the_terminal_reaches_the_owner_only() -> None:
    """Keeper and server are in a session of their own, so that the owner decides in which order things end."""
    with owner("redis") as owned:
        assert os.getsid(owned.server) == os.getsid(owned.keeper) == owned.keeper
        assert os.getsid(owned.process.pid) != owned.keeper
        owned.process.kill()


@pytest.mark.processes
def test_an_exception_of_the_application_ends_the_server() -> None:
    """The with statement is left by an error, and the error is what the user sees."""
    with owner("redis", "raise") as owned:
        _, said = owned.process.communicate("\n", timeout=DEADLINE_S)
        assert said.strip().endswith("RuntimeError: an error of the application")


@pytest.mark.processes
def test_a_forked_child_does_not_keep_the_server_alive() -> None:
    """The child has copies of the pipes to the keeper; the keeper watches the owner itself."""
    with owner("redis", "fork") as owned:
        owned.process.kill()
        for pid in (owned.server, owned.keeper):
            descriptor = pidfd(pid)
            if descriptor is not None:
                assert select.select([descriptor], [], [], DEADLINE_S)[0]
                os.close(descriptor)
        assert owned.process.stdin
        owned.process.stdin.close()  # only now the child may end


def pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable at the end of the process; `None` when it is gone."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


@pytest.mark.processes
@pytest.mark.parametrize("server", ["postgres", "redis"])
def test_a_killed_keeper_takes_the_server_along(server: str) -> None:
    """The system signals the server then, and its owner removes the folder when it stops."""
    with owner(server) as owned:
        os.kill(owned.keeper, signal.SIGKILL)
        descriptor = pidfd(owned.server)
        if descriptor is not None:
            assert select.select([descriptor], [], [], DEADLINE_S)[0]
            os.close(descriptor)
        owned.process.communicate("\n", timeout=DEADLINE_S)


def test_a_killed_keeper_is_reported_and_start_helps() -> None:
    """Every use says what happened and what to do; stop and start give a new server."""
    with EmbeddedRedis() as server:
        os.kill(server.keeper_pid, signal.SIGKILL)
        with pytest.raises(ServerUnavailableError, match="stop and start"):
            server.kill()
        server.stop()
        with redis.Redis.from_url(server.start().url) as client:
            assert client.ping()


def test_a_server_outlives_the_thread_that_started_it() -> None:
    """What counts is the process: a parent-death signal would follow the thread."""
    server = EmbeddedRedis()
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    with server, redis.Redis.from_url(server.url) as client:
        assert client.ping()


@pytest.mark.processes
def test_a_forked_child_cannot_stop_the_server_of_its_parent() -> None:
    """Leaving the with statement in a child (multiprocessing, a prefork pool) has no effect on the server."""
    program = """
import os, sys
from deuz_workers.embedded import EmbeddedRedis
with EmbeddedRedis() as server:
    child = os.fork()
    if child == 0:
        server.stop()
        os._exit(0)
    os.waitpid(child, 0)
    import redis
    assert redis.Redis.from_url(server.url).ping()
    server.restart()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
