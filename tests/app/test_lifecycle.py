"""A run in the store beyond its own work: pruned, forked from a turn, exported and imported."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, cast

import pytest

from deuz_workers import (
    Agent,
    AgentResult,
    Budget,
    ConfigurationError,
    ForkRefusedError,
    MockModel,
    RunExistsError,
    RunFileError,
    RunNotFoundError,
    tool,
)
from deuz_workers.app.forking import journal_of
from deuz_workers.core.codec import digest
from deuz_workers.core.names import run_scope_key
from deuz_workers.ports.store import RunQuery
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.store import open_store
from tests.app.world import Effects, World


def three_turns(done: Effects, *more: Entry, budget: Budget | None = None) -> Agent:
    """Calls a tool in three turns, one of them gated, then says what it got."""

    @tool
    async def act(n: int) -> str:
        done(f"act {n}")
        return f"did {n}"

    @tool(needs_approval=True)
    async def gated(n: int) -> str:
        done(f"gated {n}")
        return f"gave {n}"

    script = [calls(call("act", n=1)), calls(call("gated", n=2), call("act", n=2)), calls(call("act", n=3)), "done"]
    return Agent("x", model=MockModel([*script, *more]), tools=[act, gated], budget=budget)


async def completed(world: World, done: Effects, run_id: str = "r", **options: Any) -> AgentResult[Any]:
    waiting = await world.process(three_turns(done)).aio.run_embedded("x", "go", run_id=run_id, **options)
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    return await world.process(three_turns(done)).aio.resume_embedded(run_id, approvals=verdicts)


def told(agent: Agent, request: int = 0) -> list[str]:
    assert isinstance(agent.model, MockModel)
    return [part.text for message in agent.model.requests[request].messages for part in message.tool_results]


@pytest.mark.spec("CKP-006")
async def test_pages_hold_each_run_once_and_pruning_leaves_what_waits(world: World) -> None:
    """Ended runs of that age go; a suspended, a queued and a parked one stay, and a page lists each once."""
    done = Effects()
    app = world.process(three_turns(done))
    await completed(world, done, "a")
    await completed(world, done, "b")
    assert (await app.aio.run_embedded("x", "go", run_id="waits")).status == "suspended"
    await app.aio.enqueue("x", "go", run_id="queued")
    await app.aio.enqueue("x", "go", run_id="parked")
    await world.store.park((await world.head("parked")).rid, 0, "quarantine")
    seen, cursor = [], None
    while True:
        page = await app.aio.list_runs(RunQuery(limit=2, cursor=cursor))
        seen += [head.run_id for head in page.heads]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(seen) == ["a", "b", "parked", "queued", "waits"]
    assert await app.aio.prune(timedelta(hours=1)) == 0
    assert await app.aio.prune(timedelta.max) == 0
    await world.later(3_700_000)
    assert await app.aio.prune(timedelta(hours=1), status=["failed"]) == 0
    assert await app.aio.prune(timedelta(hours=1), scope="other") == 0
    assert await app.aio.prune(timedelta(hours=1), batch=1) == 2
    left = (await app.aio.list_runs()).heads
    assert sorted(head.run_id for head in left) == ["parked", "queued", "waits"]
    with pytest.raises(RunNotFoundError):
        await app.aio.handle("a").status()


@pytest.mark.parametrize(
    "wrong", [{"status": ["suspended"]}, {"status": ["running", "failed"]}, {"status": []}, {"batch": 0}], ids=str
)
async def test_what_is_no_end_is_not_pruned(memory: World, wrong: dict[str, Any]) -> None:
    """Refused before anything is deleted; so is a negative age."""
    with pytest.raises(ConfigurationError):
        await memory.process().aio.prune(timedelta(0), **wrong)
    with pytest.raises(ConfigurationError):
        await memory.process().aio.prune(timedelta(seconds=-1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scope", 7),
        ("status", "failed"),
        ("status", ("ended",)),
        ("status", None),
        ("kind", ["person"]),
        ("agent", ("x",)),
        ("queue", b"q"),
        ("tags", ["team"]),
        ("tags", {"team": 1}),
        ("parked", "yes"),
        ("limit", 0),
        ("limit", "50"),
        ("limit", True),
        ("limit", 2**70),
        ("cursor", 12),
    ],
    ids=str,
)
def test_a_query_that_cannot_be_meant_names_the_field(name: str, value: Any) -> None:
    """The error is ours, says what the field takes and what was given, and comes before any server is asked."""
    with pytest.raises(ConfigurationError, match=f"{name} of a query is "):
        RunQuery(**{name: value})
    assert RunQuery(status=cast(Any, ["failed"])).status == ("failed",)


async def test_wrong_types_raise_typed_errors_of_ours(memory: World) -> None:
    """Pruning, listing and forking: what no caller can mean is a `ConfigurationError`, and nothing is deleted or written."""
    await completed(memory, Effects(), "a")
    app = memory.process(three_turns(Effects()))
    wrong: list[Callable[[], Awaitable[object]]] = [
        lambda: app.aio.prune(cast(Any, 30)),
        lambda: app.aio.prune(timedelta(0), status=cast(Any, "completed")),
        lambda: app.aio.prune(timedelta(0), status=cast(Any, None)),
        lambda: app.aio.prune(timedelta(0), scope=cast(Any, 5)),
        lambda: app.aio.prune(timedelta(0), batch=cast(Any, "all")),
        lambda: app.aio.list_runs(cast(Any, {"scope": "default"})),
        lambda: app.aio.fork(cast(Any, 7), 1),
        lambda: app.aio.fork("a", 1, scope=cast(Any, 7)),
        lambda: app.aio.fork("a", 1, prompt=cast(Any, 7)),
        lambda: app.aio.fork("a", 1, new_run_id=cast(Any, 7)),
        lambda: app.aio.fork("a", 1, queue=cast(Any, 7)),
        lambda: app.aio.fork("a", 1, budget=cast(Any, 7)),
        lambda: app.aio.enqueue("x", messages=cast(Any, 7)),
    ]
    for ask in wrong:
        with pytest.raises(ConfigurationError):
            await ask()
    with pytest.raises(ForkRefusedError):
        await app.aio.fork("a", cast(Any, "1"))
    assert [head.run_id for head in (await app.aio.list_runs()).heads] == ["a"]


@pytest.mark.spec("FR-05")
@pytest.mark.parametrize("turn", [1, 2, 3])
async def test_a_fork_goes_on_behind_a_turn(world: World, turn: int) -> None:
    """Under an id of its own; nothing up to there is executed or asked for again, everything behind it is; the first run is
    what it was."""
    first = Effects()
    await completed(world, first)
    stored, done = await world.loaded("r"), Effects()
    agent = three_turns(done)
    forked = await world.process(agent).aio.fork("r", turn, new_run_id="f", queue="in-process")
    result = await world.process(agent).aio.resume_embedded("f")
    if turn == 1:
        verdicts = {item.approval_id: True for item in result.pending_approvals}
        assert verdicts
        result = await world.process(agent).aio.resume_embedded("f", approvals=verdicts)
    assert (result.status, result.steps, forked.run_id) == ("completed", 4, "f")
    assert set(done.done) == {key for key in first.done if int(key.split()[-1]) > turn}
    assert told(agent) == ["did 1", "gave 2", "did 2", "did 3"][: {1: 1, 2: 3, 3: 4}[turn]]
    assert [message.text for message in result.messages][-1] == "done"
    assert await world.loaded("r") == stored
    assert (await world.process().aio.handle("f").envelope()).usage.total_tokens == 15 * (4 - turn)


async def test_a_fork_from_the_start_is_a_new_run(world: World) -> None:
    """Turn 0: the same input, asked anew."""
    await completed(world, Effects())
    done = Effects()
    agent = three_turns(done)
    await world.process(agent).aio.fork("r", 0, new_run_id="f", prompt="and be quick", queue="in-process")
    assert (await world.process(agent).aio.resume_embedded("f")).status == "suspended"
    assert isinstance(agent.model, MockModel)
    assert [message.text for message in agent.model.requests[0].messages] == ["go", "and be quick"]
    assert done.done == {"act 1": 1}


async def test_a_fork_of_a_run_that_waits_leaves_it_waiting(world: World) -> None:
    """The item stays with the first run; the fork asks for one of its own, under another id."""
    waiting = await world.process(three_turns(Effects())).aio.run_embedded("x", "go", run_id="r")
    app = world.process(three_turns(Effects()))
    await app.aio.fork("r", 1, new_run_id="f", queue="in-process")
    forked = await app.aio.resume_embedded("f")
    assert forked.pending_approvals[0].approval_id != waiting.pending_approvals[0].approval_id
    assert [item.approval_id for item in await app.aio.handle("r").pending()] == [waiting.pending_approvals[0].approval_id]


async def test_a_fork_is_idempotent_under_its_id(world: World) -> None:
    """The same again gives the run that is there; another turn or a name that is taken is a conflict; no turn is refused."""
    await completed(world, Effects())
    app = world.process(three_turns(Effects()))
    one = await app.aio.fork("r", 2, new_run_id="f")
    again = await app.aio.fork("r", 2, new_run_id="f")
    assert (one.run_id, again.run_id) == ("f", "f")
    for turn, run_id in ((1, "f"), (2, "r")):
        with pytest.raises(RunExistsError):
            await app.aio.fork("r", turn, new_run_id=run_id)
    for turn in (4, 9, -1):
        with pytest.raises(ForkRefusedError):
            await app.aio.fork("r", turn)
    with pytest.raises(RunNotFoundError):
        await app.aio.fork("r", 1, scope="other")
    assert len((await app.aio.list_runs()).heads) == 2


async def test_a_fork_has_a_budget_of_its_own(world: World) -> None:
    """The agent's, or the one that is given."""
    await completed(world, Effects())
    agent = three_turns(Effects(), budget=Budget(tokens=40))
    forked = await world.process(agent).aio.fork("r", 3, new_run_id="f")
    rid = (await forked.envelope()).rid
    balance = await world.store.balance(run_scope_key(rid))
    assert balance is not None
    assert (balance.limit.tokens, balance.spent.tokens) == (40, 0)


