"""A script that starts a run and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from deuz_workers import Deuz, Settings

app = Deuz(settings=Settings(database_url=sys.argv[1]))
print(app.enqueue("clerk", "Hello.", run_id="r").status())
"""


def test_a_script_says_nothing_when_it_ends(migrated_postgres_dsn: str, tmp_path: Path) -> None:
    """Connections that it left open are closed with it, and nobody complains about what waited on them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DEUZ_")}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, migrated_postgres_dsn],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**environment, "DEUZ_CONFIG": os.devnull, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "queued\n", "")
