"""Failed runs on the command line."""

from __future__ import annotations

import asyncio

from deuz_workers import Agent, Limits, MockModel, ModelRequestError, ModelUnavailableError, Settings
from deuz_workers import Deuz as Application
from deuz_workers.cli.exits import Exit
from deuz_workers.providers.script import attempts
from tests.cli.conftest import Deuz


def failed(url: str, *run_ids: str, lasting: bool = False) -> None:
    """Runs that failed because their model was away, or for a cause that lasts."""

    async def fail() -> None:
        error = ModelRequestError("wrong") if lasting else ModelUnavailableError("away")
        agent = Agent("x", model=MockModel([attempts(error, "done")]), limits=Limits(max_retries=0))
        app = Application([agent], settings=Settings(database_url=url))
        for run_id in run_ids:
            assert (await app.aio.run_embedded("x", "go", run_id=run_id)).status == "failed"
        await app.aclose()

    asyncio.run(fail())


def test_failed_runs_are_taken_up_again(deuz: Deuz, sqlite_url: str) -> None:
    """One by its id, and all whose cause may have passed; what has not failed is left alone, a lasting cause is an error."""
    failed(sqlite_url, "a", "b", "c")
    failed(sqlite_url, "lasting", lasting=True)
    assert deuz("runs", "retry", "--failed", "a", "--json").document == {"retried": ["a"], "not_failed": [], "failed": {}}
    assert deuz("runs", "show", "a", "--json").document["status"] == "running"
    assert deuz("runs", "retry", "--failed", "a", "--json").document["not_failed"] == ["a"]
    refused = deuz("runs", "retry", "--failed", "lasting")
    assert (refused.code, "not_transient" in refused.err) == (Exit.USAGE, True)
    assert deuz("runs", "retry", "--failed", "--json").code == Exit.USAGE, "it would take up several and nobody said --yes"
    assert sorted(deuz("runs", "retry", "--failed", "--agent", "x", "--yes", "--json").document["retried"]) == ["b", "c"]
    some = deuz("runs", "retry", "--failed", "lasting", "b", "--json")
    assert (some.code, list(some.document["failed"]), some.document["not_failed"]) == (Exit.FAILED, ["lasting"], ["b"])
    assert deuz("runs", "retry", "--failed", "--parked", "quarantine").code == Exit.USAGE
