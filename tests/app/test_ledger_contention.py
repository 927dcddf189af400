"""A budget whose rows others have all the time: the call is not sent, and the failure is one that passes."""

from __future__ import annotations

import psycopg
import pytest

from deuz_workers import Agent, Budget, Limits, MockModel
from deuz_workers.core.names import run_scope_key
from deuz_workers.store import open_store
from tests.app.world import World

REFUSE = """
create function contend() returns trigger language plpgsql as $$ begin
    raise exception using errcode = '{state}';
end $$;
create trigger contended before update on budget_scope for each row execute function contend()
"""


@pytest.mark.spec("MDL-005")
@pytest.mark.parametrize("state", ["40001", "40P01"])
@pytest.mark.parametrize("retries", [0, 1])
async def test_a_ledger_that_gives_up_on_a_reservation_is_a_cause_that_passes(
    migrated_postgres_dsn: str, state: str, retries: int
) -> None:
    """Postgres answers each reservation with that state until the store's retries ran out: nothing is sent, `retry` is
    recorded, and once it answers otherwise the retry completes. Nothing of it is on hold."""
    store = open_store(migrated_postgres_dsn)
    store.patience_ms = 50
    world = World(migrated_postgres_dsn, store)
    made = Agent(
        "x", model=MockModel(["done"]), limits=Limits(max_retries=retries), fallback_models=[MockModel(["never"], model="b")]
    )
    app = world.process(made)
    with psycopg.connect(migrated_postgres_dsn, autocommit=True) as connection:
        connection.execute(REFUSE.format(state=state).encode())
        result = await app.aio.run_embedded("x", "go", run_id="r", budget=Budget(tokens=100_000))
        assert (result.status, (result.error or {})["code"]) == ("failed", "ledger_contended")
        record = await app.aio.handle("r").envelope()
        assert ((record.retry or {})["kind"], record.unknown_tokens, record.models) == ("ledger-contention", 0, None)
        assert isinstance(made.model, MockModel)
        assert made.model.requests == ()
        connection.execute("drop trigger contended on budget_scope")
    store.patience_ms = 5_000
    again = await app.aio.resume_embedded("r", retry_failed=True)
    assert (again.status, again.output) == ("completed", "done")
    balance = await store.balance(run_scope_key((await world.head("r")).rid))
    assert balance is not None
    assert (balance.held.tokens, balance.unknown.tokens, balance.spent.tokens) == (0, 0, 15)
    await world.close()
