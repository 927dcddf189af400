"""The chat of a run: written at every suspension and at the end, from the run's transcript and never back into it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from deuz_workers import (
    Agent,
    AgentResult,
    Chat,
    ChatRecord,
    ChatStore,
    CompactionPolicy,
    ConfigurationError,
    Guardrails,
    MemoryScope,
    MockModel,
    RevisionConflictError,
    Rewrite,
    StepInfo,
    StepPlan,
    WarningPart,
    reconcile_agent_run,
    run_agent,
    tool,
)
from deuz_workers.core.change import Change, Outcome
from deuz_workers.core.messages import Message, ReasoningPart, assistant, user
from deuz_workers.core.transcript import transcript_length
from deuz_workers.examples.conversation import converse
from deuz_workers.ports.store import Loaded
from deuz_workers.providers.script import Entry, call, calls, reply
from deuz_workers.store import open_store
from deuz_workers.testing.crashing_store import CrashingStore, ProcessDied
from tests.app.chats import ChatFault, ConditionalChats, PlainChats, fails, process
from tests.app.remembering import TEA, memory_of, model_of, remembered, remembering, says
from tests.app.remembering import texts as texts_of_memories
from tests.app.world import World

SENTENCE = "Native agent binding changed across resume."


def gated(*script: Entry, **given: Any) -> Agent:
    """Asks before each of its calls; without a script for one."""

    @tool(needs_approval=True, replay="idempotent")
    async def pay(to: str = "ann") -> str:
        return f"paid {to}"

    return Agent("x", model=MockModel(script or (calls(call("pay").with_id("c")), "done")), tools=[pay], **given)


def verdicts(result: AgentResult[Any]) -> Mapping[str, Any]:
    return {item.approval_id: True for item in result.pending_approvals}


def texts(record: ChatRecord | None) -> list[tuple[str, str]]:
    assert record is not None
    said = [message.text or "".join(part.text for part in message.tool_results) for message in record.messages]
    return [(message.role, text) for message, text in zip(record.messages, said, strict=True)]


def at(loaded: Loaded) -> tuple[Any, ...]:
    """What of a run no repair of its chat changes."""
    return (loaded.head.revision, loaded.head.body, loaded.messages, loaded.receipts, loaded.items, loaded.head.seen_seq)


@pytest.mark.spec("CHT-004", "CHT-005", "CHT-010")
async def test_the_whole_transcript_is_saved_where_the_run_waits_and_where_it_ends(world: World) -> None:
    """Two saves of one record each, the second one with everything; the input and every turn are named after their places."""
    chats = PlainChats()
    app = process(world, gated(), chats=chats)
    waiting = await app.aio.run_embedded("x", "go", run_id="hello-1", chat=Chat("c"))
    assert waiting.status == "suspended"
    assert [(save.messages, save.message_ids) for save in chats.saves] == [(waiting.transcript, ("hello-1:0", "hello-1:1"))]
    done = await process(world, gated(), chats=chats).aio.resume_embedded("hello-1", approvals=verdicts(waiting))
    assert (done.status, len(chats.saves)) == ("completed", 2)
    said = [(message.role, message.text) for message in chats.saves[1].messages]
    assert said == [("user", "go"), ("assistant", ""), ("tool", ""), ("assistant", "done")]
    assert texts(chats.saves[1])[2] == ("tool", "paid ann")
    assert chats.saves[1].message_ids == tuple(f"hello-1:{place}" for place in range(4))
    assert (chats.saves[1].chat_id, chats.saves[1].scope) == ("c", "default")
    assert done.warnings == ()


@pytest.mark.spec("CHT-005")
async def test_messages_of_the_stored_chat_keep_their_ids(world: World) -> None:
    """A second run goes on with the conversation of the first; a fresh chat has the input and the answer as 0 and 1."""
    first = Agent("x", model=MockModel(["hi"]))
    await world.process(first).aio.run_embedded("x", "hello", run_id="hello-1", chat=Chat("c"))
    stored = await world.store.load_chat("c")
    assert stored is not None
    assert (texts(stored), stored.message_ids) == ([("user", "hello"), ("assistant", "hi")], ("hello-1:0", "hello-1:1"))
    model = MockModel(["hi", "fine"])
    app = world.process(Agent("x", model=model))
    messages = [*stored.messages, user("how are you?")]
    await app.aio.run_embedded("x", messages=messages, run_id="hello-2", chat=Chat("c"))
    again = await world.store.load_chat("c")
    assert again is not None
    assert again.message_ids == ("hello-1:0", "hello-1:1", "hello-2:2", "hello-2:3")
    assert [message.text for message in again.messages] == ["hello", "hi", "how are you?", "fine"]
    assert (await world.store.load_chat("c"), len(model.requests)) == (again, 1)


@pytest.mark.spec("CHT-006")
async def test_the_record_says_which_message_is_which_turn_and_call(world: World) -> None:
    """And how far the chat is known to have come."""
    look = tool(name="look")(lambda: "seen")
    script = ["hello", calls(call("look").with_id("a"), call("look").with_id("b")), calls(call("look").with_id("a")), "done"]
    app = world.process(Agent("x", model=MockModel(script), tools=[look]))
    said = [user("hi"), assistant("hello"), user("go")]
    await app.aio.run_embedded("x", messages=said, run_id="r", chat=Chat("c", "team"))
    chat = (await app.aio.handle("r").envelope()).chat
    assert chat is not None
    assert (chat.chat_id, chat.scope, chat.own_store, chat.status, chat.cursor) == ("c", "team", False, "saved", 8)
    assert chat.turns == {1: "r:3", 2: "r:5", 3: "r:7"}
    assert chat.calls == {(1, "a"): "r:3", (1, "b"): "r:3", (2, "a"): "r:5"}


@pytest.mark.spec("CHT-001")
async def test_the_run_does_not_read_its_chat(world: World) -> None:
    """Edited while the run waits, it changes neither the next request nor the transcript, and is written over."""
    untouched, edited = [], []
    for run_id, requests in (("a", untouched), ("b", edited)):
        waiting = await world.process(gated()).aio.run_embedded("x", "go", run_id=run_id, chat=Chat(run_id))
        if run_id == "b":
            stored = await world.store.load_chat("b")
            assert stored is not None
            await world.store.save_chat(replace(stored, messages=(user("forged"),), message_ids=("f",)))
        agent = gated()
        done = await world.process(agent).aio.resume_embedded(run_id, approvals=verdicts(waiting))
        assert isinstance(agent.model, MockModel)
        requests.append(([list(request.messages) for request in agent.model.requests], done.messages, done.transcript))
        record = await world.store.load_chat(run_id)
        assert record is not None
        assert record.messages == done.transcript
    assert untouched == edited


@pytest.mark.spec("CHT-002", "CHT-003", "PRP-008")
async def test_the_transcript_is_what_was_said(world: World) -> None:
    """Input, every turn with its reasoning, the request for the answer and the feedback; whatever compaction and
    `prepare_step` made of the history."""

    def prepare(info: StepInfo) -> StepPlan:
        return StepPlan(messages=(user(f"rewritten for {info.step}"),))

    long = "x" * 4_000
    thought = ReasoningPart("why", {"signature": "b\x00ytes"})
    look = tool(name="look")(lambda: long)
    script = [reply("", call("look"), reasoning=thought), calls(call("look")), "the end", "not json", '{"n": 1}']
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    from deuz_workers import Output

    model = MockModel.function(lambda request: script[int(request.request_id.split(":")[1]) - 1], context_window_tokens=2_000)
    agent = Agent(
        "x",
        model=model,
        tools=[look],
        prepare_step=prepare,
        compaction=CompactionPolicy(threshold=0.5, keep_turns=1, summarize=False),
        output_type=Output(schema, validate=lambda value: value),
    )
    result = await world.process(agent).aio.run_embedded("x", "go", run_id="r", chat=Chat("c"))
    assert result.status == "completed"
    assert model.requests[1].messages[0].text == "rewritten for 2"
    record = await world.store.load_chat("c")
    assert record is not None
    roles = [message.role for message in record.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant", "user", "assistant", "user", "assistant"]
    assert record.messages[1].parts[0] == thought
    assert [part.text for part in record.messages[2].tool_results] == [long]
    assert [record.messages[place].text for place in (0, 5, 7, 9)] == ["go", "the end", "not json", '{"n": 1}']
    assert not any("rewritten" in message.text for message in record.messages)
    assert record.messages == result.transcript
    assert len(record.messages) == transcript_length(await world.process().aio.handle("r").envelope())


async def test_what_a_guardrail_withheld_reaches_no_chat(world: World) -> None:
    """The input and the answer as they were let through."""
    rails = Guardrails(
        on_input=lambda text, context: Rewrite(text.replace("4711", "***")),
        on_output=lambda text, context: Rewrite(text.replace("secret", "***")),
    )
    agent = Agent("x", model=MockModel(["the secret"]), guardrails=rails)
    await world.process(agent).aio.run_embedded("x", "my pin is 4711", run_id="r", chat=Chat("c"))
    assert texts(await world.store.load_chat("c")) == [("user", "my pin is ***"), ("assistant", "the ***")]


class Log(CrashingStore):
    """Commits of a run, and whether they are there for anybody else."""

    def __init__(self, world: World, log: list[str]) -> None:
        super().__init__(world.store, at=0)
        self._log = log

    async def commit(self, change: Change) -> Outcome:
        outcome = await super().commit(change)
        self._log.append(change.status)
        return outcome


@pytest.mark.spec("CHT-007")
async def test_the_run_is_saved_before_its_chat_and_apart_from_it(world: World) -> None:
    """At each projection: the run's commit, then the chat; while the chat is written anybody else sees that commit, so its
    transaction is over."""
    log: list[str] = []

    class Watching(PlainChats):
        async def save_chat(self, record: ChatRecord) -> None:
            other = world.store if ":memory:" in world.url else open_store(world.url)
            head = await other.head("default", "r")
            assert head is not None
            log.append(f"chat of a {head.status} run")
            if other is not world.store:
                await other.close()
            await super().save_chat(record)

    chats = Watching()
    app = process(world, gated(), chats=chats, store=Log(world, log).as_store)
    waiting = await app.aio.run_embedded("x", "go", run_id="r", chat=Chat("c"))
    await app.aio.resume_embedded("r", approvals=verdicts(waiting))
    written = [place for place, entry in enumerate(log) if entry.startswith("chat")]
    assert [log[place - 1 : place + 1] for place in written] == [
        ["suspended", "chat of a suspended run"],
        ["completed", "chat of a completed run"],
    ]
    assert written[-1] == len(log) - 1


@pytest.mark.spec("CHT-008", "STF-009", "STR-009")
@pytest.mark.parametrize("where", ["load", "save"])
async def test_a_chat_store_that_raises_fails_no_run(world: World, where: str) -> None:
    """The same result but for one warning; the state is `failed`, the cursor stays, and the next save repairs it."""
    chats, plain = PlainChats(), PlainChats()
    (chats.before_load if where == "load" else chats.before_save).append(fails)
    expected = await process(world, gated(), chats=plain).aio.run_embedded("x", "go", run_id="a", chat=Chat("c"))
    app = process(world, gated(), chats=chats)
    stream = app.aio.stream_embedded("x", "go", run_id="b", chat=Chat("c"))
    events = [event async for event in stream.events]
    result = await stream.result
    warned = [event.part.warning for event in events if event.type == "part" and isinstance(event.part, WarningPart)]
    assert [(warning.setting, "secret" in warning.message) for warning in warned] == [("chat", False)]
    assert [warning.setting for warning in result.warnings] == ["chat"]
    assert (result.status, result.messages, result.steps) == (expected.status, expected.messages, expected.steps)
    chat = (await app.aio.handle("b").envelope()).chat
    assert chat is not None
    assert (chat.status, chat.cursor, chats.saves, chat.error["name"]) == ("failed", 0, [], "StoreError")
    done = await app.aio.resume_embedded("b", approvals=verdicts(result))
    assert (done.status, done.warnings) == ("completed", ())
    assert [save.messages for save in chats.saves] == [done.transcript]
    chat = (await app.aio.handle("b").envelope()).chat
    assert chat is not None
    assert (chat.status, chat.cursor) == ("saved", 4)


Route = Literal["next suspension", "end of the run", "terminal resume", "reconcile"]


@pytest.mark.spec("CHT-009")
@pytest.mark.parametrize("route", ["next suspension", "end of the run", "terminal resume", "reconcile"])
async def test_whatever_saves_next_repairs_it(world: World, route: Route) -> None:
    """Afterwards the chat is the transcript and the cursor has caught up."""
    chats = PlainChats(before_save=[fails])
    twice = (calls(call("pay").with_id("c")), calls(call("pay").with_id("d")), "done")

    def app(*script: Entry) -> Any:
        return process(world, gated(*script), chats=chats).aio

    result = await app(*twice).run_embedded("x", "go", run_id="r", chat=Chat("c"))
    assert (result.status, chats.saves) == ("suspended", [])
    match route:
        case "next suspension":
            result = await app(*twice).resume_embedded("r", approvals=verdicts(result))
            assert result.status == "suspended"
        case "end of the run":
            assert await app(*twice).handle("r").cancel()
            result = await app(*twice).resume_embedded("r")
            assert result.status == "stopped"
        case "terminal resume":
            result = await app(*twice).resume_embedded("r", approvals=verdicts(result))
            chats.saves.clear()
            chats.before_save.append(fails)
            result = await app(*twice).resume_embedded("r", approvals=verdicts(result))
            assert (result.status, chats.saves, len(result.warnings)) == ("completed", [], 1)
            revision = (await world.head("r")).revision
            result = await app().resume_embedded("r")
            assert (result.status, result.warnings) == ("completed", ())
            assert (await world.head("r")).revision == revision
        case "reconcile":
            repaired = await reconcile_agent_run("r", store=world.store, chats=chats)
            assert (repaired.run_id, repaired.chat) == ("r", "saved")
    assert [save.messages for save in chats.saves] == [result.transcript]
    chat = (await app().handle("r").envelope()).chat
    assert chat is not None
    assert (chat.status, chat.cursor) == ("saved", len(result.transcript))


@pytest.mark.spec("CHT-011")
async def test_a_chat_of_another_scope_is_left_alone(world: World) -> None:
    """Byte for byte; the run completes, and says so."""
    theirs = ChatRecord("c", "theirs", (user("mine"),), ("m",))
    await world.store.save_chat(theirs)
    app = world.process(Agent("x", model=MockModel(["hi"])))
    result = await app.aio.run_embedded("x", "hello", run_id="r", chat=Chat("c", "ours"))
    assert (result.status, [warning.setting for warning in result.warnings]) == ("completed", ["chat"])
    assert await world.store.load_chat("c") == replace(theirs, revision=1)
    chat = (await app.aio.handle("r").envelope()).chat
    assert chat is not None
    assert (chat.status, chat.cursor) == ("scope-mismatch", 0)
    repaired = await reconcile_agent_run("r", store=world.store)
    assert (repaired.chat, await world.store.load_chat("c")) == ("scope-mismatch", replace(theirs, revision=1))


@pytest.mark.spec("CHT-012")
async def test_a_chat_that_has_more_is_left_as_it_is(world: World) -> None:
    """Continued by somebody while the run's last write was away: all of it is there, so nothing is left to do."""
    chats = PlainChats(before_save=[fails])
    app = process(world, Agent("x", model=MockModel(["hi"])), chats=chats)
    result = await app.aio.run_embedded("x", "hello", run_id="r", chat=Chat("c"))
    more = ChatRecord("c", "default", (*result.transcript, user("more")), ("r:0", "r:1", "m"))
    chats.records["c"] = more
    assert (await reconcile_agent_run("r", store=world.store, chats=chats)).chat == "saved"
    assert (chats.records["c"], chats.saves) == (more, [])
    chat = (await app.aio.handle("r").envelope()).chat
    assert chat is not None
    assert chat.cursor == 2


