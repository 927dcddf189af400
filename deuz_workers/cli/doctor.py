"""`deuz doctor`: looks at broker, store, clocks, versions and settings, and says for each finding how to mend it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich.markup import escape

from deuz_workers.cli.exits import Exit
from deuz_workers.cli.output import Output
from deuz_workers.cli.session import AppOption, JsonOption, application, on_app
from deuz_workers.errors import DeuzError

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz

Level = Literal["ok", "warning", "broken"]
MARKS = {"ok": "[green]ok[/]     ", "warning": "[yellow]warning[/]", "broken": "[red]broken[/] "}
SKEW_MS = 1_000
"""Clocks that differ by more make times in logs misleading; nothing is decided by comparing them."""
CHECK_S = 10.0
"""A server that has not answered by then is out of reach."""


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    subject: str
    said: str
    fix: str = ""


def doctor(place: AppOption = None, json: JsonOption = False) -> None:
    """Check the set-up of this process. Ends with 0, with 1 if something is broken."""
    output = Output(json)
    findings = on_app(application(place), examine)
    output.document({"findings": [asdict(finding) for finding in findings]})
    for finding in findings:
        output.show(f"{MARKS[finding.level]} {finding.subject:<12} {escape(finding.said)}")
        if finding.fix:
            output.show(f"                     [bold]{escape(finding.fix)}[/]")
    if any(finding.level == "broken" for finding in findings):
        raise typer.Exit(Exit.FAILED)


async def examine(deuz: Deuz) -> list[Finding]:
    """All findings, good ones too; a check that cannot reach its server is one itself."""
    checks: list[tuple[str, Callable[[Deuz], Awaitable[list[Finding]]]]] = [
        ("versions", _versions),
        ("store", _store),
        ("redis", _redis),
        ("broker", _broker),
        ("pool", _pool),
    ]
    findings: list[Finding] = []
    for subject, check in checks:
        try:
            findings += await asyncio.wait_for(check(deuz), CHECK_S)
        except DeuzError as error:
            findings.append(Finding("broken", subject, error.message, _fix_of(error)))
        except TimeoutError:
            findings.append(Finding("broken", subject, f"no answer within {CHECK_S:.0f} s", "check the URL and the network"))
        except Exception as error:  # noqa: BLE001 - a library's own error; its text may hold the URL
            findings.append(Finding("broken", subject, f"{type(error).__name__}", "check the URL and that the server runs"))
    return findings


async def _versions(deuz: Deuz) -> list[Finding]:
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("celery", "redis", "psycopg", "pydantic"))
    said = f"Python {platform.python_version()}, {found}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 14):
        return [Finding("warning", "versions", said, "use Python 3.11 to 3.14")]
    return [Finding("ok", "versions", said)]


async def _store(deuz: Deuz) -> list[Finding]:
    await deuz.store.check_schema()
    skew_ms = await deuz.store.now_ms() - round(time.time() * 1000)
    findings = [Finding("ok", "store", "reachable, schema up to date"), _skew("database", skew_ms)]
    url = deuz.settings.database_url
    if url.startswith("sqlite"):
        findings.append(Finding("ok", "store", "SQLite: for the processes of one machine"))
        return findings
    import psycopg

    connection = await psycopg.AsyncConnection[Any].connect(url, autocommit=True)
    async with connection:
        shown = await (
            await connection.execute("select current_setting('synchronous_commit'), current_setting('fsync')")
        ).fetchone()
    commit, fsync = shown or ("unknown", "unknown")
    if commit == "off" or fsync == "off":
        fix = "set synchronous_commit = on and fsync = on: acknowledged commits are what every promise rests on"
        findings.append(Finding("broken", "store", f"synchronous_commit is {commit}, fsync is {fsync}", fix))
    else:
        findings.append(Finding("ok", "store", f"synchronous_commit is {commit}, fsync is {fsync}"))
    return findings


async def _redis(deuz: Deuz) -> list[Finding]:
    url = deuz.settings.redis_url
    if url is None:
        return [Finding("ok", "redis", "not used: leases live beside the database")]
    from redis.asyncio import Redis

    client = Redis.from_url(url.replace("redis+socket://", "unix://"), socket_timeout=5, socket_connect_timeout=5)
    try:
        seconds, micros = await client.time()
        memory = await client.info("memory")
        server = await client.info("server")
    finally:
        await client.aclose()
    findings = [_skew("Redis", seconds * 1000 + micros // 1000 - round(time.time() * 1000))]
    policy = memory.get("maxmemory_policy", "unknown")
    if policy not in ("noeviction", "unknown"):
        fix = "set maxmemory-policy noeviction: with any other, doorbells and leases are thrown away when memory is short"
        findings.append(Finding("broken", "redis", f"maxmemory-policy is {policy}", fix))
    else:
        version = server.get("valkey_version") or server.get("redis_version", "unknown")
        findings.append(Finding("ok", "redis", f"version {version}, maxmemory-policy {policy}"))
    return findings


async def _broker(deuz: Deuz) -> list[Finding]:
    if deuz.settings.broker is None:
        return [Finding("ok", "broker", "none: workers find runs by the sweep")]
    from deuz_workers.workers.celery_app import make_celery

    celery = make_celery(deuz, deuz.settings)

    def reach() -> None:
        with celery.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=5)

    await asyncio.to_thread(reach)
    findings = [Finding("ok", "broker", "reachable")]
    options: dict[str, Any] = celery.conf.broker_transport_options or {}
    if options.get("ack_emulation") is not False:
        fix = "leave broker_transport_options as they are set: with ack emulation a long step is delivered again and again"
        findings.append(Finding("broken", "broker", f"visibility timeout is {options.get('visibility_timeout', 3600)} s", fix))
    else:
        findings.append(Finding("ok", "broker", "no visibility timeout: a step may take as long as its limits say"))
    return findings


async def _pool(deuz: Deuz) -> list[Finding]:
    settings = deuz.settings
    said = f"{settings.pool}, lease TTL {settings.lease_ttl_ms} ms, sweep every {settings.sweep_interval_ms} ms"
    if settings.pool == "solo":
        return [Finding("warning", "pool", said, "solo takes one step at a time; threads hold many waiting model calls")]
    return [Finding("ok", "pool", said)]


def _skew(whose: str, skew_ms: int) -> Finding:
    if abs(skew_ms) > SKEW_MS:
        return Finding(
            "warning", "clock", f"{whose} is {skew_ms:+} ms from this machine", "run NTP on both; expiry is not affected"
        )
    return Finding("ok", "clock", f"{whose} is {skew_ms:+} ms from this machine")


def _fix_of(error: DeuzError) -> str:
    if error.code == "migration_missing":
        return "run: deuz db migrate"
    if error.code == "schema_too_new":
        return "upgrade deuz_workers"
    return "check the URL and that the server runs" if error.retry == "later" else ""