async def _other_world() -> World:
    return World("sqlite://:memory:", open_store("sqlite://:memory:"))


async def test_a_run_that_ended_is_the_same_elsewhere(world: World) -> None:
    """Exported and imported: result, events, receipts and tags; the model is not asked."""
    here = await completed(world, Effects(), tags={"team": "blue"})
    app = world.process(three_turns(Effects()))
    text, there = await app.aio.export_run("r"), await _other_world()
    agent = three_turns(Effects())
    handle = await there.process(agent).aio.import_run(text)
    assert await there.process(agent).aio.resume_embedded(handle.run_id) == here
    assert isinstance(agent.model, MockModel)
    assert agent.model.requests == ()
    events = [[event async for event in one.aio.handle("r").events(follow=False)] for one in (app, there.process())]
    assert events[0] == events[1] != []
    assert (await there.receipts("r"), await there.store.tags("default", "r")) == (await world.receipts("r"), {"team": "blue"})
    assert await there.process().aio.export_run("r") == await there.process().aio.export_run("r")
    await there.close()


async def test_a_run_that_waits_goes_on_elsewhere_once_somebody_says_so(world: World) -> None:
    """It arrives parked with its items; a retry frees it, the answer completes it, and what ran before does not run again."""
    first, then = Effects(), Effects()
    waiting = await world.process(three_turns(first)).aio.run_embedded("x", "go", run_id="r", budget=Budget(tokens=1_000_000))
    text, there = await world.process().aio.export_run("r"), await _other_world()
    app = there.process(three_turns(then))
    handle = await app.aio.import_run(text)
    head = await there.head("r")
    assert (head.parked, head.status, await app.aio.handle("r").status()) == ("imported", "suspended", "suspended")
    [item] = await handle.pending()
    assert item.approval_id == waiting.pending_approvals[0].approval_id
    assert await handle.retry() == ()
    assert (await app.aio.resume_embedded("r", approvals={item.approval_id: True})).status == "completed"
    assert (first.done, then.done) == ({"act 1": 1}, {"gated 2": 1, "act 2": 1, "act 3": 1})
    balance = await there.store.balance(run_scope_key((await there.head("r")).rid))
    assert balance is not None
    assert (balance.limit.tokens, balance.spent.tokens) == (1_000_000 - 30, 30)
    await there.close()


