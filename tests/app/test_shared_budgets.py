"""Runs that spend from budgets: what is reserved, what becomes of it, and budgets that several runs share."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deuz_workers import (
    Agent,
    Amount,
    Budget,
    BudgetWarning,
    ConfigurationError,
    Deuz,
    Limits,
    MockModel,
    ModelRateLimitedError,
    RunFileError,
    SharedBudget,
    Swarm,
    Task,
    Usage,
    Window,
    tool,
)
from deuz_workers.core.accounting import accounting_of
from deuz_workers.core.envelope import decode_envelope
from deuz_workers.core.names import run_scope_key
from deuz_workers.engine.system_clock import SystemClock
from deuz_workers.errors import ModelStreamBrokenError
from deuz_workers.ports.budgets import ScopeBalance
from deuz_workers.providers.prices import Price
from deuz_workers.providers.script import Entry, call, calls, fails, reply
from deuz_workers.store import open_store
from deuz_workers.testing.crashing_store import CrashingStore, ProcessDied
from tests.app.test_policy import SkewedClock
from tests.app.world import World

USER = "user:42"
DEAR = Usage(1_000, 500)


@tool
async def look() -> str:
    return "seen"


@tool(needs_approval=True)
async def pay() -> str:
    return "paid"


def agent(*script: Entry, **given: Any) -> Agent:
    given = {"execution_estimate": Budget.of(tokens=100, usd=0.001), **given}
    return Agent("x", model=MockModel(script), tools=[look, pay], **given)


def priced(app: Deuz) -> Deuz:
    """Its model costs a dollar for a million tokens of input, two for output."""
    app.prices = type(app.prices)({MockModel([]).name: Price(1, 2)})
    return app


async def balance(world: World, key: str = USER) -> ScopeBalance:
    found = await world.store.balance(key)
    assert found is not None
    return found


@pytest.mark.spec("LED-001", "LED-014", "BUD-005", "BUD-006")
@pytest.mark.parametrize(
    ("entry", "spent", "unknown"),
    [
        (reply("done", usage=Usage(10, 5)), Budget(15, 20), Budget(0, 0)),
        (reply("done", usage=None), Budget(0, 0), Budget(100, 1_000)),
        (fails(ModelStreamBrokenError("cut"), after=["do"]), Budget(0, 0), Budget(100, 1_000)),
        (ModelRateLimitedError("slow down"), Budget(0, 0), Budget(0, 0)),
    ],
)
async def test_every_end_of_a_call_ends_its_reservation(world: World, entry: Entry, spent: Budget, unknown: Budget) -> None:
    """Answered with usage: settled. Without: the estimate stays, whole. Broken off: unknown. A 429: released."""
    app = priced(world.process(agent(entry, limits=Limits(max_retries=0, max_reruns=0))))
    await app.aio.run_embedded("x", "go", run_id="r", shared_budgets=[USER])
    found = await balance(world)
    assert (found.spent, found.held, found.unknown) == (spent, Budget(0, 0), unknown)


@pytest.mark.spec("LED-001", "BUD-007")
async def test_a_reply_without_a_price_keeps_its_estimate(world: World) -> None:
    """Money was reserved and nobody knows what was spent: unknown, in the ledger and in the run's own account."""
    app = world.process(agent(reply("done", usage=Usage(10, 5))))
    result = await app.aio.run_embedded("x", "go", run_id="r", budget=Budget.of(usd=1), shared_budgets=[USER])
    found = await balance(world)
    assert (found.spent, found.held, found.unknown) == (Budget(0, 0), Budget(0, 0), Budget(100, 1_000))
    assert result.status == "completed"
    assert (result.accounting.spent, result.accounting.unknown) == (Amount(0, 0), Amount(100, 1_000))
    assert result.accounting.committed == Amount(100, 1_000)


