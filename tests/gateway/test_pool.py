"""`deuz serve` over Postgres and Valkey, with a Celery worker: three processes, and a reader who knows only HTTP."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from deuz_workers.app.access_tokens import AccessTokens
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.app.ui_reading import UiFrame, UiReader
from tests.faults.talking_agents import ANSWER, application
from tests.gateway.serving import data_of, text_of
from tests.workers.conftest import pool
from tests.workers.pool import DEADLINE_S, Pool

__all__ = ["pool"]

pytestmark = pytest.mark.processes


@dataclass
class Served:
    """A gateway process over the pool."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Gateways:
    """Starts gateway processes, and ends them with the test."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._started: list[Served] = []
        tokens = AccessTokens(pool.app.store, pool.app.ids)
        self.headers = {"authorization": f"Bearer {LOOP.run(tokens.create('ann', ['default'])).token}"}

    def start(self) -> Served:
        log = self._pool.folder / f"gateway{len(self._started)}.log"
        environment = self._pool.environment() | {"DEUZ_GATEWAY_SECRET": "s" * 32}
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "deuz_workers.cli", "serve", "--port", "0"],
                env=environment,
                cwd=self._pool.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + DEADLINE_S
        while (found := re.search(r"gateway_open url=(\S+)", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.02)
        served = Served(process, log, found[1])
        self._started.append(served)
        return served

    def close(self) -> None:
        for served in self._started:
            if served.process.poll() is None:
                served.kill()


@pytest.fixture
def gateways(pool: Pool) -> Generator[Gateways]:
    """None yet; their application is that of the pool's workers."""
    pool.module = "tests.faults.talking_agents:app"
    pool.app.close()
    pool.app = application(pool.settings)
    made = Gateways(pool)
    yield made
    made.close()


def read(client: httpx.Client, run_id: str, reader: UiReader, until: str | None = None) -> list[UiFrame]:
    """Frames until one has this text, or to the end of the response."""
    seen: list[UiFrame] = []
    headers = {"last-event-id": str(reader.last_seq)}
    with client.stream("GET", f"/v1/runs/{run_id}/stream", headers=headers) as answer:
        assert answer.status_code == 200
        for chunk in answer.iter_raw():
            seen += reader.feed(chunk)
            if until is not None and any(frame.part and until in str(frame.part) for frame in seen):
                return seen
    return seen


@pytest.mark.spec("UIW-022")
def test_a_gateway_shows_and_replays_what_a_worker_executes(pool: Pool, gateways: Gateways) -> None:
    """Text comes while the worker writes it; another gateway, started afterwards, replays all of it under the same numbers."""
    pool.start()
    gate = gateways.start()
    with httpx.Client(base_url=gate.url, headers=gateways.headers, timeout=DEADLINE_S) as client:
        run_id = client.post("/v1/runs", json={"agent": "talker", "prompt": "gate", "stream": True}).json()["run_id"]
        reader = UiReader()
        live = read(client, run_id, reader, "first half")
        assert not any(frame.is_done for frame in live)
        pool.go("gate")
        live += read(client, run_id, reader)
    assert live[-1].is_done
    assert [frame.seq for frame in live] == list(range(1, len(live) + 1))
    assert text_of(live)[1].endswith(ANSWER)
    assert data_of(live)[-1]["status"] == "completed"
    gate.kill()
    other = gateways.start()
    with httpx.Client(base_url=other.url, headers=gateways.headers, timeout=DEADLINE_S) as client:
        assert read(client, run_id, UiReader()) == live


@pytest.mark.spec("UIW-021")
def test_a_gateway_that_dies_in_the_middle_of_an_answer_leaves_neither_gap_nor_duplicate(
    pool: Pool, gateways: Gateways
) -> None:
    """It is killed when half of the answer is shown; the reader goes on at another one, which begins in the middle."""
    pool.start()
    gate = gateways.start()
    reader = UiReader()
    with httpx.Client(base_url=gate.url, headers=gateways.headers, timeout=DEADLINE_S) as client:
        run_id = client.post("/v1/runs", json={"agent": "talker", "prompt": "gate", "stream": True}).json()["run_id"]
        seen = read(client, run_id, reader, "first half")
        gate.kill()
    other = gateways.start()
    pool.go("gate")
    with httpx.Client(base_url=other.url, headers=gateways.headers, timeout=DEADLINE_S) as client:
        seen += read(client, run_id, reader)
        whole = read(client, run_id, UiReader())
    assert seen == whole
    assert text_of(seen)[1].endswith(ANSWER)
    assert text_of(seen)[1].count("first half") == 1
    assert sum(frame.is_done for frame in seen) == 1


