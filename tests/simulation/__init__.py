"""Seeded schedules of whole worker pools: `python -m tests.simulation --help`."""