@pytest.mark.spec("LED-003")
async def test_a_call_may_use_more_than_was_reserved_and_the_next_is_refused(world: World) -> None:
    """The ceiling is held against estimates; what was used beyond it blocks what comes after."""
    app = priced(world.process(agent(calls(call("look"), usage=DEAR), "never")))
    result = await app.aio.run_embedded("x", "go", budget=Budget.of(tokens=1_000))
    assert (result.status, (result.error or {})["code"]) == ("failed", "budget_exceeded")
    assert result.accounting.spent.tokens == DEAR.total_tokens
    model = app.agents["x"].model
    assert isinstance(model, MockModel)
    assert len(model.requests) == 1


@pytest.mark.spec("LED-009")
async def test_a_resumed_run_goes_on_with_what_is_left(world: World) -> None:
    """Another process finds what was spent before the person answered, and refuses the call that it leaves no room for."""
    script = (calls(call("pay").with_id("c"), usage=DEAR), "never")
    first = priced(world.process(agent(*script)))
    waits = await first.aio.run_embedded("x", "go", run_id="r", budget=Budget.of(tokens=DEAR.total_tokens + 50))
    assert waits.status == "suspended"
    later = priced(world.process(agent(*script)))
    [pending] = waits.pending_approvals
    result = await later.aio.resume_embedded("r", approvals={pending.approval_id: True})
    assert (result.status, (result.error or {})["code"]) == ("failed", "budget_exceeded")


@pytest.mark.spec("LED-012")
async def test_a_reservation_that_cannot_be_saved_is_the_last(world: World) -> None:
    """Nothing is sent, and nothing more is reserved by whoever met the failure."""
    store = CrashingStore(world.store, 1, error=RuntimeError("disk full"))
    made = agent("never")
    app = world.process(made, store=store.as_store)
    result = await app.aio.run_embedded("x", "go", run_id="r", shared_budgets=[USER])
    assert (result.status, store.commits) == ("failed", 1)
    assert await world.store.balance(USER) is None
    assert isinstance(made.model, MockModel)
    assert made.model.requests == ()


@pytest.mark.spec("LED-013", "BUD-009", "POL-009", "FR-32")
async def test_money_needs_a_price_or_an_estimate(world: World) -> None:
    """Without either a limit in dollars refuses, and one in tokens does not mind."""
    unpriced = agent("never", execution_estimate=None)
    result = await world.process(unpriced).aio.run_embedded("x", "go", budget=Budget.of(usd=100))
    assert (result.status, (result.error or {})["code"]) == ("failed", "missing_reservation")
    assert "prices" in str((result.error or {})["message"])
    for given in (agent("done"), agent("done", execution_estimate=None)):
        limit = Budget.of(usd=100) if given.definition.execution_estimate else Budget.of(tokens=100_000)
        done = await world.process(given).aio.run_embedded("x", "go", budget=limit)
        assert done.status == "completed"


async def test_a_price_that_is_not_known_may_be_allowed(world: World) -> None:
    """Then its tokens are counted and its money is not; or it is reserved and charged at a price that was stated."""
    app = world.process(agent("done", execution_estimate=None), unknown_prices="allow")
    assert (await app.aio.run_embedded("x", "go", budget=Budget.of(usd=0.01), shared_budgets=[USER])).status == "completed"
    found = await balance(world)
    assert (found.spent, found.unknown) == (Budget(15, 0), Budget(0, 0))
    stated = world.process(agent(reply("done", usage=Usage(10, 5)), execution_estimate=None))
    stated.prices = type(stated.prices)({"*": Price(1, 2)})
    assert (await stated.aio.run_embedded("x", "go", budget=Budget.of(usd=1), shared_budgets=[USER])).status == "completed"
    assert (await balance(world)).spent == Budget(30, 20)


@pytest.mark.spec("BUD-001", "BUD-004")
async def test_runs_share_a_budget_by_its_key(world: World) -> None:
    """What one spent the other lacks: it fails before its call, and the error says which budget and how."""
    held = SharedBudget(USER, Budget.of(tokens=110))
    first = priced(world.process(agent(reply("done", usage=Usage(10, 5)))))
    assert (await first.aio.run_embedded("x", "go", shared_budgets=[held])).status == "completed"
    made = agent("never")
    refused = await world.process(made).aio.run_embedded("x", "go", shared_budgets=[held])
    error = refused.error or {}
    assert (refused.status, error["name"], error["code"], error["scope"]) == (
        "failed",
        "BudgetLedgerError",
        "budget_exceeded",
        USER,
    )
    assert USER in str(error["message"])
    assert isinstance(made.model, MockModel)
    assert made.model.requests == ()
    assert sum(row.spent.tokens or 0 for row in await world.store.usage(USER)) == 15


