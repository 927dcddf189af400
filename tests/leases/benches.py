"""Benches of the conformance suite: each an empty provider with power over its time and memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import redis.asyncio

from deuz_workers.leases import PostgresLeases, RedisLeases, SqliteLeases, memory_leases
from tests.fake_clock import FakeClock

SECRET = b"the pool's key"


@dataclass(frozen=True, slots=True)
class RedisBench:
    """A real server with its real clock, so short leases are short."""

    leases: RedisLeases
    admin: redis.asyncio.Redis
    short_ms: int = 20

    async def pass_ms(self, ms: int) -> None:
        end = await self._server_ms() + ms
        while await self._server_ms() <= end:
            pass

    async def forget(self) -> None:
        await self.admin.flushall()

    async def _server_ms(self) -> int:
        seconds, micros = await self.admin.time()
        return seconds * 1000 + micros // 1000


@asynccontextmanager
async def redis_bench(url: str, secret: bytes | None = SECRET) -> AsyncGenerator[RedisBench]:
    leases = RedisLeases(url, secret=secret)
    async with redis.asyncio.Redis.from_url(url, decode_responses=True) as admin:
        yield RedisBench(leases, admin)
    await leases.close()


@dataclass(frozen=True, slots=True)
class PostgresBench:
    """A real database with its real clock."""

    leases: PostgresLeases
    admin: psycopg.AsyncConnection[tuple[Any, ...]]
    short_ms: int = 20

    async def pass_ms(self, ms: int) -> None:
        await self.admin.execute("select pg_sleep(%s)", [(ms + 1) / 1000])

    async def forget(self) -> None:
        await self.admin.execute("truncate lease, lease_cancel, lease_memory")


@asynccontextmanager
async def postgres_bench(url: str, secret: bytes | None = SECRET) -> AsyncGenerator[PostgresBench]:
    leases = PostgresLeases(url, secret=secret)
    async with await psycopg.AsyncConnection[tuple[Any, ...]].connect(url, autocommit=True) as admin:
        yield PostgresBench(leases, admin)
    await leases.close()


@dataclass(frozen=True, slots=True)
class SqliteBench:
    """A file or memory, under a fake clock."""

    leases: SqliteLeases
    clock: FakeClock
    short_ms: int = 30_000

    async def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms)

    async def forget(self) -> None:
        await self.leases.forget()


@asynccontextmanager
async def file_bench(path: Path) -> AsyncGenerator[SqliteBench]:
    clock = FakeClock()
    bench = SqliteBench(SqliteLeases(path, clock=clock), clock)
    yield bench
    await bench.leases.close()


@asynccontextmanager
async def memory_bench() -> AsyncGenerator[SqliteBench]:
    clock = FakeClock()
    bench = SqliteBench(memory_leases(clock=clock), clock)
    yield bench
    await bench.leases.close()
