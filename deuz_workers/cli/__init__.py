"""The `deuz` command: what operators and newcomers type. Nothing else is imported before it is known what was asked for."""

from __future__ import annotations

import sys


def main() -> None:
    """The console script. Ends the process with a code of :class:`~deuz_workers.cli.exits.Exit`."""
    from deuz_workers.cli.command import run

    sys.exit(run(sys.argv[1:]))