@pytest.mark.spec("WIN-006")
async def test_a_window_passes_by_the_clock_of_the_store(world: World) -> None:
    """A worker whose clock is a day ahead finds what was used a moment ago still counted in a window of an hour."""
    held = SharedBudget(USER, Budget.of(tokens=110), Window(3_600_000))
    first = priced(world.process(agent(reply("done", usage=Usage(10, 5)))))
    assert (await first.aio.run_embedded("x", "go", shared_budgets=[held])).status == "completed"
    ahead = priced(world.process(agent("never")))
    ahead.clock = SkewedClock(86_400_000, SystemClock())
    refused = await ahead.aio.run_embedded("x", "go", shared_budgets=[held])
    assert (refused.status, (refused.error or {}).get("code")) == ("failed", "budget_exceeded")
    assert (await balance(world)).in_window == Budget(15, 20)


async def test_usage_names_the_model_and_the_kinds_of_tokens(world: World) -> None:
    """As the provider counted them."""
    app = priced(world.process(agent(reply("done", usage=Usage(10, 5, 4, 3)))))
    await app.aio.run_embedded("x", "go", shared_budgets=[USER])
    [row] = await world.store.usage(USER)
    assert (row.model, row.calls, row.usage) == (MockModel([]).name, 1, Usage(10, 5, 4, 3, 20))


@pytest.mark.spec("BUD-002")
async def test_a_run_that_lacks_room_of_its_own_asks_no_shared_budget(world: World) -> None:
    """Its own refusal is the one that is reported, and nothing is left of the request in the other."""
    await world.store.set_budget(USER, Budget(tokens=0))
    app = world.process(agent("never"))
    result = await app.aio.run_embedded("x", "go", run_id="r", budget=Budget.of(tokens=10), shared_budgets=[USER])
    own = run_scope_key((await world.head("r")).rid)
    assert ((result.error or {})["code"], (result.error or {})["scope"]) == ("budget_exceeded", own)
    assert await world.store.usage(USER) == ()
    assert (await balance(world)).counted == Budget(0, 0)


@pytest.mark.spec("BUD-013")
async def test_tasks_of_a_swarm_are_charged_to_what_it_shares(world: World) -> None:
    """Each of them, beside its own budget and the swarm's."""
    app = priced(world.process(agent(*[reply("done", usage=Usage(10, 5))] * 2)))
    tasks = [Task(name, agent="x", prompt="go") for name in "ab"]
    options: dict[str, Any] = {"run_id": "s", "budget": Budget.of(tokens=1_000), "shared_budgets": [USER]}
    await app.aio.run_swarm_embedded(Swarm("s", tasks), **options)
    assert (await balance(world)).spent.tokens == 30
    assert (await balance(world, run_scope_key((await world.head("s")).rid))).spent.tokens == 30


async def waiting(world: World, *shared: str | SharedBudget) -> dict[str, bool]:
    """A run that has spent 15 tokens and waits for a person; verdicts for its resume."""
    asked = await priced(world.process(agent(calls(call("pay"))))).aio.run_embedded(
        "x", "go", run_id="r", shared_budgets=shared
    )
    return {item.approval_id: True for item in asked.pending_approvals}


@pytest.mark.spec("BUD-015")
async def test_a_resume_may_charge_further_budgets(world: World) -> None:
    """The calls from there on are charged to the new key as well, and to those before as ever."""
    verdicts = await waiting(world, USER)
    result = await priced(world.process(agent(calls(call("pay")), "done"))).aio.resume_embedded(
        "r", approvals=verdicts, shared_budgets=["org:acme"]
    )
    assert result.status == "completed"
    assert ((await balance(world)).spent.tokens, (await balance(world, "org:acme")).spent.tokens) == (30, 15)
    record = decode_envelope(await world.head("r"))
    assert (record.scopes, [one.key for one in record.shared]) == (("org:acme", USER), ["org:acme", USER])


