"""Effects that nobody knows: what a resume takes about them, and what it makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from deuz_workers import Agent, Approval, AsyncHandle, Deuz, MockModel, Settings, tool
from deuz_workers.app.results import AgentResult, UnknownEffect
from deuz_workers.core.approval_token import DENIAL
from deuz_workers.core.change import Change, Outcome, ReceiptRow
from deuz_workers.core.codec import decode, encode
from deuz_workers.core.messages import ToolResultPart
from deuz_workers.core.receipts import Receipt
from deuz_workers.errors import ConfigurationError, ReconciliationError
from deuz_workers.leases import memory_leases
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import Effects, World

Told = list[tuple[str, bool]]
DENIED = "Tool call denied. Reason: No approval response."


class Bank:
    """Payments that are interrupted until the bank is mended."""

    def __init__(self, world: World, *to: str, gate: bool | Approval = False, **options: Any) -> None:
        self.world, self.done = world, Effects()
        self.gate, self.options = gate, options
        self.is_mended = False
        wanted = [call("pay", to=name).with_id(name) for name in to or ("ann",)]
        self.model = MockModel([calls(*wanted), "done", "done"])
        self._many = len(wanted)

    @property
    def agent(self) -> Agent:
        @tool(needs_approval=self.gate, **self.options)
        async def pay(to: str) -> Any:
            self.done(to)
            if self.is_mended:
                return f"paid {to}"
            while self.others_to_begin(await self.world.receipts("r")):  # noqa: ASYNC110 - in another process' store
                await asyncio.sleep(0.002)
            raise ProcessDied

        return Agent("payer", model=self.model, tools=[pay])

    def others_to_begin(self, receipts: Mapping[Any, Receipt]) -> bool:
        return sum(receipt.stage == "executing" for receipt in receipts.values()) < self._many

    async def interrupt(self) -> None:
        """Run until the process dies in the middle of the payments, and mend the bank."""
        app = self.world.process(self.agent)
        try:
            waiting = await app.aio.run_embedded("payer", "go", run_id="r")
            verdicts = {request.approval_id: True for request in waiting.pending_approvals}
            await app.aio.resume_embedded("r", approvals=verdicts)
        except ProcessDied:
            self.is_mended = True
        assert self.is_mended

    async def resume(self, **answers: Any) -> AgentResult[Any]:
        return await self.world.process(self.agent).aio.resume_embedded("r", **answers)

    async def handle(self) -> AsyncHandle:
        """Of the run, which waits for a word: a first resume found out that it has to."""
        assert (await self.resume()).reason == "tool-reconciliation-required"
        return self.world.process(self.agent).aio.handle("r")

    @property
    def told(self) -> Told:
        parts = [part for message in self.model.requests[-1].messages for part in message.parts]
        return [(part.text, part.is_error) for part in parts if isinstance(part, ToolResultPart)]


@pytest.mark.spec("REC-002", "REC-003")
async def test_a_call_that_was_allowed_once_more_runs_once_more(world: World) -> None:
    """The counter rises by one and the run completes; the same id later runs nothing and says so."""
    bank = Bank(world)
    await bank.interrupt()
    assert (await bank.resume(retry_tool_call_ids=["ann"])).status == "completed"
    assert (bank.done.done, bank.told) == ({"ann": 2}, [("paid ann", False)])
    again = await bank.resume(retry_tool_call_ids=["ann"], reconciled_tool_results={"bob": 1})
    assert (again.status, bank.done.done) == ("completed", {"ann": 2})
    assert [warning.setting for warning in again.warnings] == ["reconciliation"]


@pytest.mark.spec("REC-004", "RCP-012")
async def test_an_outcome_that_somebody_found_is_the_calls_raw_result(world: World) -> None:
    """Nothing runs again, and the receipt says where its value is from; one that ended by itself does not."""
    bank = Bank(world)
    await bank.interrupt()
    found = {"confirmation": 17, "at": b"\x00"}
    assert (await bank.resume(reconciled_tool_results={"ann": found})).status == "completed"
    receipt = (await world.receipts("r"))[1, "ann"]
    assert (receipt.value, receipt.stage, receipt.reconciled) == (found, "completed", True)
    assert bank.done.done == {"ann": 1}
    plain = Bank(world)
    plain.is_mended = True
    await world.process(plain.agent).aio.run_embedded("payer", "go", run_id="p")
    assert not (await world.receipts("p"))[1, "ann"].reconciled


@pytest.mark.spec("REC-005")
async def test_a_found_outcome_is_checked_and_projected_like_a_returned_one(memory: World) -> None:
    """A good one reaches the model as `to_model_output` makes it, one that misses the schema as a validation failure."""
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}

    def check(value: Any) -> Any:
        if value["sum"] < 0:
            raise ValueError("a sum is not negative")
        return value

    def show(value: Any) -> str:
        return f"{value['sum']} paid"

    for found, told, stage in (
        ({"sum": 7}, ("7 paid", False), "completed"),
        ({"sum": "seven"}, None, "validation-failed"),
        ({"sum": -7}, None, "validation-failed"),
    ):
        world = World(memory.url, memory.store)
        bank = Bank(world, output_schema=schema, validate_result=check, to_model_output=show)
        await bank.interrupt()
        result = await bank.resume(reconciled_tool_results={"ann": found})
        receipt = (await world.receipts("r"))[1, "ann"]
        assert (result.status, receipt.stage, receipt.value, receipt.reconciled) == ("completed", stage, found, True)
        [(text, is_error)] = bank.told
        assert told is None or (text, is_error) == told
        assert told is not None or is_error
        assert bank.done.done == {"ann": 1}
        memory.store = await _fresh(memory)


async def _fresh(memory: World) -> Any:
    from deuz_workers.store import open_store

    await memory.store.close()
    return open_store(memory.url)


@pytest.mark.spec("REC-006")
@pytest.mark.parametrize(
    ("found", "text"), [("card refused", "card refused"), ({"code": 5, "of": [1]}, '{"code": 5, "of": [1]}')]
)
async def test_a_failure_that_somebody_found_is_the_text_of_the_call(memory: World, found: object, text: str) -> None:
    """Text stands as it is, anything else as JSON."""
    bank = Bank(memory)
    await bank.interrupt()
    records = [{"tool_call_id": "ann", "output": found, "is_error": True}]
    assert (await bank.resume(reconciled_tool_results=records)).status == "completed"
    assert (bank.told, bank.done.done) == ([(text, True)], {"ann": 1})
    receipt = (await memory.receipts("r"))[1, "ann"]
    assert (receipt.stage, receipt.reconciled) == ("failed", True)


@pytest.mark.spec("REC-007", "REC-009", "RSM-005")
@pytest.mark.parametrize(
    "answers",
    [
        {"reconciled_tool_results": {"nobody": 1}},
        {"reconciled_tool_results": {"ann": 1, "bob": 1, "nobody": 1}},
        {"reconciled_tool_results": {"cid": 1}},
        {"retry_tool_call_ids": ["cid", "ann", "bob"]},
        {"retry_tool_call_ids": ["ann", "ann", "bob"]},
        {"retry_tool_call_ids": ["ann"], "reconciled_tool_results": {"ann": 1, "bob": 2}},
        {"reconciled_tool_results": [{"tool_call_id": "ann", "output": 1}, {"tool_call_id": "ann", "output": 1}]},
        {"reconciled_tool_results": [{"tool_call_id": "ann"}]},
        {"retry_tool_call_ids": ["ann@0000000000000000", "bob"]},
        {"reconciled_tool_results": {"ann": object(), "bob": 1}},
    ],
)
async def test_words_that_fit_no_interrupted_call_are_a_type_error(memory: World, answers: Mapping[str, Any]) -> None:
    """Unknown, completed, twice, in both lists, of another execution, unstorable: raised before anything is written."""
    bank = Bank(memory, "ann", "bob")
    await bank.interrupt()
    await bank.resume()
    before = await memory.loaded("r")
    with pytest.raises(TypeError) as caught:
        await bank.resume(**answers)
    assert isinstance(caught.value, ReconciliationError)
    assert "part" in caught.value.fields
    after = await memory.loaded("r")
    assert (after.head, after.receipts, after.notes) == (before.head, before.receipts, before.notes)


@pytest.mark.spec("REC-007")
async def test_a_call_that_has_ended_is_no_interrupted_one(memory: World) -> None:
    """Of two calls of a turn one had completed: its outcome cannot be said, only the other's."""
    done, dies = Effects(), [True]

    def agent() -> Agent:
        @tool
        async def pay(to: str) -> str:
            done(to)
            if to == "bob" and dies:
                while (await memory.receipts("r"))[1, "ann"].stage != "completed":  # noqa: ASYNC110 - another process' store
                    await asyncio.sleep(0.002)
                raise ProcessDied
            return f"paid {to}"

        model = MockModel([calls(call("pay", to="ann").with_id("ann"), call("pay", to="bob").with_id("bob")), "done"])
        return Agent("payer", model=model, tools=[pay])

    with pytest.raises(ProcessDied):
        await memory.process(agent()).aio.run_embedded("payer", "go", run_id="r")
    dies.clear()
    app = memory.process(agent())
    for wrong in ({"reconciled_tool_results": {"ann": 1, "bob": 1}}, {"retry_tool_call_ids": ["ann", "bob"]}):
        with pytest.raises(ReconciliationError, match="'ann' of run 'r' was not interrupted"):
            await app.aio.resume_embedded("r", **wrong)  # type: ignore[arg-type]
    assert (await app.aio.resume_embedded("r", reconciled_tool_results={"bob": "was paid"})).status == "completed"
    assert done.done == {"ann": 1, "bob": 1}


