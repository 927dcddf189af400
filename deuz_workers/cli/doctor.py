"""`deuz doctor`: looks at broker, store, clocks, versions and settings, and says for each finding how to mend it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich.markup import escape

from deuz_workers.cli.exits import Exit
from deuz_workers.cli.output import Output
from deuz_workers.cli.session import AppOption, JsonOption, application, missing_file, mistyped, on_app
from deuz_workers.core.addresses import without_account
from deuz_workers.errors import DeuzError, LeaseStoreUnavailableError, StoreUnavailableError

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz

Level = Literal["ok", "warning", "broken"]
MARKS = {"ok": "[green]ok[/]     ", "warning": "[yellow]warning[/]", "broken": "[red]broken[/] "}
SKEW_MS = 1_000
"""Clocks that differ by more make times in logs misleading; nothing is decided by comparing them."""
SWARMS_LOOKED_AT = 50
URLS = {
    "store": "database_url (DEUZ_DATABASE_URL)",
    "redis": "redis_url and leases_url (DEUZ_REDIS_URL, DEUZ_LEASES_URL)",
    "leases": "leases_url (DEUZ_LEASES_URL, else DEUZ_DATABASE_URL)",
    "broker": "broker_url (DEUZ_BROKER_URL, else DEUZ_REDIS_URL)",
}
AWAY = (StoreUnavailableError, LeaseStoreUnavailableError)
CHECK_S = 10.0
"""A server that has not answered by then is out of reach."""


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    subject: str
    said: str
    fix: str = ""


def doctor(place: AppOption = None, json: JsonOption = False) -> None:
    """Check the set-up that this process sees, and say how to mend what is wrong. Ends with 1 if something is broken."""
    output = Output(json)
    findings = on_app(application(place), examine)
    output.document({"findings": [asdict(finding) for finding in findings]})
    for finding in findings:
        output.show(f"{MARKS[finding.level]} {finding.subject:<9} {escape(finding.said)}")
        if finding.fix:
            output.show(f"{'':18}[bold]{escape(finding.fix)}[/]")
    if any(finding.level == "broken" for finding in findings):
        raise typer.Exit(Exit.FAILED)


async def examine(deuz: Deuz) -> list[Finding]:
    """All findings, good ones too; a check that cannot reach its server is one itself."""
    findings: list[Finding] = []
    failed: set[str] = set()
    if file := missing_file(deuz):
        fix = "deuz db migrate makes it, and so does the first run; if runs are elsewhere, correct DEUZ_DATABASE_URL"
        findings.append(Finding("warning", "store", f"there is no SQLite file {str(file)!r} (setting database_url)", fix))
        failed.add("store")
    for subject, check in CHECKS.items():
        if subject in ("store", "slots") and "store" in failed:
            continue
        try:
            findings += await asyncio.wait_for(check(deuz), CHECK_S)
        except Exception as error:  # noqa: BLE001 - that it cannot be checked is a finding
            failed.add(subject)
            findings.append(_unchecked(subject, error))
    return findings


async def _versions(deuz: Deuz) -> list[Finding]:
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("celery", "redis", "psycopg", "pydantic"))
    said = f"Python {platform.python_version()}, {found}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 14):
        return [Finding("warning", "versions", said, "use Python 3.11 to 3.14")]
    return [Finding("ok", "versions", said)]


async def _settings(deuz: Deuz) -> list[Finding]:
    """Variables that have no effect because of a typing mistake."""
    return [
        Finding("warning", "settings", f"{name} is no setting and has no effect", f"did you mean {meant}? rename or unset it")
        for name, meant in mistyped().items()
    ]


async def _store(deuz: Deuz) -> list[Finding]:
    from deuz_workers.store.migrations import load_migrations

    url = deuz.settings.database_url
    await deuz.store.check_schema()
    skew_ms = await deuz.store.now_ms() - round(time.time() * 1000)
    number = len(load_migrations("sqlite" if deuz.settings.is_embedded else "postgres"))
    findings = [Finding("ok", "schema", f"migration {number}, which is this version's"), _skew("the database", skew_ms)]
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


async def _redis(deuz: Deuz) -> list[Finding]:
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
            findings.append(_away("redis", url, error))
    return findings


async def _leases(deuz: Deuz) -> list[Finding]:
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


def _away(subject: str, url: str, error: BaseException) -> Finding:
    """A server that cannot be used: where it was looked for, and why not."""
    return Finding("broken", subject, f"{without_account(url)}: {_reason(error)}", _reach(subject))


def _reason(error: BaseException) -> str:
    """The kind of the error and its text, as far as that names no account."""
    text = " ".join(str(error).split())
    return type(error).__name__ if not text or "://" in text or "@" in text else f"{type(error).__name__}, {text}"


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
    findings = [_skew(name.partition(" ")[0], seconds * 1000 + micros // 1000 - round(time.time() * 1000))]
    if policy == "noeviction":
        findings.append(Finding("ok", "redis", f"{name}, maxmemory-policy {policy}"))
    else:
        fix = "set maxmemory-policy noeviction: with any other, doorbells and leases are thrown away when memory is short"
        findings.append(Finding("broken", "redis", f"{name}, maxmemory-policy {policy}", fix))
    return findings


async def _broker(deuz: Deuz) -> list[Finding]:
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
        return [_away("broker", deuz.settings.broker, error)]
    findings = [Finding("ok", "broker", f"{without_account(deuz.settings.broker)} is reachable")]
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


async def _slots(deuz: Deuz) -> list[Finding]:
    """Counters of active swarms beside the tasks that they count."""
    from deuz_workers.ports.store import RunQuery

    page = await deuz.store.list_runs(RunQuery(kind=("swarm",), status=("queued", "running"), limit=SWARMS_LOOKED_AT))
    findings: list[Finding] = []
    for head in page.heads:
        snapshot = await deuz.store.swarm_snapshot(head.rid)
        if snapshot is None:
            continue
        running = sum(task.status == "running" for task in snapshot.tasks)
        if snapshot.running != running:
            said = f"swarm {head.run_id} counts {snapshot.running} running tasks and has {running}"
            findings.append(
                Finding("broken", "slots", said, "a slot has leaked; please report it with `deuz swarm show --json`")
            )
    return findings or [Finding("ok", "slots", f"{len(page.heads)} active swarms looked at, their counters are right")]


def _skew(whose: str, skew_ms: int) -> Finding:
    if abs(skew_ms) > SKEW_MS:
        return Finding(
            "warning", "clock", f"{whose} is {skew_ms:+} ms from this machine", "run NTP on both; times in logs will not match"
        )
    return Finding("ok", "clock", f"{whose} is {skew_ms:+} ms from this machine")


def _unchecked(subject: str, error: Exception) -> Finding:
    match error:
        case DeuzError(code="migration_missing"):
            return Finding("broken", subject, error.message, "run: deuz db migrate")
        case DeuzError(code="schema_too_new"):
            return Finding("broken", subject, error.message, "upgrade deuz_workers")
        case DeuzError():
            return Finding("broken", subject, error.message, _reach(subject) if isinstance(error, AWAY) else "")
        case TimeoutError():
            return Finding("broken", subject, f"no answer within {CHECK_S:.0f} s", _reach(subject))
        case _:  # a library's own error; its text may hold the URL
            return Finding("broken", subject, f"no answer: {type(error).__name__}", _reach(subject))


def _reach(subject: str) -> str:
    return f"check {URLS.get(subject, 'its URL')} and that the server runs and can be reached from here"


CHECKS: Mapping[str, Callable[[Deuz], Awaitable[list[Finding]]]] = {
    "versions": _versions,
    "settings": _settings,
    "store": _store,
    "redis": _redis,
    "leases": _leases,
    "broker": _broker,
    "pool": _pool,
    "slots": _slots,
}
"""In the order in which they are made."""