@pytest.mark.spec("BUD-015")
@pytest.mark.parametrize(("before", "given", "left"), [(1_000, 110, 110), (110, 1_000, 110), (None, 110, 110)])
async def test_a_resume_may_tighten_a_budget_and_never_loosen_it(
    world: World, before: int | None, given: int, left: int
) -> None:
    """The stricter limit counts, whoever gave it; 15 tokens are spent, and a call is reserved at 100."""
    verdicts = await waiting(world, USER if before is None else SharedBudget(USER, Budget.of(tokens=before)))
    app = world.process(agent("never"))
    tighter = SharedBudget(USER, Budget.of(tokens=given))
    result = await app.aio.resume_embedded("r", approvals=verdicts, shared_budgets=[tighter])
    assert (result.status, (result.error or {})["code"]) == ("failed", "budget_exceeded")
    [held] = decode_envelope(await world.head("r")).shared
    assert (held.key, held.limit.tokens) == (USER, left)


@pytest.mark.spec("BUD-015")
@pytest.mark.parametrize("held", [True, False])
async def test_a_resume_changes_no_window(world: World, held: bool) -> None:
    """Of a key that the run is held to, or that others have used; nothing is written, and the run still waits. A limit without
    a window counts in the one that is there."""
    hour, day = Window(3_600_000), Window(86_400_000)
    verdicts = await waiting(world, SharedBudget(USER, window=hour)) if held else await waiting(world)
    if not held:
        await world.store.set_budget(USER, Budget(), window=hour, actor="eve")
    before = await world.head("r")
    for window in (day, Window(3_600_000, 6)):
        given = [SharedBudget(USER, Budget.of(tokens=1_000), window)]
        refused = await world.process(agent("never")).aio.resume_embedded("r", approvals=verdicts, shared_budgets=given)
        assert (refused.status, (refused.error or {})["code"]) == ("failed", "window_mismatch")
    assert await world.head("r") == before
    given = [SharedBudget(USER, Budget.of(tokens=1_000))]
    result = await priced(world.process(agent(calls(call("pay")), "done"))).aio.resume_embedded(
        "r", approvals=verdicts, shared_budgets=given
    )
    assert result.status == "completed"
    assert decode_envelope(await world.head("r")).shared == (SharedBudget(USER, Budget.of(tokens=1_000), hour),)


@pytest.mark.spec("BUD-015")
async def test_a_failed_run_is_taken_up_with_further_budgets(world: World) -> None:
    """From the commit on that takes it up."""
    script = [fails(ModelStreamBrokenError("cut"))]
    failed = await world.process(agent(*script, limits=Limits(max_retries=0))).aio.run_embedded("x", "go", run_id="r")
    assert failed.status == "failed"
    app = priced(world.process(agent("done", limits=Limits(max_retries=0))))
    result = await app.aio.resume_embedded("r", retry_failed=True, shared_budgets=["org:acme"])
    assert (result.status, (await balance(world, "org:acme")).spent.tokens) == ("completed", 15)


async def test_budgets_that_a_resume_adds_hold_for_what_the_run_delegated(world: World) -> None:
    """A run below that waits for a person is charged to them too, once it goes on."""
    inner = Agent("inner", model=MockModel([calls(call("pay")), "done"]), tools=[pay])
    boss = Agent("x", model=MockModel([calls(call("inner", prompt="go")), "done"]), tools=[inner])
    asked = await world.process(boss).aio.run_embedded("x", "go", run_id="r")
    verdicts = {item.approval_id: True for item in asked.pending_approvals}
    result = await world.process(boss).aio.resume_embedded("r", approvals=verdicts, shared_budgets=["org:acme"])
    assert (result.status, (await balance(world, "org:acme")).spent.tokens) == ("completed", 30)


