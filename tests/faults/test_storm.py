"""A small round of `storm`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.faults.storm import Storm, fresh_pool, own_servers, torment

pytestmark = pytest.mark.processes


@pytest.mark.timeout(400)
def test_no_promise_is_broken_while_everything_goes_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are killed, Redis is flushed and restarted and Postgres crashes: no effect happens twice, no run stands still.

    What is unknown is settled as the files of the effects say, and then every effect has happened exactly once.
    """
    monkeypatch.setenv("DEUZ_CONFIG", os.devnull)
    with own_servers() as (postgres, valkey), fresh_pool(tmp_path, postgres, valkey, "storm") as pool:
        figures = torment(Storm(pool, postgres, valkey, random.Random(1)), runs=12, turns=6)
    print(figures)
    assert figures.broken == []
    assert (figures.flushes, figures.redis_restarts, figures.postgres_crashes) == (1, 1, 1)
    assert figures.kills + figures.child_kills > 0
    assert figures.completed + figures.waiting == 12