@pytest.mark.spec("CHT-013")
@pytest.mark.parametrize("found", ["absent", "as it was found", "a prefix"])
@pytest.mark.parametrize("waits", [True, False])
async def test_an_interrupted_write_is_finished(world: World, found: str, waits: bool) -> None:
    """Of a run that waits or has ended, where the chat is absent as it was, as the write had found it, or a beginning of the
    transcript."""
    other = ChatRecord("c", "default", (user("something else"),), ("m",))
    chats = PlainChats(before_save=[fails])
    if found == "as it was found":
        chats.records["c"] = other
    agent = gated() if waits else Agent("x", model=MockModel(["hi"]))
    result = await process(world, agent, chats=chats).aio.run_embedded("x", "hello", run_id="r", chat=Chat("c"))
    if found == "a prefix":
        chats.records["c"] = ChatRecord("c", "default", result.transcript[:1], ("r:0",))
    before = at(await world.loaded("r"))
    assert (await reconcile_agent_run("r", store=world.store, chats=chats)).chat == "saved"
    assert [save.messages for save in chats.saves] == [result.transcript]
    assert at(await world.loaded("r")) == before


@pytest.mark.spec("CHT-014", "CHT-015")
@pytest.mark.parametrize("waits", [True, False])
async def test_a_chat_that_moved_on_is_superseded_for_good(world: World, waits: bool) -> None:
    """The record stays, a resume warns of it, and a second repair writes to neither store; the transcript has all turns."""
    chats = PlainChats(before_save=[fails])

    def app() -> Any:
        agent = gated() if waits else Agent("x", model=MockModel(["hi"]))
        return process(world, agent, chats=chats).aio

    result = await app().run_embedded("x", "hello", run_id="r", chat=Chat("c"))
    moved = ChatRecord("c", "default", (user("another beginning"),), ("m",))
    chats.records["c"] = moved
    resumed = await app().resume_embedded("r")
    assert [warning.setting for warning in resumed.warnings] == ["chat"]
    assert "went on without this run" in resumed.warnings[0].message
    assert (await reconcile_agent_run("r", store=world.store, chats=chats)).chat == "superseded"
    rid = (await world.head("r")).rid
    state, before = await world.store.chat_state(rid), at(await world.loaded("r"))
    chats.records["c"] = replace(moved, messages=())  # what would be allowed again
    again = await app().resume_embedded("r")
    assert [warning.setting for warning in again.warnings] == ["chat"]
    assert (await reconcile_agent_run("r", store=world.store, chats=chats)).chat == "superseded"
    assert (await world.store.chat_state(rid), at(await world.loaded("r")), chats.saves) == (state, before, [])
    assert again.transcript == result.transcript
    assert [message.role for message in again.transcript] == ["user", "assistant"]


