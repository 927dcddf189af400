"""What a table was measured on."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("celery", "kombu", "redis", "psycopg", "psycopg-pool")


def machine() -> str:
    """Processor, cores, load, system."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{_processor()}, {os.cpu_count()} cores, load {load} | {platform.system()} {platform.release()}"


def versions(servers: dict[str, str]) -> str:
    """Python, SQLite, the packages on the way of a step, and `servers` with theirs."""
    found = {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version}
    found |= {name: version(name) for name in PACKAGES}
    return ", ".join(f"{name} {number}" for name, number in (found | servers).items())


def disk_of(folder: Path) -> str:
    """The device and file system that hold `folder`; memory is told apart, since a flush costs nothing there."""
    best = ("", "?", "?")
    mounts = Path("/proc/mounts")
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        device, mount, kind, *_ = line.split()
        if folder.resolve().is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, device, kind)
    memory = ", which is memory: set TMPDIR to a folder on a disk" if best[2] in ("tmpfs", "ramfs") else ""
    return f"{folder} on {best[1]} ({best[2]}{memory})"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
