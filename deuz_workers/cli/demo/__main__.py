"""`python -m deuz_workers.cli.demo`: the demo alone."""

import sys

from deuz_workers.cli.command import run

sys.exit(run(["demo", *sys.argv[1:]]))
