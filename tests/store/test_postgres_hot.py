"""Which indexes the commits of a run touch."""

from __future__ import annotations

import psycopg

from deuz_workers.store import SqlStore
from deuz_workers.testing.store_conformance_bench import Bench

COMMITS = 60
UPDATES = """
select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'run_head'
"""


async def test_commits_of_a_run_at_work_touch_no_index(bench: Bench, postgres: SqlStore, migrated_postgres_dsn: str) -> None:
    """`sweep_at` stays where it is while it is near, so all updates of the head but the first are heap-only."""
    head = await bench.start()
    for _ in range(COMMITS):
        await bench.applied(head)
        head = await bench.again(head)
    await postgres.close()  # its sessions report what they did
    with psycopg.connect(migrated_postgres_dsn, autocommit=True) as connection:
        counted = (0, 0)
        while counted[0] < COMMITS:
            row = connection.execute(UPDATES).fetchone()
            assert row is not None
            counted = row
    assert counted[1] >= COMMITS - 2
