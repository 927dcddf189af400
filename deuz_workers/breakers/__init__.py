"""Where circuit breakers are kept: in memory for one process, in Redis for a pool."""

from __future__ import annotations

from deuz_workers.breakers.memory import MemoryBreakers
from deuz_workers.breakers.redis import RedisBreakers

__all__ = ["MemoryBreakers", "RedisBreakers"]