@pytest.mark.spec("CHT-016")
async def test_a_leg_writes_its_whole_chat_whatever_became_of_it(world: World) -> None:
    """Between two legs somebody wrote something else: the later write stays. A chat of another scope is left alone still."""
    chats = PlainChats()
    waiting = await process(world, gated(), chats=chats).aio.run_embedded("x", "go", run_id="r", chat=Chat("c"))
    chats.records["c"] = ChatRecord("c", "default", (user("else"),), ("m",))
    done = await process(world, gated(), chats=chats).aio.resume_embedded("r", approvals=verdicts(waiting))
    assert (chats.records["c"].messages, done.warnings) == (done.transcript, ())
    assert done.status == "completed"
    waiting = await process(world, gated(), chats=chats).aio.run_embedded("x", "go", run_id="s", chat=Chat("d"))
    chats.records["d"] = theirs = ChatRecord("d", "theirs", (user("else"),), ("m",))
    done = await process(world, gated(), chats=chats).aio.resume_embedded("s", approvals=verdicts(waiting))
    assert (chats.records["d"], done.status, [warning.setting for warning in done.warnings]) == (theirs, "completed", ["chat"])


@pytest.mark.spec("CHT-017")
@pytest.mark.parametrize("conflicts", [1, 2, 3])
async def test_a_conflict_is_read_and_decided_anew(world: World, conflicts: int) -> None:
    """Three attempts in all. After one or two conflicts the chat is saved; after three the state is `failed` with the name of
    the error, the run completes, and a reconciliation saves it."""
    chats = ConditionalChats()
    first = ChatRecord("c", "default", (user("else"),), ("m",), revision=1)
    chats.records["c"] = first

    async def written_by_another() -> None:
        stored = chats.records["c"]
        chats.records["c"] = replace(stored, revision=stored.revision + 1)

    chats.before_save[:] = [written_by_another] * conflicts
    app = process(world, Agent("x", model=MockModel(["hi"])), chats=chats)
    result = await app.aio.run_embedded("x", "hello", run_id="r", chat=Chat("c"))
    chat = (await app.aio.handle("r").envelope()).chat
    assert chat is not None
    assert (result.status, chats.before_save) == ("completed", [])
    if conflicts == 3:
        assert (chat.status, chat.error["name"], chats.saves) == ("failed", RevisionConflictError.__name__, [])
        assert [warning.setting for warning in result.warnings] == ["chat"]
        assert (await reconcile_agent_run("r", store=world.store, chats=chats)).chat == "saved"
    else:
        assert (chat.status, result.warnings) == ("saved", ())
    assert [save.messages for save in chats.saves] == [result.transcript]
    assert chats.records["c"].revision == 2 + conflicts


