"""A budget that cannot be asked, since its rows are in use or the store is away: the call is not sent, and that passes."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from deuz_workers import Agent, Budget, Limits, MockModel, StoreUnavailableError
from deuz_workers.app.runtime import Runtime
from deuz_workers.core.names import run_scope_key
from deuz_workers.engine.in_process import LocalDoorbell
from deuz_workers.store import open_store
from deuz_workers.testing.crashing_store import CrashingStore
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


@pytest.mark.spec("BUD-011")
@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_a_run_with_retries_left_waits_for_the_ledger(migrated_postgres_dsn: str, state: str) -> None:
    """It is `running` and due later, with `retry` in its record and nothing reserved, and completes when its time has come."""
    store = open_store(migrated_postgres_dsn)
    store.patience_ms = 50
    world = World(migrated_postgres_dsn, store)
    app = world.process(Agent("x", model=MockModel(["done"]), limits=Limits(max_retries=1)))
    handle = await app.aio.enqueue("x", "go", run_id="r", budget=Budget(tokens=100_000))
    runtime = Runtime(app, LocalDoorbell())
    with psycopg.connect(migrated_postgres_dsn, autocommit=True) as connection:
        connection.execute(REFUSE.format(state=state).encode())
        assert (await runtime.engine.step("default", "r")).end == "waiting"
        head, record = await world.head("r"), await handle.envelope()
        assert (head.status, (head.due_in_ms or 0) > 0, (record.retry or {})["kind"]) == ("running", True, "ledger-contention")
        assert record.checkpoint.open_call is None
        connection.execute("drop trigger contended on budget_scope")
    store.patience_ms = 5_000
    await world.later(60_000)
    await runtime.engine.step("default", "r")
    assert (await handle.envelope()).output == "done"
    await runtime.close()
    await world.close()


@pytest.mark.spec("BUD-010")
async def test_a_store_that_cannot_answer_lets_no_call_be_made(world: World) -> None:
    """The attempt ends with `admission_failed`, the ledger and the run are as before, and the next attempt is made as if it was
    the first."""
    model = MockModel(["done"])
    made = Agent("x", model=model)
    handle = await world.process(made).aio.enqueue("x", "go", run_id="r", budget=Budget(tokens=100_000))
    before, key = await world.head("r"), run_scope_key((await world.head("r")).rid)
    ledger = await world.store.balance(key)
    away = world.process(made, store=CrashingStore(world.store, 1, error=StoreUnavailableError("away")).as_store)
    runtime = Runtime(away, LocalDoorbell(), settings=replace(away.settings.engine, outcome_patience_ms=0))
    report = await runtime.engine.step("default", "r")
    assert (report.end, report.error and report.error.code, model.requests) == ("unreachable", "admission_failed", ())
    assert await world.store.balance(key) == ledger
    assert replace(await world.head("r"), due_in_ms=0) == replace(before, due_in_ms=0)
    await runtime.engine.step("default", "r")
    record = await handle.envelope()
    assert (record.output, len(model.requests), record.unknown_tokens) == ("done", 1, 0)
    await runtime.close()
