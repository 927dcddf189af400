"""A history that no longer fits the window of its model: what is left out, what it costs, and what is never lost."""

from __future__ import annotations

from typing import Any

import pytest

from deuz_workers import (
    Agent,
    Block,
    Budget,
    CompactionPolicy,
    ConfigurationError,
    Deuz,
    Guardrails,
    Limits,
    MockModel,
    ModelContextOverflowError,
    ModelRateLimitedError,
    ModelRequestError,
    StepInfo,
    StepPlan,
    Usage,
    tool,
)
from deuz_workers.app.runtime import Runtime
from deuz_workers.core.codec import decode
from deuz_workers.core.compaction import LEFT_OUT, is_summary
from deuz_workers.core.history import History
from deuz_workers.core.messages import assistant, user
from deuz_workers.core.names import run_scope_key
from deuz_workers.core.summary_request import INSTRUCTIONS
from deuz_workers.engine.in_process import LocalDoorbell
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.script import Entry, ScriptedReply, call, calls, reply
from deuz_workers.store import open_store
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import World

WINDOW = 2_000
PAGE = "page " * 200


@tool(replay="idempotent")
async def look() -> str:
    """Reads a page."""
    return PAGE


@tool(name="look", replay="idempotent")
async def glance() -> str:
    """Reads a page that is not worth leaving out."""
    return "seen"


