"""`python -m tests.faults.gateway [--minutes N]`: requests that nobody would think of, made from the gateway's own document.

Starts `deuz serve` and a worker over an SQLite file, and has schemathesis (extra `fuzz`) send what the document allows and what
it does not. Ends with its exit code: 0 where there was no 5xx, no answer that the document does not have, no wrong request that
was taken, and no operation that did without credentials.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)
APP = "tests.workers.agents:app"


def main(arguments: list[str]) -> int:
    """The exit code of schemathesis."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="plays the same requests again")
    parser.add_argument("--schemathesis", default=shutil.which("schemathesis"), help="the program, where it is not on the path")
    given = parser.parse_args(arguments)
    if given.schemathesis is None:
        parser.error("schemathesis is not there; pip install 'deuz_workers[fuzz]'")
    with tempfile.TemporaryDirectory() as folder:
        return fuzz(Path(folder), given.schemathesis, round(given.minutes * 60), given.seed)


def fuzz(folder: Path, program: str, seconds: int, seed: int | None) -> int:
    """Servers in `folder`, gone at the end."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DEUZ_")}
    (folder / "traces").mkdir()
    environment = inherited | {
        "DEUZ_DATABASE_URL": f"sqlite:///{folder}/runs.db",
        "DEUZ_CONFIG": os.devnull,
        "DEUZ_APP": APP,
        "TEST_TRACES": str(folder / "traces"),
        "PYTHONPATH": str(ROOT),
    }

    def deuz(*command: str) -> list[str]:
        return [sys.executable, "-m", "deuz_workers.cli", *command]

    subprocess.run(deuz("db", "migrate"), env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    create = deuz("token", "create", "fuzz", "--scope", "*")
    token = subprocess.run(create, env=environment, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
    log = folder / "gateway.log"
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command, name in ((deuz("serve", "--port", "0"), log), (deuz("worker"), folder / "worker.log")):
            with name.open("wb") as out:
                started.append(subprocess.Popen(command, env=environment, cwd=folder, stdout=out, stderr=out))
        url = _address(log)
        options = ["--max-time", str(seconds), "--checks", ",".join(CHECKS), "--request-timeout", "30", "--no-color"]
        options += [] if seed is None else ["--seed", str(seed)]
        options += ["--header", f"Authorization: Bearer {token}"]
        code = subprocess.run([program, "run", f"{url}/openapi.json", *options], cwd=folder, env=inherited).returncode
        unexpected = [line for line in log.read_text().splitlines() if "gateway_failed" in line or "Traceback" in line]
        for line in unexpected[:20]:
            print(line)
        return code or (1 if unexpected else 0)
    finally:
        for process in started:
            process.kill()
            process.wait()


def _address(log: Path) -> str:
    until = time.monotonic() + 60
    while (found := re.search(r"gateway_open url=(\S+)", log.read_text())) is None:
        if time.monotonic() > until:
            raise SystemExit(f"the gateway did not start:\n{log.read_text()}")
        time.sleep(0.05)
    return found[1]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