@pytest.mark.spec("CHT-008")
@pytest.mark.parametrize(
    "stored",
    [
        {"messages": []},
        ChatRecord("c", "default", ("no message",), ("m",)),  # type: ignore[arg-type]
        ChatRecord("c", "default", None, None),  # type: ignore[arg-type]
        ChatRecord("c", "default", (user("one"),), ()),
    ],
    ids=repr,
)
async def test_what_is_no_chat_is_a_store_that_failed(world: World, stored: Any) -> None:
    """It is not written over, the run ends as without a fault, and nothing is due; the next look finds a chat and writes."""
    chats = PlainChats({"c": stored})
    app = process(world, Agent("x", model=MockModel(["hi"])), chats=chats)
    result = await app.aio.run_embedded("x", "hello", run_id="r", chat=Chat("c"))
    chat = (await app.aio.handle("r").envelope()).chat
    assert chat is not None
    assert (result.status, chat.status, chats.saves, len(result.warnings)) == ("completed", "failed", [], 1)
    assert not (await world.head("r")).has_work
    del chats.records["c"]
    assert (await reconcile_agent_run("r", store=world.store, chats=chats)).chat == "saved"


@pytest.mark.spec("CHT-019")
async def test_a_plain_store_is_written_over_whoever_came_between(world: World) -> None:
    """It was looked at, somebody saved, and the write replaces that: which its page says, and that `write_chat` prevents it."""
    chats = PlainChats()

    async def written_by_another() -> None:
        chats.records["c"] = ChatRecord("c", "default", (user("else"),), ("m",))

    chats.before_save.append(written_by_another)
    app = process(world, Agent("x", model=MockModel(["hi"])), chats=chats)
    result = await app.aio.run_embedded("x", "hello", run_id="r", chat=Chat("c"))
    assert (chats.records["c"].messages, result.warnings) == (result.transcript, ())
    page = " ".join((Path(__file__).parents[2] / "docs" / "chat.md").read_text().split())
    assert "Without it, a save that lands between the look and the write is overwritten." in page


