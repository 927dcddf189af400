"""Time, ids and chance are handed in. What reaches for them itself cannot be replayed, simulated or tested without sleeping."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "deuz_workers"
INJECTED = ("core", "engine", "app", "store", "leases", "providers", "tools", "workers")
"""The folders in which everything ambient is injected. Servers, the command line and the testing kit are the outside."""

AMBIENT = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep", "localtime", "gmtime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
    "uuid": {"uuid1", "uuid4", "uuid6", "uuid7"},
    "random": {"*"},
    "secrets": {"*"},
    "os": {"urandom", "getrandom"},
}

ALLOWED: dict[str, tuple[set[str], str]] = {
    "engine/system_clock.py": ({"time", "secrets"}, "the one implementation of Clock and Ids"),
    "providers/wire_model.py": ({"random"}, "the default of the argument that injects the jitter of retries"),
    "providers/http.py": ({"time"}, "Retry-After may be a date, which only wall time can be compared with; never stored"),
    "leases/script.py": ({"secrets"}, "a nonce tells a script that was sent twice from two claims; nothing is ordered by it"),
    "leases/sqlite.py": ({"secrets"}, "the same nonce"),
    "leases/postgres.py": ({"secrets"}, "the same nonce"),
    "leases/table.py": ({"secrets"}, "the epoch of a lease store only has to differ from every other"),
    "store/sqlite_connection.py": (
        {"time", "random"},
        "asking again for a lock of other processes, at moments they do not share",
    ),
    "store/sql_controls.py": ({"uuid"}, "an id tells an act that was sent twice from two acts"),
    "store/sql_store.py": (
        {"uuid", "time"},
        "an id tells a note that was sent twice from two notes; patience with a database that is away is real time",
    ),
}
"""File: the modules it may reach for, and why. Only ever gets shorter."""


def ambient_reads(source: str) -> list[tuple[int, str]]:
    """Line and name of every mention of something in `AMBIENT`, however it was imported."""
    found: list[tuple[int, str]] = []
    modules: dict[str, str] = {}
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in AMBIENT}
        elif isinstance(node, ast.ImportFrom) and node.module in AMBIENT:
            for alias in node.names:
                names = AMBIENT[node.module]
                if node.module == "datetime" and alias.name in AMBIENT:
                    modules[alias.asname or alias.name] = alias.name
                elif alias.name in names or "*" in names:
                    found.append((node.lineno, f"{node.module}.{alias.name}"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        match node.value:
            case ast.Name(id=name) if name in modules:
                module = modules[name]
            case ast.Attribute(value=ast.Name(id=name), attr="datetime" | "date" as module) if modules.get(name) == "datetime":
                pass
            case _:
                continue
        if node.attr in AMBIENT[module] or "*" in AMBIENT[module]:
            found.append((node.lineno, f"{module}.{node.attr}"))
    return found


@pytest.mark.spec("DEP-001")
def test_only_the_system_clock_reads_the_clock() -> None:
    """No file that runs, stores or leases a run reads a clock, makes an id or draws chance itself, but for reasons given."""
    complaints: list[str] = []
    for folder in INJECTED:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            name = path.relative_to(PACKAGE).as_posix()
            modules, _ = ALLOWED.get(name, (set[str](), ""))
            complaints += [
                f"deuz_workers/{name}:{line} reaches for {read}; take it from the injected Clock or Ids"
                for line, read in ambient_reads(path.read_text())
                if read.split(".")[0] not in modules
            ]
    assert complaints == []


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("import time\ntime.time()", ["time.time"]),
        ("import time as t\nnow = t.monotonic_ns", ["time.monotonic_ns"]),
        ("from time import monotonic", ["time.monotonic"]),
        ("from datetime import datetime, UTC\ndatetime.now(UTC)", ["datetime.now"]),
        ("import datetime as dt\ndt.datetime.now()\ndt.date.today()", ["datetime.now", "date.today"]),
        ("from datetime import date as day\nday.today()", ["date.today"]),
        ("from uuid import UUID, uuid4", ["uuid.uuid4"]),
        ("import random\nrandom.Random(7)", ["random.Random"]),
        ("from secrets import token_hex", ["secrets.token_hex"]),
        ("import uuid, datetime\nuuid.UUID(int=7)\ndatetime.datetime.fromisoformat('x')", []),
        ("clock.time()\nself.datetime.now()", []),
    ],
)
def test_ambient_reads_are_found_however_they_are_spelled(source: str, reads: list[str]) -> None:
    """The check above sees through aliases and both kinds of import, and lets parsing and injected clocks pass."""
    assert [name for _, name in ambient_reads(source)] == reads


def test_allowed_exceptions_are_still_needed() -> None:
    """An exception whose file is gone, or reaches for less than it may, is taken off the list."""
    for name, (modules, reason) in ALLOWED.items():
        if (path := PACKAGE / name).exists():
            used = {read.split(".")[0] for _, read in ambient_reads(path.read_text())}
            assert modules == used, f"{name} ({reason}) reaches for {sorted(used)} only"