@pytest.mark.spec("REC-008", "CKP-007")
async def test_an_outcome_takes_the_place_of_an_automatic_repetition(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old receipt of an idempotent tool is listed too; with an outcome nothing runs again, without one it does."""
    commit = memory.store.commit

    def without_flag(row: ReceiptRow) -> ReceiptRow:
        record = decode(row.body)
        assert isinstance(record, dict)
        record.pop("idempotent", None)
        return replace(row, body=encode(record))

    async def of_an_older_version(change: Change) -> Outcome:
        return await commit(replace(change, receipts=tuple(map(without_flag, change.receipts))))

    bank = Bank(memory, replay="idempotent")
    with monkeypatch.context() as patched:
        patched.setattr(memory.store, "commit", of_an_older_version)
        await bank.interrupt()
    from deuz_workers import inspect_run

    report = await inspect_run("r", store=memory.store)
    assert [(effect.tool_call_id, effect.idempotent) for effect in report.unknown_effects] == [("ann", None)]
    assert (await bank.resume(reconciled_tool_results={"ann": "was paid"})).status == "completed"
    assert (bank.done.done, bank.told) == ({"ann": 1}, [("was paid", False)])


@pytest.mark.spec("REC-010", "REC-015")
async def test_words_about_some_of_the_calls_record_nothing(world: World) -> None:
    """Each of two alone, as an outcome or a repetition: both are listed again and nothing is written. Together they count."""
    bank = Bank(world, "ann", "bob")
    await bank.interrupt()
    await bank.resume()
    before = await world.loaded("r")
    parts: tuple[dict[str, Any], ...] = ({"retry_tool_call_ids": ["ann"]}, {"reconciled_tool_results": {"bob": "was paid"}})
    for half in parts:
        again = await bank.resume(**half)
        assert again.reason == "tool-reconciliation-required"
        assert [effect.tool_call_id for effect in again.unknown_effects] == ["ann", "bob"]
        assert await world.loaded("r") == before
    assert (await bank.resume(**parts[0], **parts[1])).status == "completed"
    assert (bank.done.done, bank.told) == ({"ann": 2, "bob": 1}, [("paid ann", False), ("was paid", False)])


@pytest.mark.spec("REC-010")
async def test_a_handle_takes_no_words_about_some_of_the_calls(world: World) -> None:
    """An outcome or a repetition of one of two: refused with the call that is left, and no note is written."""
    bank = Bank(world, "ann", "bob")
    await bank.interrupt()
    handle = await bank.handle()
    before = await world.loaded("r")
    with pytest.raises(ReconciliationError, match="'bob'") as refused:
        await handle.reconcile({"ann": "was paid"})
    assert refused.value.fields["part"] == "call"
    with pytest.raises(ReconciliationError, match="'ann'"):
        await handle.retry(["bob"])
    assert await world.loaded("r") == before


@pytest.mark.spec("REC-010")
async def test_a_note_that_leaves_a_call_open_counts_for_nothing(memory: World) -> None:
    """Also past the doors: an outcome of one of two calls is not recorded by the step that reads it."""
    bank = Bank(memory, "ann", "bob")
    await bank.interrupt()
    await bank.resume()
    await memory.store.add_note("default", "r", "reconcile", encode({"results": {"ann": {"output": "was paid"}}}))
    again = await bank.resume()
    assert [effect.tool_call_id for effect in again.unknown_effects] == ["ann", "bob"]
    assert {receipt.stage for receipt in (await memory.receipts("r")).values()} == {"executing"}


@pytest.mark.spec("REC-011")
async def test_an_outcome_of_a_gated_call_needs_no_verdict(memory: World) -> None:
    """It was approved and interrupted; what became of it is said, and nobody is asked again."""
    bank = Bank(memory, gate=True)
    await bank.interrupt()
    result = await bank.resume(reconciled_tool_results={"ann": "was paid"})
    assert (result.status, bank.told, bank.done.done) == ("completed", [("was paid", False)], {"ann": 1})


@pytest.mark.spec("REC-012")
@pytest.mark.parametrize("verdict", ["again", "bare", "denied", "none"])
async def test_a_repetition_does_not_pass_the_gate_by_itself(world: World, verdict: str) -> None:
    """With the verdict given again it runs; without one, or with a denial, the model reads a denial and nothing runs."""
    bank = Bank(world, gate=True)
    await bank.interrupt()
    [effect] = (await bank.resume()).unknown_effects
    assert effect.approval_id is not None
    approvals: Mapping[str, Any] = {
        "again": {effect.approval_id: True},
        "bare": {"ann": True},
        "denied": {effect.approval_id: {"approved": False, "reason": "too late"}},
        "none": {},
    }[verdict]
    result = await bank.resume(retry_tool_call_ids=["ann"], approvals=approvals)
    assert result.status == "completed"
    if verdict in ("again", "bare"):
        assert (bank.told, bank.done.done) == ([("paid ann", False)], {"ann": 2})
    else:
        text = "Tool call denied. Reason: too late" if verdict == "denied" else DENIED
        assert (bank.told, bank.done.done) == ([(text, True)], {"ann": 1})


@pytest.mark.spec("REC-012")
async def test_a_person_who_may_not_approve_alone_lets_nothing_run_again(memory: World) -> None:
    """The terms of the gate hold for the repetition too: certain people, or more than one."""
    for gate, by, runs in (
        (Approval(people=("eve",)), "eve", True),
        (Approval(people=("eve",)), "mallory", False),
    ):
        world = World(memory.url, memory.store)
        bank = Bank(world, gate=gate)
        app = world.process(bank.agent)
        [asked] = (await app.aio.run_embedded("payer", "go", run_id="r")).pending_approvals
        await app.aio.handle("r").approve(asked, by="eve")
        with pytest.raises(ProcessDied):
            await app.aio.resume_embedded("r")
        bank.is_mended = True
        handle = await bank.handle()
        assert await handle.retry(["ann"], approvals={asked.approval_id: {"approved": True, "by": by}}) == ("ann",)
        assert (await bank.resume()).status == "completed"
        assert bank.done.done == {"ann": 2 if runs else 1}
        memory.store = await _fresh(memory)


@pytest.mark.spec("REC-012", "APR-015")
@pytest.mark.parametrize("door", ["resume", "handle"])
@pytest.mark.parametrize(
    ("by", "again"),
    [
        (["ann", "bob"], True),
        (["ann", "ann"], False),
        (["ann", "eve"], False),
        (["ann"], False),
        ("ann", False),
    ],
    ids=str,
)
async def test_several_people_let_a_call_run_again(memory: World, by: Any, again: bool, door: str) -> None:
    """A gate that needs two of three is passed a second time by two of them together, and by nobody less."""
    bank = Bank(memory, gate=Approval(people=("ann", "bob", "cid"), needed=2))
    waiting = await memory.process(bank.agent).aio.run_embedded("payer", "go", run_id="r")
    [asked] = waiting.pending_approvals
    handle = memory.process(bank.agent).aio.handle("r")
    for person in ("ann", "cid"):
        await handle.approve(asked, by=person)
    with pytest.raises(ProcessDied):
        await bank.resume()
    bank.is_mended = True
    verdict = {asked.approval_id: {"approved": True, "by": by}}
    if door == "handle":
        await (await bank.handle()).retry(approvals=verdict)
        result = await bank.resume()
    else:
        result = await bank.resume(retry_tool_call_ids=["ann"], approvals=verdict)
    assert result.status == "completed"
    assert bank.done.done == {"ann": 2 if again else 1}
    assert bank.told == ([("paid ann", False)] if again else [(DENIED, True)])


@pytest.mark.parametrize("by", [5, ["ann", 5], ["ann", " "], " bob"])
async def test_who_gives_a_verdict_is_named_by_text(memory: World, by: Any) -> None:
    """Anything else is refused before anything is read."""
    with pytest.raises(ConfigurationError, match="a name, or a list of names"):
        await memory.process().aio.resume_embedded("r", approvals={"a": {"approved": True, "by": by}})


@pytest.mark.parametrize("given", ["shown", "missing", "tampered", "denial"])
async def test_a_signed_gate_wants_its_token_again(memory: World, given: str) -> None:
    """The token that the effect is shown with lets it run; another is refused by the door, and denies in a resume. A denial
    needs none."""
    secret = {"approval_secret": "s" * 32}

    def process(bank: Bank) -> Deuz:
        settings = Settings(database_url=memory.url, redis_url=None, broker_url=None, leases_url="memory://", **secret)
        app = Deuz([bank.agent], settings=settings, store=memory.store, leases=memory_leases())
        memory.opened.append(app)
        return app

    bank = Bank(memory, gate=True)
    app = process(bank)
    [asked] = (await app.aio.run_embedded("payer", "go", run_id="r")).pending_approvals
    await app.aio.handle("r").approve(asked)
    with pytest.raises(ProcessDied):
        await app.aio.resume_embedded("r")
    bank.is_mended = True
    [effect] = (await process(bank).aio.resume_embedded("r")).unknown_effects
    handle = process(bank).aio.handle("r")
    assert (effect.approval_id, effect.token is not None) == (asked.approval_id, True)
    if given == "shown":
        await handle.retry([effect.effect_id], approvals={effect.effect_id: {"approved": True, "token": effect.token}})
        assert (await process(bank).aio.resume_embedded("r")).status == "completed"
        assert (bank.done.done, bank.told) == ({"ann": 2}, [("paid ann", False)])
        return
    verdict: dict[str, object] = {"approved": False, "reason": "too late"}
    reason = "too late"
    if given != "denial":
        verdict = {"approved": True, "token": None if given == "missing" else "v1.x.y"}
        with pytest.raises(ReconciliationError) as caught:
            await handle.retry(["ann"], approvals={asked.approval_id: verdict})
        assert caught.value.fields["part"] == "token"
        reason = DENIAL
    result = await process(bank).aio.resume_embedded("r", retry_tool_call_ids=["ann"], approvals={asked.approval_id: verdict})
    assert (result.status, bank.done.done) == ("completed", {"ann": 1})
    assert bank.told == [(f"Tool call denied. Reason: {reason}", True)]


@pytest.mark.spec("REC-013", "REC-014")
async def test_the_stop_is_no_end_and_nobody_comes_back_to_it(world: World) -> None:
    """The record keeps status, phase and revision; two sweep intervals later nothing is due; a word makes it due again."""
    bank = Bank(world)
    await bank.interrupt()
    crashed = await world.loaded("r")
    handle = await bank.handle()
    parked = await world.loaded("r")
    assert (parked.head.status, parked.head.phase) == ("running", "loop")
    assert (parked.head.revision, parked.head.body) == (crashed.head.revision, crashed.head.body)
    assert (parked.messages, parked.receipts, parked.notes) == (crashed.messages, crashed.receipts, ())
    for _ in range(2):
        await world.later(60_000)
        assert await world.store.sweep(limit=10, ttl_ms=30_000) == ()
        assert not (await world.head("r")).has_work
    await handle.reconcile({"ann": "was paid"})
    assert (await world.head("r")).has_work
    await world.later(200_000)
    assert [bell.run_id for bell in await world.store.sweep(limit=10, ttl_ms=30_000)] == ["r"]


async def test_a_word_is_about_one_execution(memory: World) -> None:
    """The call ran again and was interrupted again: what was said of the first time is refused, also past a door."""
    bank = Bank(memory)
    await bank.interrupt()
    [first] = (await bank.resume()).unknown_effects
    bank.is_mended = False
    with pytest.raises(ProcessDied):
        await bank.resume(retry_tool_call_ids=[first.effect_id])
    bank.is_mended = True
    [second] = (await bank.resume()).unknown_effects
    assert (first.attempt, second.attempt) == (1, 2)
    handle = memory.process(bank.agent).aio.handle("r")
    with pytest.raises(ReconciliationError, match="for attempt 1, and interrupted is attempt 2") as caught:
        await handle.reconcile({first.effect_id: "was paid"})
    assert caught.value.fields["part"] == "attempt"
    late = {"results": {"ann": {"output": "was paid"}}, "calls": {"ann": {"step": 1, "attempt": 1}}}
    await memory.store.add_note("default", "r", "reconcile", encode(late))
    assert [effect.effect_id for effect in (await bank.resume()).unknown_effects] == [second.effect_id]
    assert isinstance(second, UnknownEffect)
    await handle.reconcile({second.effect_id: "was paid"})
    assert (await bank.resume()).status == "completed"
    assert bank.done.done == {"ann": 2}


async def test_nothing_is_said_about_a_call_that_is_being_executed(memory: World) -> None:
    """A living executor has the run: the words are refused before they are written, and its outcome counts."""
    began, may_end = asyncio.Event(), asyncio.Event()
    leases = memory_leases()

    @tool
    async def pay() -> str:
        began.set()
        await may_end.wait()
        return "paid"

    def process() -> Deuz:
        agent = Agent("payer", model=MockModel([calls(call("pay").with_id("c")), "done"]), tools=[pay])
        settings = Settings(
            database_url=memory.url, redis_url=None, broker_url=None, leases_url="memory://", lease_ttl_ms=1_000
        )
        app = Deuz([agent], settings=settings, store=memory.store, leases=leases)
        memory.opened.append(app)
        return app

    living = asyncio.ensure_future(process().aio.run_embedded("payer", "go", run_id="r"))
    await began.wait()
    before = await memory.loaded("r")
    for words in ({"retry_tool_call_ids": ["c"]}, {"reconciled_tool_results": {"c": "was paid"}}):
        refused = await process().aio.resume_embedded("r", **words)  # type: ignore[arg-type]
        assert (refused.status, (refused.error or {})["code"]) == ("failed", "lease_held")
    after = await memory.loaded("r")
    assert (after.head.revision, after.head.wake_seq, after.notes) == (before.head.revision, before.head.wake_seq, ())
    may_end.set()
    assert (await living).status == "completed"
    assert (await memory.receipts("r"))[1, "c"].value == "paid"