@pytest.mark.spec("CHT-018")
@pytest.mark.parametrize("late", [True, False])
async def test_a_deleted_chat_is_not_written_again(world: World, late: bool) -> None:
    """Neither by a late repair nor by a leg: nothing is written, the state is `superseded`, and there is one warning."""
    if late:
        store = CrashingStore(world.store, at=2, applied=True)  # dies behind the commit that ends the run
        with pytest.raises(ProcessDied):
            await world.process(Agent("x", model=MockModel(["hi"])), store=store.as_store).aio.run_embedded(
                "x", "go", run_id="r", chat=Chat("c")
            )
        await world.store.save_chat(ChatRecord("c", "default", (user("go"),), ("r:0",)))
        assert await world.store.delete_chat("c", "default")
        result = await world.process(Agent("x", model=MockModel(["hi"]))).aio.resume_embedded("r")
    else:
        waiting = await world.process(gated()).aio.run_embedded("x", "go", run_id="r", chat=Chat("c"))
        assert await world.store.delete_chat("c", "default")
        result = await world.process(gated()).aio.resume_embedded("r", approvals=verdicts(waiting))
    gone = await world.store.load_chat("c")
    assert gone is not None
    assert (result.status, gone.deleted, gone.revision) == ("completed", True, 2)
    assert [warning.setting for warning in result.warnings] == ["chat"]
    assert (await reconcile_agent_run("r", store=world.store)).chat == "superseded"


