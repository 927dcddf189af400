"""What a long run takes on disk."""

from __future__ import annotations

import secrets
from pathlib import Path

import psycopg
import pytest

from deuz_workers import Agent, Deuz, Limits, MockModel, Settings, tool
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.store import migrate

STEPS, SIZE = 2_000, 2_048


@pytest.mark.spec("FR-38")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_run_of_two_thousand_steps_takes_at_most_three_times_its_payload(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """2 KB that nobody can compress come back from a tool in each of 2,000 steps; no vacuum is run, and the log is not counted.

    The other half of field report FR-38, that compaction keeps calls and results paired, is a test of `core.layers`.
    """
    file = tmp_path / "runs.db"
    url = f"sqlite:///{file}" if kind == "sqlite" else request.getfixturevalue("postgres_dsn")

    @tool
    async def look() -> str:
        """Looks something up."""
        return secrets.token_urlsafe(SIZE)[:SIZE]

    def answer(request: ModelRequest) -> Entry:
        turn = 1 + sum(message.role == "assistant" for message in request.messages)
        return "done" if turn > STEPS else calls(call("look"))

    agent = Agent("x", model=MockModel.function(answer), tools=[look], limits=Limits(max_steps=STEPS + 1))
    await migrate(url)
    before = await size_of(url, file)
    app = Deuz([agent], settings=Settings(database_url=url, leases_url="memory://"))
    result = await app.aio.run_embedded("x", "go")
    await app.aclose()
    assert (result.status, result.steps) == ("completed", STEPS + 1)
    taken = await size_of(url, file) - before
    print(f"{kind}: {taken / (STEPS * SIZE):.2f} times the payload")
    assert taken <= 3 * STEPS * SIZE


async def size_of(url: str, file: Path) -> int:
    """Bytes on disk: all files of a SQLite database, or tables, indexes and what they overflow into of one in Postgres."""
    if not url.startswith("postgres"):
        return sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*"))
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        row = await (await connection.execute("select pg_database_size(current_database())")).fetchone()
    assert row is not None
    return int(row[0])
