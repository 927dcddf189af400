"""The sample settings, the logging set-up and the Procfile."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_sample_settings_give_a_reason_for_every_value() -> None:
    """Each key has a comment right above it."""
    lines = (ROOT / "config/deuz.toml").read_text().splitlines()
    bare = [line for above, line in pairwise(lines) if re.match(r"\w+ =", line) and not above.startswith("# ")]
    assert bare == []


def test_the_sample_settings_hold_no_password() -> None:
    """Secrets come from the environment; URLs here have no account."""
    text = (ROOT / "config/deuz.toml").read_text()
    assert "secret" not in tomllib.loads(text)
    assert not re.search(r"://[^\"/]*@", text)


def test_logging_shows_our_facts_and_no_urls_of_providers() -> None:
    """The file is valid, and the loggers that would print URLs, arguments and results are silent at INFO."""
    program = """
import logging, logging.config, tomllib
logging.config.dictConfig(tomllib.load(open("config/logging.toml", "rb")))
for name in ("deuz_workers.engine", "httpx", "httpcore.http11", "celery.app.trace", "celery.worker.strategy", "psycopg.pool"):
    logging.getLogger(name).info("run_suspended")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(r"\S+T\S+Z INFO deuz_workers\.engine \d+ run_suspended", line)


def test_the_procfile_starts_what_compose_starts() -> None:
    """The same three commands under both supervisors."""
    lines = (ROOT / "Procfile").read_text().splitlines()
    commands = dict(line.split(": ", 1) for line in lines)
    assert commands.keys() == {"release", "worker", "flower"}
    assert commands["release"] == "deuz db migrate"
    assert commands["flower"].startswith("celery --app deuz_workers.workers.celery_app flower --conf=config/flower.py")