@pytest.mark.spec("CHT-020")
async def test_nothing_reaches_the_chat_before_the_run_is_saved(world: World) -> None:
    """The commit that would suspend or end it is refused: the chat store is not even asked."""
    for number, (at_commit, agent) in enumerate(((2, gated()), (2, Agent("x", model=MockModel(["hi"]))))):
        chats = PlainChats(before_load=[fails] * 9)
        store = CrashingStore(world.store, at=at_commit, error=ChatFault("no"))
        app = process(world, agent, chats=chats, store=store.as_store)
        result = await app.aio.run_embedded("x", "go", run_id=f"r{number}", chat=Chat("c"))
        assert (result.status, store.commits) == ("failed", at_commit)
        assert (len(chats.before_load), chats.saves) == (9, [])


@pytest.mark.spec("CHT-021")
async def test_a_run_without_a_session_writes_its_chat(world: World) -> None:
    """And leaves nothing else: no store knows the run, so that nothing of it could be repaired."""
    chats = PlainChats()
    result = await run_agent(Agent("x", model=MockModel(["hi"])), "hello", run_id="r", chat=Chat("c", store=chats))
    assert [save.messages for save in chats.saves] == [result.transcript]
    with pytest.raises(Exception, match="There is no run 'r'"):
        await reconcile_agent_run("r", store=world.store, chats=chats)


@pytest.mark.spec("CHT-022")
async def test_two_executors_leave_one_chat(world: World) -> None:
    """Both believe that they hold the lease of a run that ended: each finds what the other wrote."""
    store = CrashingStore(world.store, at=2, applied=True)
    with pytest.raises(ProcessDied):
        await world.process(Agent("x", model=MockModel(["hi"])), store=store.as_store).aio.run_embedded(
            "x", "go", run_id="r", chat=Chat("c")
        )
    assert (await world.head("r")).has_work
    apps = [world.elsewhere(Agent("x", model=MockModel(["never"]))) for _ in range(4)]  # each with leases of its own
    results = await asyncio.gather(*(app.aio.resume_embedded("r") for app in apps))
    record = await world.store.load_chat("c")
    assert record is not None
    assert (record.messages, record.message_ids, record.revision) == (results[0].transcript, ("r:0", "r:1"), 1)
    assert {result.warnings for result in results} == {()}
    head = await world.head("r")
    assert (head.has_work, head.due_in_ms) == (False, None)
    assert (await world.store.chat_state(head.rid)).status == "saved"


@pytest.mark.spec("CHT-023")
@pytest.mark.parametrize("kind", [PlainChats, ConditionalChats, None])
async def test_every_kind_of_chat_store_works(world: World, kind: type[PlainChats] | None) -> None:
    """One with `load_chat` and `save_chat`, one that offers `write_chat` too, the run's own; with chat id and scope."""
    chats: ChatStore = world.store if kind is None else kind()
    agent = Agent("x", model=MockModel(["hi"]))
    chat = Chat("c", "team", chats)
    result = await run_agent(agent, "hello", store=world.store, run_id="hello-1", chat=chat)
    record = await chats.load_chat("c")
    assert record is not None
    assert (record.messages, record.message_ids, record.scope) == (
        result.transcript,
        ("hello-1:0", "hello-1:1"),
        "team",
    )
    with pytest.raises(ConfigurationError):
        Chat("c", store=object())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        Chat("")


@pytest.mark.spec("RSM-008")
async def test_a_resume_that_leaves_the_run_where_it_was_writes_nothing_but_its_chat(world: World) -> None:
    """Without a projection pending nothing at all; with one, the chat and how far it has come."""
    chats = PlainChats(before_save=[fails])
    app = process(world, gated(), chats=chats)
    waiting = await app.aio.run_embedded("x", "go", run_id="r", chat=Chat("c"))
    before, revision = at(await world.loaded("r")), (await world.head("r")).revision
    left = await app.aio.resume_embedded("r", approvals={"unknown": True})
    assert (left.status, [save.messages for save in chats.saves]) == ("suspended", [waiting.transcript])
    assert at(await world.loaded("r")) == before
    state = await world.store.chat_state((await world.head("r")).rid)
    assert (state.status, state.cursor) == ("saved", 2)
    left = await app.aio.resume_embedded("r")
    assert (await world.store.chat_state((await world.head("r")).rid), len(chats.saves)) == (state, 1)
    assert ((await world.head("r")).revision, at(await world.loaded("r"))) == (revision, before)


