"""Ways to execute runs, behind the same few verbs."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

from deuz_workers import AgentResult, Deuz, Settings, Swarm, SwarmResult
from deuz_workers.app.embedded import driver
from deuz_workers.app.handle import Handle, SwarmHandle
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.core.run import read_run
from deuz_workers.leases import memory_leases
from deuz_workers.testing.crashing_store import CrashingStore, ProcessDied
from tests.drivers.agents import application
from tests.outcome import outcome_of
from tests.workers.pool import DEADLINE_S, Pool, wait_until

OUTCOME_COMMIT = 3
"""Of the first turn of a run: its call, its reply, and then what came of its only tool."""


class Driver(ABC):
    """An application, and something that executes its runs."""

    def __init__(self, name: str, app: Deuz, traces: Path) -> None:
        self.name = name
        self.app = app
        self.started: list[Handle] = []
        """Every run of the test, in order."""
        self.swarms: list[tuple[SwarmHandle, SwarmResult]] = []
        """Every swarm of the test that was waited for."""
        self.traces = traces
        self._threads = ThreadPoolExecutor(4)

    def start(self, agent: str, prompt: str = "go", **options: Any) -> Handle:
        """A new run; workers have it from now on, in process it begins with `result`."""
        handle = self.app.enqueue(agent, prompt, **options)
        self.started.append(handle)
        return handle

    def result(self, handle: Handle) -> AgentResult[Any]:
        """What the run has to report, once there is something."""
        return self.results(handle)[0]

    def begin(self, handle: Handle) -> Future[AgentResult[Any]]:
        """The same, while the test goes on."""
        return self._threads.submit(self.result, handle)

    @abstractmethod
    def results(self, *handles: Handle) -> list[AgentResult[Any]]:
        """Of several runs, which are executed side by side."""

    def swarm(self, swarm: Swarm) -> tuple[SwarmHandle, SwarmResult]:
        """A swarm that has ended, or only waits."""
        self.swarms.append(self._swarm(swarm, f"s-{uuid4()}"))
        return self.swarms[-1]

    @abstractmethod
    def _swarm(self, swarm: Swarm, run_id: str) -> tuple[SwarmHandle, SwarmResult]: ...

    @abstractmethod
    def interrupted(self, *agents: str, at: int = OUTCOME_COMMIT) -> list[Handle]:
        """A run of each, whose process died after its only tool had begun and before anything of that was saved."""

    def until(self, handle: Handle, status: str) -> AgentResult[Any]:
        """The result of the run once it reads so, whatever it reads before."""
        until = time.monotonic() + DEADLINE_S
        while (result := self.result(handle)).status != status:
            assert time.monotonic() < until, f"{handle} is {result.status}"
            time.sleep(0.02)
        return result

    def effects(self, handle: Handle) -> list[str]:
        """What tools of the run did, in order."""
        return self.lines(handle.run_id)

    def lines(self, name: str) -> list[str]:
        path = self.traces / name.replace("/", "_")
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        wait_until(is_so, what)

    def open(self, gate: str) -> None:
        """What waits for `gate` goes on."""
        (self.traces / f"{gate}.go").touch()

    def shut(self, gate: str) -> None:
        """`gate` is closed."""
        (self.traces / f"{gate}.go").unlink(missing_ok=True)

    def clear(self, name: str) -> None:
        """Nothing is traced under `name` yet."""
        (self.traces / name).unlink(missing_ok=True)

    def outcomes(self) -> list[dict[str, object]]:
        """Content of the envelopes of all runs of the test, and what their journals tell."""
        found = [self._outcome(handle) for handle in self.started]
        for handle, result in self.swarms:
            facts: dict[str, object] = {
                "status": result.status,
                "tasks": dict(result.tasks),
                "outputs": dict(result.outputs),
                "tokens": result.tokens,
            }
            found.append(facts)
            found += [
                self._outcome(handle.task(name)) for name, status in sorted(result.tasks.items()) if status == "completed"
            ]
        return found

    def _outcome(self, handle: Handle) -> dict[str, object]:
        loaded = LOOP.run(self.app.store.load(handle.scope, handle.run_id))
        assert loaded is not None
        journal = [event.type for event in handle.events(follow=False)]
        return {**outcome_of(read_run(loaded.head, loaded.messages, loaded.receipts)), "journal": journal}

    def close(self) -> None:
        self._threads.shutdown()
        self.app.close()


class InProcess(Driver):
    """The caller's own process takes the steps, while it waits for a result."""

    def results(self, *handles: Handle) -> list[AgentResult[Any]]:
        return LOOP.run(self._results(handles))

    async def _results(self, handles: Sequence[Handle]) -> list[AgentResult[Any]]:
        async with driver(self.app) as driving:
            assert await driving.drive([(handle.scope, handle.run_id) for handle in handles]) == {}
        return [await self.app.aio.resume_embedded(handle.run_id, scope=handle.scope) for handle in handles]

    def _swarm(self, swarm: Swarm, run_id: str) -> tuple[SwarmHandle, SwarmResult]:
        result = self.app.run_swarm_embedded(swarm, run_id=run_id)
        return self.app.swarm_handle(run_id), result

    def interrupted(self, *agents: str, at: int = OUTCOME_COMMIT) -> list[Handle]:
        for agent in agents:
            handle = self.start(agent)
            self.open(handle.run_id)
            store = CrashingStore(self.app.store, at)
            dying = application(self.app.settings, store.as_store, memory_leases())
            with contextlib.suppress(ProcessDied):
                dying.resume_embedded(handle.run_id)
            assert store.died
            self.shut(handle.run_id)
        return self.started[-len(agents) :]


class Workers(Driver):
    """Processes of a pool take the steps."""

    def __init__(self, name: str, pool: Pool, *, slots: int) -> None:
        """`pool`: with one worker of `slots`."""
        super().__init__(name, application(pool.settings), pool.traces)
        self._pool = pool
        self._slots = slots

    def results(self, *handles: Handle) -> list[AgentResult[Any]]:
        return [handle.result(DEADLINE_S) for handle in handles]

    def _swarm(self, swarm: Swarm, run_id: str) -> tuple[SwarmHandle, SwarmResult]:
        handle = self.app.run_swarm(swarm, run_id=run_id)
        return handle, handle.result(DEADLINE_S)

    def interrupted(self, *agents: str, at: int = OUTCOME_COMMIT) -> list[Handle]:
        handles = [self.start(agent) for agent in agents]
        for handle in handles:
            self.wait_for(lambda handle=handle: bool(self.effects(handle)), "the tool has begun")
        self._pool.workers[-1].kill()
        self._pool.start("threads", self._slots)
        return handles


def in_process(name: str, url: str, traces: Path) -> InProcess:
    """Over the SQLite database at `url`; leases beside a file, else in memory."""
    settings = Settings(database_url=url, redis_url=None, broker_url=None, leases_url=None, lease_ttl_ms=1_000)
    return InProcess(name, application(settings), traces)