@pytest.mark.spec("BUD-014")
async def test_an_exported_run_goes_on_only_where_its_budgets_are(world: World) -> None:
    """The file of a run that is charged to a shared budget has version 2 and names it; a store that does not have that budget
    takes no such run, and writes nothing. One that has it goes on charging it."""
    verdicts = await waiting(world, SharedBudget(USER, Budget.of(tokens=1_000)))
    text = await world.process().aio.export_run("r")
    document = json.loads(text)
    assert (document["format_version"], USER in document["run"]["body"]) == (2, True)
    there = World("sqlite://:memory:", open_store("sqlite://:memory:"))
    app = priced(there.process(agent(calls(call("pay")), "done")))
    with pytest.raises(RunFileError, match=USER):
        await app.aio.import_run(text)
    assert (await app.aio.list_runs()).heads == ()
    await there.store.set_budget(USER, Budget(), actor="eve")
    handle = await app.aio.import_run(text)
    assert await handle.retry() == ()
    assert (await app.aio.resume_embedded("r", approvals=verdicts)).status == "completed"
    assert (await balance(there)).spent.tokens == 15
    plain = await world.process(agent("done")).aio.run_embedded("x", "go", run_id="plain")
    assert json.loads(await world.process().aio.export_run(plain.run_id))["format_version"] == 1
    await there.close()


@pytest.mark.spec("LED-006")
async def test_what_siblings_spend_changes_no_record_of_a_run(world: World) -> None:
    """Two tasks wait for a person. One is answered and spends twice more from the budget of both: the record of the other stays
    as it was, and each holds what its own calls cost."""

    def answer(request: Any) -> Entry:
        turn = sum(message.role == "assistant" for message in request.messages)
        return [calls(call("pay")), calls(call("look")), reply("done")][turn]

    waits = Agent("x", model=MockModel.function(answer), tools=[pay, look], execution_estimate=Budget.of(tokens=100))
    tasks = [Task(name, agent="x", prompt="go") for name in "ab"]
    await world.process(waits).aio.run_swarm_embedded(Swarm("s", tasks, budget=Budget.of(tokens=10_000)), run_id="s")
    key, before = run_scope_key((await world.head("s")).rid), await world.head("s/a")
    assert (before.status, (await balance(world, key)).spent.tokens) == ("suspended", 30)
    app = world.process(waits)
    handle = app.aio.swarm_handle("s").task("b")
    [pending] = await handle.pending()
    await handle.approve(pending.approval_id)
    assert (await app.aio.resume_swarm_embedded("s")).tasks == {"a": "suspended", "b": "completed"}
    assert (await balance(world, key)).spent.tokens == 60
    after = await world.head("s/a")
    assert (after.revision, after.body) == (before.revision, before.body)
    own = [accounting_of(decode_envelope(await world.head(name))).spent.tokens for name in ("s/a", "s/b")]
    assert own == [15, 45]


@pytest.mark.spec("LED-004", "BUD-020")
async def test_a_process_that_dies_behind_its_reservation_leaves_a_hold(world: World) -> None:
    """The stored ledger has it before anything is sent; whoever takes over first says that nobody knows what became of it."""
    made = agent("done")
    with pytest.raises(ProcessDied):
        await world.dying(made, at=1, applied=True).aio.run_embedded("x", "go", run_id="r", shared_budgets=[USER])
    assert isinstance(made.model, MockModel)
    assert made.model.requests == ()
    assert (await balance(world)).held == Budget(100, 1_000)
    assert (await world.store.usage(USER))[0].held == Budget(100, 1_000)
    await world.later(60_000)
    taken_over = priced(world.process(agent(reply("done", usage=Usage(10, 5)))))
    assert (await taken_over.aio.resume_embedded("r")).status == "completed"
    found = await balance(world)
    assert (found.spent, found.held, found.unknown) == (Budget(15, 20), Budget(0, 0), Budget(100, 1_000))
    [hold] = await world.store.holds(USER)
    assert await world.store.release_hold(hold.rid, hold.request_id, actor="eve") == (USER,)
    assert await world.store.release_hold(hold.rid, hold.request_id, actor="eve") == ()


