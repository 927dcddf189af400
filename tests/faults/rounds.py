"""Rounds of a script: each over a database and a Redis as new, with a pool of workers that is gone afterwards."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from deuz_workers.app.settings import Settings
from deuz_workers.store import migrate
from tests import servers
from tests.workers.pool import Pool


class Figures(Protocol):
    """What a round did, as text; `broken`: promises that were not kept, in words."""

    broken: list[str]


@contextmanager
def pools(number: int, **settings: Any) -> Generator[Iterator[Pool]]:
    """So many pools, one after the other, over servers that this starts and stops. No worker yet."""
    with closing(_pools(number, settings)) as made:
        yield made


def _pools(number: int, settings: Mapping[str, Any]) -> Generator[Pool]:
    os.environ["DEUZ_CONFIG"] = os.devnull
    with (
        servers.vanishing_folder() as folder,
        servers.shared_databases(folder) as databases,
        servers.shared_redis() as redis_url,
    ):
        for _ in range(number):
            servers.flush(redis_url)
            with databases.fresh(databases.migrated_template(migrate)) as dsn, tempfile.TemporaryDirectory() as here:
                pool = Pool(Path(here), Settings(database_url=dsn, redis_url=redis_url, **settings))
                try:
                    yield pool
                finally:
                    pool.close()


def play(rounds: int, seed: int, torment: Callable[[Pool, int, int], Figures], **settings: Any) -> int:
    """The exit code: 1 if a promise was broken. `torment` gets a pool, the number of the round from 0 on, and its seed, a new
    one each time where `seed` is 0."""
    broken = 0
    with pools(rounds, **settings) as made:
        for number, pool in enumerate(made):
            own = seed or random.SystemRandom().randrange(1, 1 << 31)
            figures = torment(pool, number, own)
            print(f"round {number + 1} (seed {own}): {figures}", *figures.broken, sep="\n  ", flush=True)
            broken += len(figures.broken)
    return 1 if broken else 0
