"""The servers that `deuz doctor` looks at: database, Redis, leases, broker."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from deuz_workers.cli.findings import CHECK_S, Finding, away, skew
from deuz_workers.core.addresses import without_account

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz


async def check_store(deuz: Deuz) -> list[Finding]:
    from deuz_workers.store.migrations import load_migrations

    url = deuz.settings.database_url
    await deuz.store.check_schema()
    skew_ms = await deuz.store.now_ms() - round(time.time() * 1000)
    number = len(load_migrations("sqlite" if deuz.settings.is_embedded else "postgres"))
    findings = [Finding("ok", "schema", f"migration {number}, which is this version's"), skew("the database", skew_ms)]
    if deuz.settings.is_embedded:
        place = without_account(url).removeprefix("sqlite:///")
        findings.append(Finding("ok", "store", f"SQLite {place}, for the processes of one machine"))
        return findings
    import psycopg

    connection = await psycopg.AsyncConnection[Any].connect(url, autocommit=True, connect_timeout=round(CHECK_S))
    async with connection:
        names = ("server_version", "synchronous_commit", "fsync")
        asked = await connection.execute("select " + ", ".join(f"current_setting('{name}')" for name in names))
        version, commit, fsync = await asked.fetchone() or ("unknown",) * 3
    said = f"Postgres {version} at {without_account(url)}, synchronous_commit {commit}, fsync {fsync}"
    if commit == "off" or fsync == "off":
        fix = "set synchronous_commit = on and fsync = on: acknowledged commits are what every promise rests on"
        findings.append(Finding("broken", "store", said, fix))
    else:
        findings.append(Finding("ok", "store", said))
    return findings


async def check_redis(deuz: Deuz) -> list[Finding]:
    """Every server of leases and doorbells, each once."""
    from redis.exceptions import RedisError

    from deuz_workers.leases.redis import SCHEMES, client_url

    settings = deuz.settings
    urls = [url for url in (settings.leases, settings.broker) if url is not None and url.partition(":")[0] in SCHEMES]
    if not urls:
        return [Finding("ok", "redis", f"not used: leases lie in {_leases_place(settings.leases)}")]
    findings: list[Finding] = []
    for url in dict.fromkeys(map(client_url, urls)):
        try:
            findings += await _redis_server(url)
        except (OSError, RedisError, ValueError) as error:
            findings.append(away("redis", url, error))
    return findings


async def check_leases(deuz: Deuz) -> list[Finding]:
    """Leases in Postgres must have their tables; a Redis server is looked at as such."""
    url = deuz.settings.leases
    if not url.startswith(("postgres:", "postgresql:")):
        return []
    peek = await deuz.leases.peek("doctor")
    said = f"in {_leases_place(url)}, whose memory of them is {peek.memory_age_ms // 1000} s old"
    return [Finding("ok", "leases", said)]


def _leases_place(url: str) -> str:
    """Where leases lie that are not on a Redis."""
    match url.partition(":")[0]:
        case "sqlite":
            return f"the file {without_account(url).removeprefix('sqlite:///')}"
        case "memory":
            return "the memory of each process, so that only one may execute runs"
        case _:
            return f"Postgres, {without_account(url)}"


async def _redis_server(url: str) -> list[Finding]:
    from redis.asyncio import Redis

    client = Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)
    try:
        seconds, micros = await client.time()
        memory: dict[str, Any] = await client.info("memory")
        server: dict[str, Any] = await client.info("server")
    finally:
        await client.aclose()
    policy = memory.get("maxmemory_policy", "unknown")
    name = f"Valkey {server['valkey_version']}" if "valkey_version" in server else f"Redis {server.get('redis_version')}"
    findings = [skew(name.partition(" ")[0], seconds * 1000 + micros // 1000 - round(time.time() * 1000))]
    if policy == "noeviction":
        findings.append(Finding("ok", "redis", f"{name}, maxmemory-policy {policy}"))
    else:
        fix = "set maxmemory-policy noeviction: with any other, doorbells and leases are thrown away when memory is short"
        findings.append(Finding("broken", "redis", f"{name}, maxmemory-policy {policy}", fix))
    return findings


async def check_broker(deuz: Deuz) -> list[Finding]:
    if deuz.settings.broker is None:
        return [Finding("ok", "broker", "none: workers find runs by the sweep")]
    from deuz_workers.workers.celery_app import make_celery

    celery = make_celery(deuz, deuz.settings)

    def reach() -> None:
        with celery.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=5)

    try:
        await asyncio.to_thread(reach)
    except Exception as error:  # noqa: BLE001 - every transport has errors of its own
        return [away("broker", deuz.settings.broker, error)]
    findings = [Finding("ok", "broker", f"{without_account(deuz.settings.broker)} is reachable")]
    options: dict[str, Any] = celery.conf.broker_transport_options or {}
    if options.get("ack_emulation") is not False:
        fix = "leave broker_transport_options as they are set: with ack emulation a long step is delivered again and again"
        findings.append(Finding("broken", "broker", f"visibility timeout is {options.get('visibility_timeout', 3600)} s", fix))
    else:
        findings.append(Finding("ok", "broker", "no visibility timeout: a step may take as long as its limits say"))
    return findings
