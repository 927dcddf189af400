"""A turn with one gated call and two others that have effects, whose process dies at every point that there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from deuz_workers import Agent, MockModel, tool
from deuz_workers.app.results import AgentResult
from deuz_workers.core.change import Change, ItemAnswer, Outcome
from deuz_workers.ports.store import Answered, RunStore
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import Effects, World

TEXTS = {"p": "paid ann", "n": "noted one", "m": "noted two"}


class Fate:
    """The process dies at one numbered point of all its processes' lives."""

    def __init__(self, at: int) -> None:
        self.at, self.passed = at, 0

    def point(self) -> None:
        self.passed += 1
        if self.passed == self.at:
            raise ProcessDied


class MortalStore:
    """Commits and answers are points: before the database saw them, and after."""

    def __init__(self, inner: RunStore, fate: Fate) -> None:
        self._inner, self._fate = inner, fate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, change: Change) -> Outcome:
        self._fate.point()
        outcome = await self._inner.commit(change)
        self._fate.point()
        return outcome

    async def answer_items(self, scope: str, run_id: str, answers: list[ItemAnswer]) -> Answered | None:
        self._fate.point()
        answered = await self._inner.answer_items(scope, run_id, answers)
        self._fate.point()
        return answered

    async def add_note(self, scope: str, run_id: str, kind: Any, body: str) -> Any:
        self._fate.point()
        noted = await self._inner.add_note(scope, run_id, kind, body)
        self._fate.point()
        return noted


class Turn:
    """Three calls that write somewhere; one of them needs somebody."""

    def __init__(self, world: World, at: int) -> None:
        self.world, self.fate, self.done = world, Fate(at), Effects()
        wanted = [
            call("pay", to="ann").with_id("p"),
            call("note", text="one").with_id("n"),
            call("note", text="two").with_id("m"),
        ]
        self.model = MockModel([calls(*wanted), "done", "done"])

    def agent(self) -> Agent:
        @tool(needs_approval=True)
        async def pay(to: str) -> str:
            self.fate.point()
            self.done("p")
            self.fate.point()
            return f"paid {to}"

        @tool
        async def note(text: str) -> str:
            self.fate.point()
            self.done("n" if text == "one" else "m")
            self.fate.point()
            return f"noted {text}"

        return Agent("x", model=self.model, tools=[pay, note])

    async def live(self) -> AgentResult[Any]:
        """One process after the other, and a person who answers, until the run is completed."""
        begun = False
        while True:
            await self.world.later(60_000)
            store = cast(RunStore, MortalStore(self.world.store, self.fate))
            app = self.world.process(self.agent(), store=store)
            try:
                result = await (app.aio.resume_embedded("r") if begun else app.aio.run_embedded("x", "go", run_id="r"))
                begun = True
                if result.status == "completed":
                    return result
                await self.answer(app.aio.handle("r"), result)
            except ProcessDied:
                begun = await self.world.store.head("default", "r") is not None

    async def answer(self, handle: Any, result: AgentResult[Any]) -> None:
        """As somebody who looks where the tools write before saying anything."""
        for request in result.pending_approvals:
            await handle.approve(request)
        if result.unknown_effects:
            texts = {"p": "paid ann", "n": "noted one", "m": "noted two"}
            happened = {
                one.effect_id: texts[one.tool_call_id] for one in result.unknown_effects if self.done.done[one.tool_call_id]
            }
            others = [one for one in result.unknown_effects if one.effect_id not in happened]
            verdicts: Mapping[str, Any] = {one.effect_id: True for one in others if one.approval_id}
            await handle.reconcile(happened, retry=[one.effect_id for one in others], approvals=verdicts)


async def test_a_turn_restarted_at_every_point_has_each_effect_once(memory: World) -> None:
    """Before and after every commit, every answer and every effect: three effects, three results in order, one request more."""
    from deuz_workers.store import open_store

    for at in range(1, 100):
        world = World(memory.url, open_store(memory.url))
        turn = Turn(world, at)
        result = await turn.live()
        assert turn.done.done == {"p": 1, "n": 1, "m": 1}, at
        [answers] = [message.tool_results for message in result.messages if message.role == "tool"]
        assert [(part.call_id, part.text) for part in answers] == [("p", "paid ann"), ("n", "noted one"), ("m", "noted two")], (
            at
        )
        await world.close()
        if turn.fate.passed < at:
            assert at > 20
            return
    pytest.fail("it has more points than it should")
