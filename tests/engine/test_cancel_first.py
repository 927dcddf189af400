"""A cancel that arrives just before an effect: one of the two comes first, and the effect does not begin behind the cancel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deuz_workers.core.change import Change, Outcome
from deuz_workers.core.codec import encode
from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import message_to_record, user
from deuz_workers.core.usage import Budget
from deuz_workers.engine.engine import Engine
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.tool import ToolContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.store.sql_store import SqlStore
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.tools.agent import delegating_tool
from deuz_workers.tools.decorator import tool


class CancelledBefore:
    """A store in which somebody cancels the run in the moment before its commit number `at`, the first being 1."""

    def __init__(self, inner: SqlStore, at: int, *says: str) -> None:
        """`says`: what they write before."""
        self._inner = inner
        self._at = at
        self.says = says
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, change: Change) -> Outcome:
        self.commits += 1
        assert self.commits < 20, "the step goes round and round"
        if self.commits == self._at:
            for said in self.says:
                body = encode({"message": message_to_record(user(said))})
                assert await self._inner.add_note(SCOPE, "r", "message", body) is not None
            assert await self._inner.add_note(SCOPE, "r", "cancel", "{}") is not None
        return await self._inner.commit(change)


class Sender:
    """An agent that sends two things at once, and what it did."""

    def __init__(self, *, budget: Budget | None = None) -> None:
        self.asked = 0
        self.sent: list[int] = []
        self.budget = budget

        @tool
        async def send(n: int) -> str:
            """Send it."""
            self.sent.append(n)
            return "sent"

        def answer(request: ModelRequest) -> Entry:
            self.asked += 1
            return "done" if len(request.messages) > 1 else calls(call("send", n=1), call("send", n=2))

        agent = AgentDefinition("sender", MockModel.function(answer), tools={"send": send})
        self.simulation = Simulation({"sender": agent})

    async def step(self, at: int) -> str:
        """One step of the run `r`, which is cancelled before the commit number `at`; how it ended."""
        await self.simulation.enqueue("sender", "r", budget=self.budget)
        process = Process(self.simulation)
        store: Any = CancelledBefore(self.simulation.store, at)
        return (await Engine(replace(process.engine.gear, store=store)).step(SCOPE, "r")).end


@pytest.mark.parametrize("budget", [None, Budget(tokens=1_000_000)])
async def test_a_model_call_does_not_begin_behind_a_cancel(budget: Budget | None) -> None:
    """The commit that would admit it is refused, so nothing is reserved, asked or spent; the run has ended in one step."""
    sender = Sender(budget=budget)
    assert await sender.step(at=1) == "ended"
    run = await sender.simulation.load("r")
    assert (run.envelope.status, run.envelope.reason) == ("stopped", "aborted")
    assert (sender.asked, run.envelope.checkpoint.step, run.envelope.unknown_tokens) == (0, 0, 0)


async def test_what_was_written_first_is_kept_first() -> None:
    """A message was read with the run and is not saved yet; another one and a cancel refuse the commit that would save it."""
    sender = Sender()
    await sender.simulation.enqueue("sender", "r")
    body = encode({"message": message_to_record(user("first"))})
    assert await sender.simulation.store.add_note(SCOPE, "r", "message", body) is not None
    store: Any = CancelledBefore(sender.simulation.store, 1, "second")
    assert (await Engine(replace(Process(sender.simulation).engine.gear, store=store)).step(SCOPE, "r")).end == "ended"
    run = await sender.simulation.load("r")
    assert [message.text for message in run.history] == ["go", "first", "second"]
    assert (run.envelope.reason, run.envelope.seen_seq) == ("aborted", 3)


async def test_a_tool_does_not_begin_behind_a_cancel() -> None:
    """The commit of its receipt is refused: no call runs, none has a receipt, and the reply that was paid for is kept."""
    sender = Sender()
    assert await sender.step(at=2) == "ended"
    run = await sender.simulation.load("r")
    assert (run.envelope.status, run.envelope.reason) == ("stopped", "aborted")
    assert (sender.asked, sender.sent, dict(run.receipts)) == (1, [], {})
    assert [part.name for part in run.history[-1].tool_uses] == ["send", "send"]


async def test_a_tool_that_began_before_a_cancel_has_its_outcome_saved() -> None:
    """A cancel between the outcomes of two calls forbids neither commit; the run ends behind them."""
    sender = Sender()
    assert await sender.step(at=3) == "ended"
    run = await sender.simulation.load("r")
    assert (run.envelope.status, run.envelope.reason, sorted(sender.sent)) == ("stopped", "aborted", [1, 2])
    assert {receipt.stage for receipt in run.receipts.values()} == {"completed"}


async def test_what_is_said_during_the_last_call_is_answered() -> None:
    """The commit that would complete the run is refused while the message is unseen, so the model is asked once more."""
    requests: list[list[str]] = []

    async def answer(request: ModelRequest) -> Entry:
        requests.append([message.text for message in request.messages])
        if len(requests) == 1:
            body = encode({"message": message_to_record(user("and another thing"))})
            assert await simulation.store.add_note(SCOPE, "r", "message", body) is not None
            return "done"
        return "both done"

    simulation = Simulation({"a": AgentDefinition("a", MockModel.function(answer))})
    await simulation.enqueue("a", "r")
    run = await simulation.run("r")
    assert (run.envelope.status, run.envelope.output) == ("completed", "both done")
    assert requests == [["go"], ["go", "done", "and another thing"]]


async def test_a_run_whose_turns_are_used_up_ends_with_a_message_unseen() -> None:
    """Nobody can keep a run going beyond its limits by writing to it."""

    async def answer(request: ModelRequest) -> Entry:
        body = encode({"message": message_to_record(user("more"))})
        assert await simulation.store.add_note(SCOPE, "r", "message", body) is not None
        return "done"

    agent = AgentDefinition("a", MockModel.function(answer), limits=Limits(max_steps=3))
    simulation = Simulation({"a": agent})
    await simulation.enqueue("a", "r")
    run = await simulation.run("r")
    assert (run.envelope.status, run.envelope.reason, run.envelope.checkpoint.step) == ("stopped", "max-steps", 3)


@pytest.mark.parametrize("reply", ["done", calls(call("send", n=1), call("send", n=2))])
async def test_what_is_said_while_the_model_answers_stands_behind_its_answer(reply: Entry) -> None:
    """A message and a cancel arrive during the call: the record keeps both, and does not say that the model had read the
    message. Behind calls it waits for their answers."""

    async def answer(request: ModelRequest) -> Entry:
        body = encode({"message": message_to_record(user("wait"))})
        for kind, text in (("message", body), ("cancel", "{}")):
            assert await simulation.store.add_note(SCOPE, "r", kind, text) is not None  # pyright: ignore[reportArgumentType]
        return reply

    simulation = Simulation({"a": AgentDefinition("a", MockModel.function(answer))})
    await simulation.enqueue("a", "r")
    run = await simulation.run("r")
    assert (run.envelope.status, run.envelope.reason) == ("stopped", "aborted")
    texts = [(message.role, message.text) for message in run.history]
    if reply == "done":
        assert texts == [("user", "go"), ("assistant", "done"), ("user", "wait")]
    else:
        assert [role for role, _ in texts] == ["user", "assistant", "tool", "user"]
        assert texts[-1] == ("user", "wait")


async def test_a_cancel_behind_a_note_that_is_not_saved_yet_is_heard() -> None:
    """The step has loaded a note and not saved that it was seen; the refused commit makes it read both, in their order."""
    sender = Sender()
    await sender.simulation.enqueue("sender", "r")
    body = encode({"message": message_to_record(user("by the way"))})
    assert await sender.simulation.store.add_note(SCOPE, "r", "message", body) is not None
    store: Any = CancelledBefore(sender.simulation.store, 1)
    process = Process(sender.simulation)
    assert (await Engine(replace(process.engine.gear, store=store)).step(SCOPE, "r")).end == "ended"
    run = await sender.simulation.load("r")
    assert (run.envelope.status, run.envelope.reason, sender.asked) == ("stopped", "aborted", 0)
    assert [message.text for message in run.history] == ["go", "by the way"]


@pytest.mark.parametrize("output", ["it failed", "it was sent"])
async def test_what_a_call_came_to_counts_more_than_a_word_about_it(output: str) -> None:
    """Somebody took a call that went on here for interrupted and says what became of it; the commit that would suspend the run
    with the outcome is refused, since the word is unseen. The outcome is kept, and the word counts for nothing."""
    ran: list[int] = []

    @tool
    async def send(n: int, context: ToolContext) -> str:
        """Send it."""
        ran.append(n)
        said = {"output": output, "is_error": output == "it failed"}
        place = {"step": 1, "attempt": 1}
        body = encode({"results": {context.tool_call_id: said}, "calls": {context.tool_call_id: place}})
        assert await simulation.store.add_note(SCOPE, "r", "reconcile", body) is not None
        raise ValueError("no money")

    below = AgentDefinition("below", MockModel(["below is done"]))
    tools = {"send": send, "below": delegating_tool("below", name="below", description="Somebody else.")}
    model = MockModel([calls(call("send", n=1), call("below", prompt="go")), "done"])
    simulation = Simulation({"sender": AgentDefinition("sender", model, tools=tools), "below": below})
    await simulation.enqueue("sender", "r")
    assert (await Process(simulation).engine.step(SCOPE, "r")).end == "suspended"
    run = await simulation.load("r")
    assert (run.envelope.seen_seq, ran) == (1, [1])
    [failed, _] = run.receipts.values()
    assert (failed.stage, failed.reconciled, failed.error) == ("failed", False, "ValueError: no money")