def test_two_gateways_show_one_run_alike(pool: Pool, gateways: Gateways) -> None:
    """Both follow it while it is written; every number is the same frame at both."""
    pool.start()
    clients = [httpx.Client(base_url=gateways.start().url, headers=gateways.headers, timeout=DEADLINE_S) for _ in range(2)]
    run_id = clients[0].post("/v1/runs", json={"agent": "talker", "prompt": "gate", "stream": True}).json()["run_id"]
    readers = [UiReader(), UiReader()]
    seen = [read(client, run_id, reader, "first half") for client, reader in zip(clients, readers, strict=True)]
    pool.go("gate")
    for frames, client, reader in zip(seen, clients, readers, strict=True):
        frames += read(client, run_id, reader)
        client.close()
    assert seen[0] == seen[1]
    assert text_of(seen[0])[1].endswith(ANSWER)


def test_a_dead_workers_words_are_taken_back(pool: Pool, gateways: Gateways) -> None:
    """What the first worker wrote before it was killed is discarded, and the reader ends with the saved answer."""
    first = pool.start()
    gate = gateways.start()
    with httpx.Client(base_url=gate.url, headers=gateways.headers, timeout=DEADLINE_S) as client:
        run_id = client.post("/v1/runs", json={"agent": "talker", "prompt": "gate", "stream": True}).json()["run_id"]
        reader = UiReader()
        seen = read(client, run_id, reader, f"of {first.pid}")
        first.kill()
        pool.go("gate")
        pool.start()
        seen += read(client, run_id, reader)
        detail = client.get(f"/v1/runs/{run_id}").json()
    assert text_of(seen)[1] == detail["output"] == ANSWER
    assert any(data["kind"] == "discard" for data in data_of(seen))


def test_a_gateway_that_is_told_to_end_lets_its_readers_go(pool: Pool, gateways: Gateways) -> None:
    """The response ends without the end of the leg, and the process with 0."""
    pool.start()
    gate = gateways.start()
    with httpx.Client(base_url=gate.url, headers=gateways.headers, timeout=DEADLINE_S) as client:
        run_id = client.post("/v1/runs", json={"agent": "talker", "prompt": "gate", "stream": True}).json()["run_id"]
        with client.stream("GET", f"/v1/runs/{run_id}/stream") as answer:
            raw, is_told = b"", False
            for chunk in answer.iter_raw():
                raw += chunk
                if b"first half" in raw and not is_told:
                    is_told = True
                    os.kill(gate.process.pid, signal.SIGTERM)
    assert is_told
    assert b"[DONE]" not in raw
    assert gate.process.wait(DEADLINE_S) == 0
    assert "ticket" not in gate.log.read_text()


@pytest.mark.spec("FR-39")
def test_a_reader_who_reloads_at_every_event_sees_a_death_and_a_stop_as_they_are(pool: Pool, gateways: Gateways) -> None:
    """The worker is killed in the middle of its answer, and the run is stopped from elsewhere in the middle of the next try:
    no gap, no duplicate, and what the dead and the stopped attempt wrote is taken back.
    """
    first = pool.start()
    gate = gateways.start()
    seen: list[UiFrame] = []
    with httpx.Client(base_url=gate.url, headers=gateways.headers, timeout=DEADLINE_S) as client:
        run_id = client.post("/v1/runs", json={"agent": "talker", "prompt": "gate", "stream": True}).json()["run_id"]
        told = {"killed": False, "stopped": False}
        while not seen or not seen[-1].is_done:
            seen.append(next_frame(client, run_id, seen[-1].seq if seen else None))
            shown = text_of(seen).get(1, "")
            if not told["killed"] and f"of {first.pid}" in shown:
                told["killed"] = True
                first.kill()
                pool.start()
            if told["killed"] and not told["stopped"] and shown == "first half, ":
                told["stopped"] = True
                with httpx.Client(base_url=gate.url, headers=gateways.headers) as elsewhere:
                    assert elsewhere.post(f"/v1/runs/{run_id}/cancel", json={}).json() == {"accepted": True}
        whole = read(client, run_id, UiReader())
    assert told == {"killed": True, "stopped": True}
    assert seen == whole
    assert [frame.seq for frame in seen] == list(range(1, len(seen) + 1))
    assert text_of(seen) == {}
    assert sum(data["kind"] == "discard" for data in data_of(seen)) == 2
    assert (data_of(seen)[-1]["status"], data_of(seen)[-1]["reason"]) == ("stopped", "aborted")


def next_frame(client: httpx.Client, run_id: str, after: int | None) -> UiFrame:
    """The first frame behind `after`; the response is left then, as by a reload."""
    headers = {} if after is None else {"last-event-id": str(after)}
    while True:  # a response that ends without news is opened again
        with client.stream("GET", f"/v1/runs/{run_id}/stream", headers=headers) as answer:
            reader = UiReader(after or 0)
            for chunk in answer.iter_raw():
                if frames := reader.feed(chunk):
                    return frames[0]
