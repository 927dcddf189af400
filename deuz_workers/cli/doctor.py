"""`deuz doctor`: looks at broker, store, clocks, versions and settings, and says for each finding how to mend it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from deuz_workers.cli.exits import Exit
from deuz_workers.cli.findings import CHECK_S, Finding, unchecked
from deuz_workers.cli.output import Output
from deuz_workers.cli.servers import check_broker, check_leases, check_redis, check_store
from deuz_workers.cli.session import AppOption, JsonOption, application, missing_file, mistyped, on_app
from deuz_workers.ports.webhooks import WebhookStore

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz

MARKS = {"ok": "[green]ok[/]     ", "warning": "[yellow]warning[/]", "broken": "[red]broken[/] "}
SWARMS_LOOKED_AT = 50


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
        if subject in ("store", "slots", "webhooks") and "store" in failed:
            continue
        try:
            findings += await asyncio.wait_for(check(deuz), CHECK_S)
        except Exception as error:  # noqa: BLE001 - that it cannot be checked is a finding
            failed.add(subject)
            findings.append(unchecked(subject, error))
    return findings


async def _webhooks(deuz: Deuz) -> list[Finding]:
    """Endpoints that nobody tells anything, or not any more."""
    if not isinstance(deuz.store, WebhookStore):
        return []
    endpoints = await deuz.store.webhooks(None)
    if endpoints and deuz.settings.webhook_secret is None:
        said = f"{len(endpoints)} endpoints are told nothing, since no secret is set"
        return [Finding("warning", "webhooks", said, "set DEUZ_WEBHOOK_SECRET, the same on all workers; see docs/webhooks.md")]
    disabled = [endpoint.webhook_id for endpoint in endpoints if endpoint.disabled is not None]
    if disabled:
        fix = "deuz webhooks list says why; deuz webhooks enable ID, or remove ID"
        return [Finding("warning", "webhooks", f"disabled: {', '.join(disabled)}", fix)]
    return [Finding("ok", "webhooks", f"{len(endpoints)} endpoints")] if endpoints else []


async def _versions(deuz: Deuz) -> list[Finding]:
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("celery", "redis", "psycopg", "pydantic"))
    said = f"Python {platform.python_version()}, {found}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 14):
        return [Finding("warning", "versions", said, "use Python 3.11 to 3.14")]
    return [Finding("ok", "versions", said)]


async def _settings(deuz: Deuz) -> list[Finding]:
    """Variables that have no effect because of a typing mistake, and what a pool needs that is not set."""
    found = [
        Finding("warning", "settings", f"{name} is no setting and has no effect", f"did you mean {meant}? rename or unset it")
        for name, meant in mistyped().items()
    ]
    if deuz.settings.secret is None and not deuz.settings.is_embedded:
        said = (
            "no secret is set, so a run whose database lost commits (a failover, a restored backup) is noticed only by the "
            "process that made them"
        )
        fix = "set DEUZ_SECRET (setting secret), the same long random text on all workers and producers"
        found.append(Finding("warning", "settings", said, fix))
    return found


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


CHECKS: Mapping[str, Callable[[Deuz], Awaitable[list[Finding]]]] = {
    "versions": _versions,
    "settings": _settings,
    "store": check_store,
    "redis": check_redis,
    "leases": check_leases,
    "broker": check_broker,
    "pool": _pool,
    "slots": _slots,
    "webhooks": _webhooks,
}
"""In the order in which they are made."""