async def test_a_run_that_waits_for_others_is_not_exported_without_them(world: World) -> None:
    """Elsewhere nobody would ever answer it; once they have ended it may be."""
    inner = Agent(
        "inner",
        model=MockModel([calls(call("gated")), "done"]),
        tools=[tool(lambda: "gave", name="gated", needs_approval=True)],
    )
    boss = Agent("x", model=MockModel([calls(call("inner", prompt="go")), "done"]), tools=[inner])
    app = world.process(boss)
    asked = await app.aio.run_embedded("x", "go", run_id="r")
    with pytest.raises(ConfigurationError, match="delegated"):
        await app.aio.export_run("r")
    await app.aio.resume_embedded("r", approvals={item.approval_id: True for item in asked.pending_approvals})
    assert json.loads(await app.aio.export_run("r"))["run"]["status"] == "completed"


async def test_an_altered_file_is_refused(world: World) -> None:
    """Another byte, another format, something else, or half of it; and a name that is taken. Nothing is written."""
    await completed(world, Effects())
    app = world.process(three_turns(Effects()))
    text, there = await app.aio.export_run("r"), await _other_world()
    other = there.process()
    document = json.loads(text)
    document["run"]["messages"][0][1] = document["run"]["messages"][0][1].replace("go", "no")
    altered = json.dumps(document)
    wrong_version = json.dumps({**json.loads(text), "format_version": 2})
    for given in (
        altered,
        wrong_version,
        text[: len(text) // 2],
        "",
        "[]",
        '{"format": "deuz-run"}',
        text.replace("did 1", "did 9"),
    ):
        with pytest.raises(RunFileError):
            await other.aio.import_run(given)
    assert (await other.aio.list_runs()).heads == ()
    stored = await world.loaded("r")
    with pytest.raises(RunExistsError):
        await app.aio.import_run(text)
    assert await world.loaded("r") == stored
    await there.close()


def sealed(text: str, place: tuple[str | int, ...], value: object) -> str:
    """The file with another value there, and a checksum that fits it."""
    document = json.loads(text)
    part: Any = document["run"]
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    return json.dumps({**document, "checksum": f"sha256:{digest(document['run'])}"})


NO_TEXTS = ("", "a\0b", "\ud800", "x" * 600, -1, 2**70, True, [], {}, None)
NO_NUMBERS = ("", "7", -1, 2**70, 1.5, True, [], {})
NO_TEXT_OF_A_ROW = ("a\0b", "\ud800", 5, [], None)
WRONG: dict[tuple[str | int, ...], tuple[object, ...]] = {
    **{(name,): NO_TEXTS for name in ("scope", "run_id", "agent", "queue", "kind", "status", "phase")},
    **{(name,): NO_NUMBERS for name in ("revision", "version", "epoch", "last_seq", "tokens", "cost_micros", "created_at_ms")},
    **{(name,): NO_NUMBERS for name in ("model_step", "compactions", "folded_from", "folded_to", "folded_step")},
    ("priority",): (101, "7", None, 1.5),
    ("is_due",): (True,),
    ("mid_step",): (0, "no", None),
    ("concurrency_key",): ("", "a\0b", 5, []),
    ("tags",): (None, "", [], {"a": 1}, {"": "b"}, {"a": "\0"}),
    ("budget",): ("", [], [None, None], [-1, None], {}),
    **{(name,): (None, 5, [[1]], "x") for name in ("messages", "receipts", "journal", "items")},
    ("last_seq",): (0, 1, 2, 4, *NO_NUMBERS),
    ("messages",): ([], {}, None, 5, [[1]], "x"),
    ("messages", 0, 0): (1, *NO_NUMBERS[:-2]),
    ("messages", 0, 1): NO_TEXT_OF_A_ROW,
    ("receipts", 0, 1): NO_TEXT_OF_A_ROW,
    ("receipts", 0, 2): (1, "", True, None),
    ("receipts", 0, 3): ("", 5, None),
    ("journal", 0, 0): (2**31, 2, 0, "", None, [], {}),
    ("journal", 0, 1): NO_TEXT_OF_A_ROW,
    ("journal", 0, 2): NO_NUMBERS,
    ("items", 0, 1): ("", 5, None),
    ("items", 0, 2): NO_TEXT_OF_A_ROW,
    ("items", 0, 4): ("", 2**70, 1.5, []),
}


async def test_a_file_with_values_that_no_database_keeps_is_refused(world: World) -> None:
    """Although its checksum fits: whoever alters a file can make it anew. With nothing written, whatever the database is."""
    app = world.process(three_turns(Effects(), budget=Budget.of(tokens=1_000_000)))
    await app.aio.run_embedded("x", "go", run_id="r")
    text, there = await app.aio.export_run("r"), await _other_world()
    other, taken = there.process(), list[object]()
    for place, values in WRONG.items():
        for value in values:
            try:
                await other.aio.import_run(sealed(text, place, value))
            except RunFileError:
                continue
            taken.append((place, value))
    assert taken == []
    assert (await other.aio.list_runs()).heads == ()
    await there.close()


@pytest.mark.parametrize("queue", ["", "a b", "a\nb", "a;b", "q" * 200])
async def test_a_fork_is_refused_a_queue_that_no_broker_has(memory: World, queue: str) -> None:
    """As an enqueued run is; nothing is written."""
    await completed(memory, Effects())
    app = memory.process(three_turns(Effects()))
    with pytest.raises(ConfigurationError, match="queue"):
        await app.aio.fork("r", 1, new_run_id="f", queue=queue)
    with pytest.raises(RunNotFoundError):
        await app.aio.handle("f").status()


async def test_a_run_that_is_pruned_while_it_is_exported_makes_no_file(memory: World) -> None:
    """Without its journal it would be half a run."""
    await completed(memory, Effects())
    app = memory.process(three_turns(Effects()))
    loaded = await memory.loaded("r")
    await memory.later(3_700_000)
    assert await app.aio.prune(timedelta(hours=1)) == 1
    with pytest.raises(RunNotFoundError):
        await journal_of(memory.store, loaded)


async def test_what_cannot_be_exported(memory: World) -> None:
    """A run that is not there, and one with inputs that it has not taken in."""
    app = memory.process(three_turns(Effects()))
    with pytest.raises(RunNotFoundError):
        await app.aio.export_run("nosuch")
    await app.aio.enqueue("x", "go", run_id="r")
    await app.aio.handle("r").cancel()
    with pytest.raises(ConfigurationError, match="inputs"):
        await app.aio.export_run("r")