async def test_a_run_that_stops_for_reconciliation_is_repaired_too(world: World) -> None:
    """Its record stays as it is, and it stays parked."""
    dies: list[bool] = []

    @tool(needs_approval=True)
    async def pay() -> str:
        if dies:
            raise ProcessDied
        return "paid"

    def made() -> Agent:
        return Agent("x", model=MockModel([calls(call("pay").with_id("c")), "done"]), tools=[pay])

    chats = PlainChats(before_save=[fails])
    waiting = await process(world, made(), chats=chats).aio.run_embedded("x", "go", run_id="r", chat=Chat("c"))
    dies.append(True)
    with pytest.raises(ProcessDied):
        await process(world, made(), chats=chats).aio.resume_embedded("r", approvals=verdicts(waiting))
    dies.clear()
    stopped = await process(world, made(), chats=chats).aio.resume_embedded("r")
    assert (stopped.reason, chats.saves) == ("tool-reconciliation-required", [])
    before = at(await world.loaded("r"))
    again = await process(world, made(), chats=chats).aio.resume_embedded("r")
    assert (again.reason, [save.messages for save in chats.saves]) == (stopped.reason, [again.transcript])
    assert at(await world.loaded("r")) == before
    assert (await world.head("r")).parked == "tool-reconciliation-required"


@pytest.mark.spec("CHT-004")
@pytest.mark.parametrize("applied", [True, False])
async def test_a_death_at_any_commit_loses_no_chat_and_writes_none_twice(world: World, applied: bool) -> None:
    """Died at each of its commits, before or after they applied, and gone on with by the next process: the chat is the
    transcript at the end, every record was written once, and nothing is due any more."""
    for commit in range(1, 9):
        run_id, chats = f"r{commit}", PlainChats()
        result: AgentResult[Any] | None = None
        store = CrashingStore(world.store, at=commit, applied=applied)
        processes = [store.as_store, None, None]
        for given in processes:
            app = process(world, gated(), chats=chats, store=given)
            try:
                if await world.store.head("default", run_id) is None:
                    result = await app.aio.run_embedded("x", "go", run_id=run_id, chat=Chat(run_id))
                else:
                    result = await app.aio.resume_embedded(run_id)
                if result.pending_approvals:
                    result = await app.aio.resume_embedded(run_id, approvals=verdicts(result))
            except ProcessDied:
                continue
        assert result is not None
        assert result.status == "completed", commit
        assert chats.records[run_id].messages == result.transcript
        assert [len(save.messages) for save in chats.saves] == [2, 4], commit
        head = await world.head(run_id)
        assert (head.has_work, head.due_in_ms) == (False, None), commit


async def test_a_death_behind_the_chat_s_own_write_is_found_out(world: World) -> None:
    """The chat is there and how far it came is not: the next look sees it, and writes nothing."""

    class Dies(PlainChats):
        async def save_chat(self, record: ChatRecord) -> None:
            await super().save_chat(record)
            if len(self.saves) == 1:
                raise ProcessDied

    chats = Dies()
    with pytest.raises(ProcessDied):
        await process(world, gated(), chats=chats).aio.run_embedded("x", "go", run_id="r", chat=Chat("c"))
    head = await world.head("r")
    assert (head.status, head.has_work, len(chats.saves)) == ("suspended", True, 1)
    waiting = await process(world, gated(), chats=chats).aio.resume_embedded("r")
    head = await world.head("r")
    assert (waiting.status, head.has_work, len(chats.saves)) == ("suspended", False, 1)
    assert (await world.store.chat_state(head.rid)).cursor == 2


async def test_a_process_that_does_not_know_the_chat_store_leaves_the_run_alone(world: World) -> None:
    """Where the chats of the application are belongs to the binding: refused before any write."""
    chats = PlainChats()
    waiting = await process(world, gated(), chats=chats).aio.run_embedded("x", "go", run_id="r", chat=Chat("c"))
    before = await world.loaded("r")
    refused = await world.process(gated()).aio.resume_embedded("r", approvals=verdicts(waiting))
    assert str((refused.error or {})["message"]).startswith(SENTENCE)
    assert await world.loaded("r") == before
    with pytest.raises(ConfigurationError):
        await process(world, gated(), chats=chats).aio.run_embedded("x", "go", chat=Chat("c", store=PlainChats()))


async def test_the_same_order_under_a_key_names_the_same_chat(world: World) -> None:
    """Another chat is another order."""
    app = world.process(Agent("x", model=MockModel(["hi"])))
    await app.aio.run_embedded("x", "go", idempotency_key="k", chat=Chat("c"))
    assert (await app.aio.run_embedded("x", "go", idempotency_key="k", chat=Chat("c"))).status == "completed"
    refused = await app.aio.run_embedded("x", "go", idempotency_key="k", chat=Chat("d"))
    assert (refused.error or {})["name"] == "RunExistsError"


