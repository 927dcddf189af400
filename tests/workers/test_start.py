"""What a worker has done before it executes anything."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from deuz_workers import Agent, Deuz, MockModel, Settings
from deuz_workers.workers import run

class Forks(Exception): pass

def forks(*_):
    print("prices" if "genai_prices" in sys.modules else "no prices")
    raise Forks

run.make_celery = forks
app = Deuz([Agent("x", model=MockModel(["done"]))], settings=Settings(database_url="postgresql:///x", redis_url="redis://x"))
print("prices" if "genai_prices" in sys.modules else "no prices")
try:
    run.run_worker(app)
except Forks:
    pass
"""


def test_prices_are_read_before_there_is_a_loop_or_a_child() -> None:
    """The first model call of a process would otherwise stop every step of it for as long as that takes; producers do not."""
    said = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.split("\n")[:2] == ["no prices", "prices"]