@pytest.mark.spec("LED-005")
async def test_a_run_that_has_ended_is_written_no_more(world: World) -> None:
    """Whatever others spend from its budget, and whatever is released of its own calls."""
    app = world.process(agent(reply("done", usage=None)))
    await app.aio.run_embedded("x", "go", run_id="r", shared_budgets=[USER])
    before = await world.head("r")
    await world.process(agent("done")).aio.run_embedded("x", "go", run_id="s", shared_budgets=[USER])
    [hold, *_] = await world.store.holds(USER)
    await world.store.release_hold(hold.rid, hold.request_id, actor="eve")
    after = await world.head("r")
    assert (after.revision, after.wake_seq, after.body) == (before.revision, before.wake_seq, before.body)


@pytest.mark.spec("LED-008")
async def test_a_run_of_its_own_has_its_whole_ledger_in_its_record(world: World) -> None:
    """The record says what the row of its budget says: spent, held and unknown."""
    app = priced(world.process(agent(calls(call("look"), usage=Usage(10, 5)), reply("done", usage=None))))
    result = await app.aio.run_embedded("x", "go", run_id="r", budget=Budget.of(tokens=1_000, usd=1))
    without = priced(world.process(agent(calls(call("look"), usage=Usage(10, 5)), reply("done", usage=None))))
    same = await without.aio.run_embedded("x", "go")
    assert result.accounting == same.accounting
    assert (same.accounting.spent, same.accounting.unknown) == (Amount(15, 20), Amount(100, 1_000))


async def test_a_fork_keeps_the_budget(world: World) -> None:
    """As much as the first run had, anew, and what both share is shared; another budget may be given."""
    script = (calls(call("look"), usage=Usage(10, 5)), reply("done", usage=Usage(10, 5)))
    app = priced(world.process(agent(*script)))
    options: dict[str, Any] = {"budget": Budget.of(tokens=230), "shared_budgets": [USER]}
    assert (await app.aio.run_embedded("x", "go", run_id="r", **options)).status == "completed"
    forks = [
        await app.aio.fork("r", 1, new_run_id="f"),
        await app.aio.fork("r", 1, new_run_id="g", budget=Budget.of(tokens=10)),
    ]
    for handle in forks:
        await app.aio.resume_embedded(handle.run_id)
    limits = [(await balance(world, run_scope_key((await world.head(name)).rid))).limit for name in "rfg"]
    assert limits == [Budget(230), Budget(230), Budget(10)]
    assert [(await world.head(name)).status for name in "fg"] == ["completed", "failed"]
    assert (await balance(world)).spent.tokens == 45


# -- warnings ----------------------------------------------------------------------------------------------------------


class Told:
    """Takes warnings, and raises if it is to."""

    def __init__(self, *, raises: bool = False) -> None:
        self.warnings: list[BudgetWarning] = []
        self.raises = raises

    def __call__(self, warning: BudgetWarning) -> None:
        self.warnings.append(warning)
        if self.raises:
            raise RuntimeError("no mail today")

    @property
    def short(self) -> list[tuple[str, str, int]]:
        return [(warning.key, warning.dimension, warning.percent) for warning in self.warnings]


LOOKS = [calls(call("look"), usage=Usage(60, 40))] * 10


def told(world: World, callback: Told, *script: Entry, **settings: Any) -> Deuz:
    app = world.process(agent(*script, execution_estimate=Budget.of(tokens=100)), **settings)
    app.on_budget_warning = callback
    return app


@pytest.mark.spec("WIN-007", "WIN-010", "WIN-011")
async def test_a_run_is_warned_once(world: World) -> None:
    """Ten calls above the threshold: one warning, with scope, dimension and percentage, also in the journal."""
    callback = Told()
    app = told(world, callback, *LOOKS, "done")
    held = SharedBudget(USER, Budget.of(tokens=2_000), warn_at_percent=15)
    result = await app.aio.run_embedded("x", "go", run_id="r", shared_budgets=[held])
    assert result.status == "completed"
    assert callback.short == [(USER, "tokens", 15)] or callback.short == [(USER, "tokens", 20)]
    assert (callback.warnings[0].scope, callback.warnings[0].run_id) == ("default", "r")
    journal = [row.body for row in await world.store.journal("default", "r", 0, 200)]
    assert sum('"budget.warned"' in body for body in journal) == 1