async def test_a_fork_writes_no_chat_and_a_copy_neither(world: World) -> None:
    """Both would go on beside the run whose chat it is."""
    app = world.process(gated())
    waiting = await app.aio.run_embedded("x", "go", run_id="r", chat=Chat("c"))
    await app.aio.resume_embedded("r", approvals=verdicts(waiting))
    record = await world.store.load_chat("c")
    forked = await app.aio.fork("r", 1)
    result = await app.aio.resume_embedded(forked.run_id)
    assert (result.status, (await forked.envelope()).chat) == ("completed", None)
    text = await app.aio.export_run("r")
    await world.store.prune(older_ms=-1, status=("completed",), scope="default", limit=10)
    copied = await app.aio.import_run(text)
    assert (await copied.envelope()).chat is None
    assert await world.store.load_chat("c") == record


async def test_a_message_is_compared_by_what_it_says() -> None:
    """A chat store of the application may hand over equal messages that are other objects."""
    chats = PlainChats()
    agent = Agent("x", model=MockModel([reply("hi", reasoning="hm")]))
    await run_agent(agent, "hello", run_id="a", chat=Chat("c", store=chats))
    stored = chats.records["c"]
    copied = tuple(Message(message.role, tuple(message.parts)) for message in stored.messages)
    chats.records["c"] = replace(stored, messages=copied)
    more = Agent("x", model=MockModel(["hi", "fine"]))
    await run_agent(more, messages=[*copied, user("and?")], run_id="b", chat=Chat("c", store=chats))
    assert chats.records["c"].message_ids == ("a:0", "a:1", "b:2", "b:3")


@pytest.mark.spec("CHT-003")
async def test_what_is_remembered_for_the_model_is_said_in_the_chat(world: World) -> None:
    """A later run has to be sent exactly what this one was: the recall stands in its transcript and its chat."""
    await world.store.write_memories("default", [remembered("likes tea")])
    agent = remembering(says(), memory=memory_of(says(), extract=False))
    result = await world.process(agent).aio.run_embedded("x", "tea?", run_id="r", chat=Chat("c"))
    record = await world.store.load_chat("c")
    assert record is not None
    assert [message.role for message in record.messages] == ["user", "system", "assistant"]
    assert "likes tea" in record.messages[1].text
    assert record.messages == result.transcript
    assert list(model_of(agent).requests[0].messages)[:2] == list(record.messages)[:2]


@pytest.mark.parametrize("applied", [True, False])
async def test_chat_and_memory_follow_one_end(memory: World, applied: bool) -> None:
    """Died at each commit of a run that has both: one chat, one memory, and nothing is due any more."""
    for commit in range(1, 8):
        run_id, scope = f"r{commit}", MemoryScope(user_id=f"user {commit}")
        store = CrashingStore(memory.store, at=commit, applied=applied)
        result: AgentResult[Any] | None = None
        for given in (store.as_store, None, None):
            agent = remembering(says(*TEA, *TEA), memory=memory_of(says(*TEA, *TEA), scope=scope))
            app = memory.process(agent, store=given)
            try:
                if await memory.store.head("default", run_id) is None:
                    result = await app.aio.run_embedded("x", "go", run_id=run_id, chat=Chat(run_id))
                else:
                    result = await app.aio.resume_embedded(run_id)
            except ProcessDied:
                continue
        assert result is not None
        assert result.status == "completed", commit
        record = await memory.store.load_chat(run_id)
        assert record is not None
        assert (record.messages, record.revision) == (result.transcript, 1), commit
        agent = remembering(says(*TEA), memory=memory_of(says(*TEA), scope=scope))
        repaired = await reconcile_agent_run(run_id, store=memory.store, agent=agent)
        assert (repaired.chat, repaired.memory) == ("saved", "completed"), commit
        assert await texts_of_memories(memory, scope) == ["likes tea"], commit
        assert await memory.store.load_chat(run_id) == record, commit
        head = await memory.head(run_id)
        assert (head.phase, head.due_in_ms, head.has_work) == ("loop", None, False), commit


@pytest.mark.spec("DEP-005")
async def test_the_example_of_a_conversation_runs(tmp_path: Path) -> None:
    """Memory, chat and fall-back together; the write of the chat that failed is repaired, and the next run goes on from it."""
    told = await converse(f"sqlite:///{tmp_path / 'runs.db'}")
    assert told.answers == ("Noted.", "Tea, then.")
    assert {"chat", "fallbackModels"} <= set(told.warnings)
    assert (told.repaired, told.recalled) == ("saved", True)
    assert told.message_ids[:2] == ("hello-1:0", "hello-1:1")
    assert told.message_ids[-1].startswith("hello-2:")
