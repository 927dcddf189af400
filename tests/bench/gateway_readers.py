"""`python -m tests.bench.gateway_readers`: how long a fragment is under way from a worker to readers of one gateway process.

Postgres, Valkey, a Celery worker and `deuz serve` on this machine. Each run writes the time so often a second; each reader has
a connection of its own and subtracts. Prints one line of JSON: milliseconds from the model's `on_text` to the reader's socket,
over all fragments and readers, and what the gateway process took of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from deuz_workers.embedded import EmbeddedPostgres, EmbeddedRedis
from deuz_workers.store import migrate

ROOT = Path(__file__).parents[2]
STAMP = re.compile(rb"\d{12,}")
START_S = 60.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--per-second", type=float, default=10.0, help="fragments of each run")
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        postgres = stack.enter_context(EmbeddedPostgres())
        redis = stack.enter_context(EmbeddedRedis())
        asyncio.run(migrate(postgres.url))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DEUZ_")} | {
            "DEUZ_DATABASE_URL": postgres.url,
            "DEUZ_REDIS_URL": redis.url,
            "DEUZ_CONFIG": os.devnull,
            "DEUZ_APP": "tests.bench.ticking_app:app",
            "PYTHONPATH": str(ROOT),
        }
        worker = _started(stack, environment, Path(folder) / "worker.log", "worker_open", "worker")
        gateway = _started(stack, environment, Path(folder) / "gateway.log", "gateway_open", "serve", "--port", "0")
        found = re.search(r"gateway_open url=http://([\d.]+):(\d+)", (Path(folder) / "gateway.log").read_text())
        assert found is not None
        create = [sys.executable, "-m", "deuz_workers.cli", "token", "create", "bench", "--scope", "default"]
        token = subprocess.run(create, env=environment, check=True, capture_output=True, text=True).stdout.strip()
        figures = asyncio.run(measure(found[1], int(found[2]), token, given, gateway.pid))
        print(json.dumps(figures | {"load": os.getloadavg()[0], "worker": worker.pid and "threads"}))
    return 0


async def measure(host: str, port: int, token: str, given: Any, gateway_pid: int) -> dict[str, Any]:
    """Start the runs, read them, and what their fragments took."""
    headers = {"authorization": f"Bearer {token}"}
    body = {"agent": "ticker", "prompt": f"{given.per_second} {given.seconds}", "stream": True}
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", headers=headers, timeout=60) as client:
        answers = [await client.post("/v1/runs", json=body) for _ in range(given.runs)]
    run_ids = [answer.json()["run_id"] for answer in answers]
    began_s, cpu_s = time.monotonic(), _cpu_s(gateway_pid)
    readers = [_read(host, port, token, run_ids[number % given.runs]) for number in range(given.readers)]
    read = await asyncio.gather(*readers)
    used = (_cpu_s(gateway_pid) - cpu_s) / (time.monotonic() - began_s)
    delays = sorted(delay for delays, _ in read for delay in delays)
    cuts = statistics.quantiles(delays, n=100)
    return {
        "readers": given.readers,
        "runs": given.runs,
        "fragments": len(delays),
        "delay_ms_p50": round(cuts[49], 1),
        "delay_ms_p95": round(cuts[94], 1),
        "delay_ms_p99": round(cuts[98], 1),
        "delay_ms_max": round(delays[-1], 1),
        "ended": sum(is_done for _, is_done in read),
        "gateway_of_a_core": round(used, 2),
    }


async def _read(host: str, port: int, token: str, run_id: str) -> tuple[list[float], bool]:
    """What each fragment took that was written after the reader came, in milliseconds, and whether the leg ended."""
    reader, writer = await asyncio.open_connection(host, port)
    request = f"GET /v1/runs/{run_id}/stream HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n\r\n"
    writer.write(request.encode())
    came_ns = time.monotonic_ns()
    delays: list[float] = []
    while line := await reader.readline():
        now_ns = time.monotonic_ns()
        if b"[DONE]" in line:
            writer.close()
            return delays, True
        if b'"text-delta"' in line:
            stamps = [int(stamp) for stamp in STAMP.findall(line)]
            delays += [(now_ns - stamp) / 1e6 for stamp in stamps if stamp > came_ns]
    return delays, False


def _started(stack: ExitStack, environment: dict[str, str], log: Path, sign: str, *command: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "deuz_workers.cli", *command], env=environment, cwd=log.parent, stdout=out, stderr=out
        )
    stack.callback(process.wait)
    stack.callback(process.kill)
    until = time.monotonic() + START_S
    while sign not in log.read_text():
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"{command[0]} did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.05)
    return process


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