def counted(request: ModelRequest, output: int = 5) -> Usage:
    """What a provider would count that takes four bytes for a token."""
    return Usage(max(1, History(request.messages).size_bytes // 4), output)


def is_for_summary(request: ModelRequest) -> bool:
    return request.messages[0].text == INSTRUCTIONS


class Reader:
    """A model that looks at pages `turns` times and says done; it remembers what it was asked for."""

    def __init__(self, turns: int, *, summary: Entry = "in short", text: str = "", **given: Any) -> None:
        self.turns = turns
        self.summary = summary
        self.text = text
        self.looked = 0
        self.summaries: list[ModelRequest] = []
        self.requests: list[ModelRequest] = []
        self.model = MockModel.function(self.answer, **given)

    def answer(self, request: ModelRequest) -> Entry:
        if is_for_summary(request):
            self.summaries.append(request)
            return reply(self.summary, usage=counted(request, 50)) if isinstance(self.summary, str) else self.summary
        self.requests.append(request)
        turn = int(request.request_id.split(":")[1])
        made = (call("look").with_id(f"c{turn}"),) if turn <= self.turns else ()
        return ScriptedReply(text=self.text or ("" if made else "done"), calls=made, usage=counted(request))


def agent(reader: Reader, **given: Any) -> Agent:
    options: dict[str, Any] = {"model": reader.model, "tools": [look], "limits": Limits(max_steps=200)}
    options["compaction"] = CompactionPolicy(context_window_tokens=WINDOW)
    return Agent("x", **(options | given))


async def step(app: Deuz, run_id: str) -> None:
    """One step of a worker that never saw the run."""
    runtime = Runtime(app, LocalDoorbell())
    await runtime.open()
    try:
        await runtime.engine.step("default", run_id)
    finally:
        await runtime.close()


async def journal(app: Deuz, world: World, run_id: str = "r") -> list[dict[str, Any]]:
    rows = await world.store.journal("default", run_id, 0, 10_000)
    return [record for row in rows if isinstance(record := decode(row.body), dict)]


@pytest.mark.spec("CMP-001", "CMP-006", "CMP-008", "RES-012")
async def test_a_long_run_stays_within_the_window_layer_by_layer(world: World) -> None:
    """Each layer is an event with the tokens before and after; no request passes the window; pairs stay whole (the model
    refuses others); the summary is paid for by the run; the transcript has every word that the history leaves out."""
    window = 4_000
    reader = Reader(30, text="I read on. " * 40)
    policy = CompactionPolicy(context_window_tokens=window)
    app = world.process(agent(reader, budget=Budget.of(tokens=1_000_000), compaction=policy))
    result = await app.aio.run_embedded("x", "read everything", run_id="r")
    assert (result.status, result.text, result.steps) == ("completed", reader.text, 31)
    layers = [record for record in await journal(app, world) if record["type"] == "history.compacted"]
    assert {record["layer"] for record in layers} == {"tool-results", "summary"}
    assert all(0 < record["after_tokens"] < record["before_tokens"] for record in layers)
    sizes = [counted(request).input_tokens for request in reader.requests]
    assert max(sizes) <= window
    assert len(reader.summaries) == sum(record["layer"] == "summary" for record in layers) > 1
    # The history that is stored to go on with, and the transcript.
    assert sum(is_summary(message) for message in result.messages) == 1
    assert len(result.messages) < len(result.transcript) == 1 + 2 * 30 + 1
    said = [part.text for message in result.transcript for part in message.tool_results]
    assert said == [PAGE] * 30
    sent = [part.text for request in reader.requests for message in request.messages for part in message.tool_results]
    assert set(sent) == {PAGE, LEFT_OUT}
    # Usage and ledger count the summaries too.
    asked = [*reader.requests, *reader.summaries]
    assert result.usage.input_tokens == sum(counted(request).input_tokens for request in asked)
    assert result.usage.output_tokens == 5 * len(reader.requests) + 50 * len(reader.summaries)
    head = await world.head("r")
    balance = await world.store.balance(run_scope_key(head.rid))
    assert balance is not None
    assert (balance.spent.tokens, balance.held.tokens, balance.unknown.tokens) == (result.usage.total_tokens, 0, 0)


@pytest.mark.spec("PRP-001")
async def test_a_step_is_prepared_when_room_was_made_for_it(world: World) -> None:
    """`prepare_step` is asked once before each call of the loop, and sees the history that is sent, summary and all."""
    seen: list[tuple[Any, ...]] = []

    def prepare(info: StepInfo) -> None:
        seen.append(tuple(info.messages))

    reader = Reader(30, text="I read on. " * 40)
    result = await world.process(agent(reader, prepare_step=prepare)).aio.run_embedded("x", "read everything", run_id="r")
    assert (result.status, len(reader.summaries) > 1) == ("completed", True)
    assert seen == [request.messages for request in reader.requests]


async def test_a_prepared_history_that_is_too_long_is_shortened_too(world: World) -> None:
    """What the hook puts in its place has to fit as well; the input's guardrail comes before any call that is paid for."""
    long = [user("the task"), *(m for n in range(30) for m in (assistant(f"{n} " * 80), user("and?")))]

    def prepare(info: StepInfo) -> StepPlan | None:
        return StepPlan(messages=long) if info.step == 1 and len(info.messages) == 1 else None

    reader = Reader(0)
    result = await world.process(agent(reader, prepare_step=prepare)).aio.run_embedded("x", "go", run_id="r")
    assert (result.status, len(reader.summaries)) == ("completed", 1)
    assert max(counted(request).input_tokens for request in reader.requests) <= WINDOW

    refusing = Reader(0)
    rails = Guardrails(on_input=lambda text, context: Block("no"))
    made = agent(refusing, guardrails=rails)
    result = await world.process(made).aio.run_embedded("x", messages=long, run_id="b")
    assert (result.status, result.reason, refusing.summaries) == ("stopped", "guardrail:input", [])


@pytest.mark.spec("CMP-010")
async def test_the_next_worker_reads_no_more_than_is_sent_and_asks_the_same(world: World) -> None:
    """A process that never saw the run loads the history without what is folded, under the calibration of the others, and
    sends what a process that saw it all would send."""
    alone, handed = Reader(30, text="I read on. " * 20), Reader(30, text="I read on. " * 20)
    await world.process(agent(alone)).aio.run_embedded("x", "read everything", run_id="alone")
    await world.process(agent(handed)).aio.enqueue("x", "read everything", run_id="handed")
    for _ in range(200):
        await step(world.process(agent(handed)), "handed")
        if (await world.head("handed")).status == "completed":
            break
    assert [request.messages for request in handed.requests] == [request.messages for request in alone.requests]
    assert [request.messages for request in handed.summaries] == [request.messages for request in alone.summaries]


@pytest.mark.spec("CMP-004")
async def test_a_summary_that_fails_fails_the_step_as_its_own_call_would(world: World) -> None:
    """What may pass is tried again after a while, what does not fails the run; the turn's own call is not made instead."""
    for error, retried in ((ModelRateLimitedError("slow down"), True), (ModelRequestError("no"), False)):
        name = type(error).__name__
        reader = Reader(30, text="I read on. " * 40, summary=error)
        app = world.process(agent(reader, tools=[glance]))
        await app.aio.enqueue("x", "read everything", run_id=name)
        while (await world.head(name)).has_work:
            await step(app, name)
        head, asked = await world.head(name), len(reader.requests)
        assert len(reader.summaries) == 1
        if not retried:
            result = await app.aio.handle(name).result()
            assert (head.status, result.error and result.error["code"]) == ("failed", "model_request")
            continue
        assert (head.status, (head.due_in_ms or 0) > 0) == ("running", True)
        reader.summary = "in short"
        await world.later(60_000)
        await step(app, name)
        assert len(reader.summaries) == 2
        assert reader.summaries[0].request_id != reader.summaries[1].request_id
        assert len(reader.requests) == asked + 1


@pytest.mark.spec("CMP-005")
async def test_a_request_that_is_refused_as_too_long_is_shortened_and_sent_once_more(world: World) -> None:
    """Also where nobody asked for compaction and nobody knows the window; refused again, the run fails with that error."""
    asked: list[ModelRequest] = []

    def answer(request: ModelRequest) -> Entry:
        asked.append(request)
        if is_for_summary(request):
            return "in short"
        size = counted(request).input_tokens
        return ModelContextOverflowError("too long") if size > 500 else "done"

    messages = [user("the task"), *(m for n in range(9) for m in (assistant(f"{n} " * 150), user("and?")))]
    made = Agent("x", model=MockModel.function(answer))
    result = await world.process(made).aio.run_embedded("x", messages=messages, run_id="r")
    assert (result.status, result.text, result.steps) == ("completed", "done", 1)
    assert [is_for_summary(request) for request in asked] == [False, True, False]
    assert len({request.request_id for request in asked}) == 3
    hopeless = Agent("x", model=MockModel.function(lambda request: ModelContextOverflowError("too long")))
    result = await world.process(hopeless).aio.run_embedded("x", "short as it is", run_id="no")
    assert (result.status, result.error and result.error["code"]) == ("failed", "model_context_overflow")
    assert isinstance(hopeless.model, MockModel)
    assert len(hopeless.model.requests) == 2


@pytest.mark.spec("FR-25")
@pytest.mark.parametrize("applied", [False, True])
async def test_a_death_at_every_commit_leaves_one_history(world: World, *, applied: bool) -> None:
    """A process dies at each commit in turn, before and after it is saved, so also around those of summaries: the next goes on
    with a paired history, nothing is answered twice, and at most one call is bought again for each death."""
    clean = Reader(9, text="I read on. " * 20)
    await world.process(agent(clean)).aio.run_embedded("x", "read everything", run_id="clean")
    assert clean.summaries
    commits = (await world.head("clean")).revision
    for at in range(1, commits + 1):
        run_id = f"r{at}"
        reader = Reader(9, text="I read on. " * 20)
        dying = world.dying(agent(reader), at=at, applied=applied)
        with pytest.raises((ProcessDied, BaseExceptionGroup)):
            await dying.aio.run_embedded("x", "read everything", run_id=run_id)
        result = await world.process(agent(reader)).aio.resume_embedded(run_id)
        assert (result.status, len(result.transcript)) == ("completed", 1 + 2 * 9 + 1)
        assert all(History(request.messages).is_paired for request in reader.requests)
        extra = len(reader.requests) + len(reader.summaries) - len(clean.requests) - len(clean.summaries)
        assert extra <= 1
        assert [message.text for message in result.messages if is_summary(message)]


@pytest.mark.spec("APR-008", "CMP-009")
@pytest.mark.parametrize("by", ["compaction", "prepare_step"])
async def test_a_call_id_that_was_used_before_stays_taken_after_the_history_was_cut(world: World, by: str) -> None:
    """The earlier call and its request are gone from the history; a verdict under the bare id is refused as it was before."""
    turns = {1: "same", 12: "same"}

    @tool(needs_approval=lambda arguments, context: context.model_step in turns)
    async def pay() -> str:
        """Pays."""
        return PAGE

    def answer(request: ModelRequest) -> Entry:
        if is_for_summary(request):
            return "in short"
        turn = int(request.request_id.split(":")[1])
        if turn > 12:
            return "done"
        text = "I pay. " * 30
        return calls(call("pay").with_id(turns.get(turn, f"c{turn}")), text=text, usage=counted(request))

    def cut(info: StepInfo) -> StepPlan | None:
        return StepPlan(messages=[user("pay"), *info.messages[-2:]]) if info.step == 12 else None

    given = {"compaction": None, "prepare_step": cut} if by == "prepare_step" else {}
    made = agent(Reader(0), model=MockModel.function(answer), tools=[pay], **given)
    app = world.process(made)
    first = await app.aio.run_embedded("x", "pay", run_id="r")
    [pending] = first.pending_approvals
    second = await app.aio.resume_embedded("r", approvals={pending.approval_id: True})
    assert second.status == "suspended"
    assert sum(is_summary(message) for message in second.messages) == (by == "compaction")
    assert "same" not in [made.call_id for message in second.messages[:-1] for made in message.tool_uses]
    with pytest.raises(Exception, match="more than once"):
        await app.aio.handle("r").approve("same")
    assert (await world.head("r")).open_items == 1


@pytest.mark.spec("FR-25")
async def test_a_history_that_somebody_cut_is_sent_in_pairs_and_the_repair_is_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A hook keeps only the newest messages, cut at every index, as hooks do that forget about pairs: what the model gets is
    paired, log, journal and result have a warning where something was mended, and the run ends well (FR-25)."""
    for kept in range(1, 8):
        reader = Reader(3)

        def prepare(info: StepInfo, kept: int = kept) -> StepPlan | None:
            return StepPlan(messages=[user("the task"), *info.messages[-kept:]]) if info.step == 4 else None

        app = world.process(agent(reader, prepare_step=prepare))
        result = await app.aio.run_embedded("x", "go", run_id=f"cut{kept}")
        assert (result.status, result.text) == ("completed", "done"), result.error
        assert History(reader.requests[-1].messages).is_paired
        is_whole = kept % 2 == 0 or kept == 7
        logged = [record for record in caplog.records if record.getMessage().startswith("history_repaired")]
        assert bool(logged) is not is_whole
        caplog.clear()
        warned = [record["setting"] for record in await journal(app, world, f"cut{kept}") if record["type"] == "warning"]
        assert warned == [warning.setting for warning in result.warnings] == ([] if is_whole else ["history"])


async def test_a_compacted_run_is_exported_imported_and_forked(world: World) -> None:
    """The file holds the record of its compaction and the raw messages; a fork begins with the raw messages of its turn."""
    reader = Reader(12, text="I read on. " * 20)
    app = world.process(agent(reader))
    result = await app.aio.run_embedded("x", "read everything", run_id="r")
    assert any(map(is_summary, result.messages))
    exported = await app.aio.export_run("r")
    elsewhere = World("sqlite://:memory:", open_store("sqlite://:memory:"))
    try:
        other = elsewhere.process(agent(reader))
        await other.store.check_schema()
        await other.aio.import_run(exported)
        arrived = await other.aio.handle("r").result()
        assert (arrived.messages, arrived.transcript) == (result.messages, result.transcript)
    finally:
        await elsewhere.close()
    await app.aio.fork("r", 10, new_run_id="f")
    assert (await world.head("f")).compactions == 0
    done = await app.aio.resume_embedded("f")
    assert done.status == "completed"
    assert done.transcript[:21] == result.transcript[:21]


def test_a_policy_that_cannot_work_is_refused() -> None:
    """By the name of the agent and the value; 'auto' needs a model that says how much it takes."""
    known = MockModel([], context_window_tokens=8_000)
    policy = Agent("x", model=known, compaction="auto").definition.compaction
    assert policy == CompactionPolicy()
    with pytest.raises(ConfigurationError, match="context window of mock:scripted"):
        Agent("x", model=MockModel([]), compaction="auto")
    for wrong in (
        {"threshold": 1.5},
        {"target": 0},
        {"keep_turns": 0},
        {"context_window_tokens": -1},
        {"summary_tokens": True},
    ):
        with pytest.raises(ConfigurationError, match=f"agent 'x': {next(iter(wrong))}"):
            Agent("x", model=known, compaction=CompactionPolicy(**wrong))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="not 'always'"):
        Agent("x", model=known, compaction="always")  # pyright: ignore[reportArgumentType]