@pytest.mark.spec("WIN-010")
async def test_a_run_is_warned_once_however_many_processes_take_it_on(world: World) -> None:
    """What it was told is part of its record."""
    held = SharedBudget(USER, Budget.of(tokens=2_000), warn_at_percent=5)
    script = [
        calls(call("pay").with_id("a"), usage=Usage(60, 40)),
        calls(call("pay").with_id("b"), usage=Usage(60, 40)),
        "done",
    ]
    callback = Told()
    result = await told(world, callback, *script).aio.run_embedded("x", "go", run_id="r", shared_budgets=[held])
    heard = callback.short
    for _ in range(2):
        callback = Told()
        approvals = {result.pending_approvals[0].approval_id: True}
        result = await told(world, callback, *script).aio.resume_embedded("r", approvals=approvals)
        heard += callback.short
    assert result.status == "completed"
    assert heard == [(USER, "tokens", 5)]


@pytest.mark.spec("WIN-007")
async def test_a_warning_comes_again_after_usage_dropped(world: World) -> None:
    """The limit was raised in between, so that what is used was below the threshold; then it is crossed a second time."""
    callback = Told()
    limits = {2: Budget(tokens=10_000), 4: Budget(tokens=600)}

    def answer(request: Any) -> Entry:
        turn = sum(message.role == "assistant" for message in request.messages) + 1
        return reply("done") if turn > 5 else calls(call("raise_limit", turn=turn), usage=Usage(60, 40))

    @tool
    async def raise_limit(turn: int) -> str:
        if turn in limits:
            await world.store.set_budget(USER, limits[turn])
        return "so be it"

    await world.store.set_budget(USER, Budget(tokens=200), warn_at_percent=80)
    app = world.process(
        Agent("x", model=MockModel.function(answer), tools=[raise_limit], execution_estimate=Budget.of(tokens=100))
    )
    app.on_budget_warning = callback
    await app.aio.run_embedded("x", "go", shared_budgets=[USER])
    assert callback.short == [(USER, "tokens", 100), (USER, "tokens", 83)]


@pytest.mark.spec("WIN-008")
async def test_the_threshold_of_a_scope_goes_before_the_general_one(world: World) -> None:
    """Of two scopes one has its own."""
    callback = Told()
    app = told(world, callback, "done", budget_warn_percent=90)
    await world.store.set_budget("org:acme", Budget(tokens=190), warn_at_percent=50)
    await world.store.set_budget(USER, Budget(tokens=190))
    await app.aio.run_embedded("x", "go", shared_budgets=["org:acme", USER])
    assert callback.short == [("org:acme", "tokens", 52)]


@pytest.mark.spec("WIN-009")
async def test_what_a_callback_raises_changes_nothing(world: World) -> None:
    """The call is admitted and made."""
    callback = Told(raises=True)
    app = told(world, callback, "done", budget_warn_percent=1)
    result = await app.aio.run_embedded("x", "go", budget=Budget.of(tokens=1_000))
    assert (result.status, len(callback.warnings)) == ("completed", 1)


@pytest.mark.parametrize(
    "given",
    ["user:42", [7], ["user:42", SharedBudget("user:42", Budget.of(tokens=1))], [SharedBudget("user:42", Budget(tokens=-1))]],
)
async def test_what_cannot_be_meant_is_refused(memory: World, given: Any) -> None:
    """Before anything is written."""
    with pytest.raises(ConfigurationError):
        await memory.process(agent("never")).aio.enqueue("x", "go", shared_budgets=given)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SharedBudget("run:1"),
        lambda: SharedBudget("org#1"),
        lambda: SharedBudget(""),
        lambda: SharedBudget("a", warn_at_percent=0),
        lambda: SharedBudget("a", Budget.of(tokens=1), as_stored=True),
        lambda: Window(0),
        lambda: Window(60_000, 0),
        lambda: Window(60_000, 401),
        lambda: Window(5, 12),
    ],
)
def test_a_shared_budget_says_what_it_may_be(make: Any) -> None:
    """Keys of runs and of slices, thresholds and windows out of range."""
    with pytest.raises(ConfigurationError):
        make()
