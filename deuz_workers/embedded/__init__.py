"""Real servers without installation or root: what `deuz demo` and the tests stand on, and applications on a laptop can.

::

    with EmbeddedPostgres() as postgres, EmbeddedRedis() as redis:
        app = Deuz([agent], settings=Settings(database_url=postgres.url, redis_url=redis.url))
"""

from deuz_workers.embedded.postgres import EmbeddedPostgres, default_data_dir
from deuz_workers.embedded.redis import EmbeddedRedis
from deuz_workers.embedded.server import Availability
from deuz_workers.embedded.urls import broker_url, postgres_url, redis_url

__all__ = [
    "Availability",
    "EmbeddedPostgres",
    "EmbeddedRedis",
    "broker_url",
    "default_data_dir",
    "postgres_url",
    "redis_url",
]
