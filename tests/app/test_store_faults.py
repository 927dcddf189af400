"""The store fails at every numbered save of a reference run, before it wrote and after; the next legs bring the same answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from deuz_workers import Agent, AgentResult, MockModel, client_tool, tool
from deuz_workers.ports.guard import GuardContext, Guardrails
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import CrashingStore, ProcessDied
from tests.app.world import Effects, World

LEGS = 12
"""More than any schedule with one fault needs."""


@dataclass
class Answer:
    total: int


@dataclass
class Reference:
    """Two tools side by side, a gated one, a client's, an idempotent one, then a typed answer; one person who answers all."""

    world: World
    done: Effects = field(default_factory=Effects)
    authorized: Counter[str] = field(default_factory=Counter[str])
    """Effects that were unknown and were allowed to happen again."""
    legs: int = 0

    def agent(self) -> Agent:
        @tool
        async def send(n: int) -> int:
            self.done(f"send {n}")
            return n

        @tool(replay="idempotent")
        async def put(n: int) -> int:
            self.done(f"put {n}")
            return n

        @tool(needs_approval=True)
        async def pay(n: int) -> int:
            self.done(f"pay {n}")
            return n

        ask = client_tool("ask", "Asks.", {"type": "object", "properties": {}})
        script = (
            calls(call("send", n=1), call("put", n=2), call("send", n=3)),
            calls(call("send", n=4), call("pay", n=5), call("ask")),
            calls(call("put", n=6)),
            "enough",
            '{"total": 21}',
        )
        return Agent("x", model=MockModel(script), tools=[send, put, pay, ask], output_type=Answer)

    async def leg(self, store: CrashingStore | None, result: AgentResult[Any] | None, run_id: str) -> AgentResult[Any] | None:
        """One process more, over a store that may fail; None: it died."""
        self.legs += 1
        assert self.legs <= LEGS, result
        app = self.world.process(self.agent(), store=None if store is None else store.as_store)
        await self.world.later(60_000)
        try:
            if await self.world.store.head("default", run_id) is None:
                return await app.aio.run_embedded("x", "go", run_id=run_id)
            return await app.aio.resume_embedded(run_id, **self.answers(result))
        except ProcessDied:
            return None

    def answers(self, result: AgentResult[Any] | None) -> dict[str, Any]:
        """Everything that the last leg asked for; an effect that nobody knows may happen again."""
        if result is None:
            return {}
        for effect in result.unknown_effects:
            self.authorized[f"{effect.tool_name} {effect.arguments['n']}"] += 1
        return {
            "approvals": {item.approval_id: True for item in result.pending_approvals}
            | {effect.approval_id: True for effect in result.unknown_effects if effect.approval_id},
            "client_tool_results": {item.tool_call_id: "yes" for item in result.pending_client_calls},
            "retry_tool_call_ids": [effect.effect_id for effect in result.unknown_effects],
        }

    async def end(self, store: CrashingStore | None, run_id: str = "r") -> AgentResult[Any]:
        """Leg after leg, the first over `store` until it has failed; the result of the completed run."""
        result: AgentResult[Any] | None = None
        while result is None or result.status != "completed":
            spent = store is None or store.died or store.commits >= store.at
            result = await self.leg(None if spent else store, result, run_id)
            if result is not None and result.status == "failed":
                result = None
        return result

    def check(self, result: AgentResult[Any]) -> None:
        """The answer is that of a run without faults, and no effect happened twice but by authorization."""
        assert result.output == Answer(21)
        for effect in (f"send {n}" for n in (1, 3, 4)):
            assert 1 <= self.done.done[effect] <= 1 + self.authorized[effect], (effect, self.done.done)
        assert 1 <= self.done.done["pay 5"] <= 1 + self.authorized["pay 5"]
        assert all(self.done.done[f"put {n}"] >= 1 for n in (2, 6))


async def saves(world: World) -> int:
    """Commits of the reference run without a fault."""
    reference, store = Reference(world), CrashingStore(world.store, at=0)
    result: AgentResult[Any] | None = None
    while result is None or result.status != "completed":
        result = await reference.leg(store, result, "counted")
    reference.check(result)
    assert (set(reference.done.done.values()), reference.authorized) == ({1}, Counter())
    return store.commits


@pytest.mark.spec("STF-010")
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["refused", "death"])
async def test_a_fault_at_any_save_changes_nothing_but_how_long_it_takes(world: World, kind: str, applied: bool) -> None:
    """At every numbered save, before and after the store wrote, as an error of the store and as the end of the process."""
    count = await saves(world)
    assert count > 12
    for at in range(1, count + 1):
        reference = Reference(world)
        error = RuntimeError("disk full") if kind == "refused" else None
        store = CrashingStore(world.store, at, applied=applied, error=error)
        result = await reference.end(store, f"r{at}")
        assert store.commits >= at, f"the run had no save number {at}"
        reference.check(result)
        head = await world.head(f"r{at}")
        assert (head.status, head.mid_step, head.open_items) == ("completed", False, 0)


def passes(text: object, context: GuardContext) -> None:
    return None


async def is_answered(world: World, run_id: str) -> bool:
    """The results of the first turn are in the history."""
    return any('"role":"tool"' in row.body for row in (await world.loaded(run_id)).messages)


@pytest.mark.spec("STF-004")
@pytest.mark.parametrize("gated", [False, True])
async def test_receipts_answer_where_the_checkpoint_of_the_turn_failed(world: World, gated: bool) -> None:
    """No second execution, and of a gated call no new verdict."""
    done = Effects()

    def made() -> Agent:
        @tool(needs_approval=gated)
        async def act() -> str:
            done("act")
            return "did it"

        guardrails = Guardrails(on_tool_result=passes)  # its turn is saved apart from its receipts
        return Agent("x", model=MockModel([calls(call("act").with_id("c")), "done"]), tools=[act], guardrails=guardrails)

    for at in range(1, 8):
        done.done.clear()
        run_id = f"r{at}"
        verdicts: dict[str, bool] = {}
        if gated:
            waiting = await world.process(made()).aio.run_embedded("x", "go", run_id=run_id)
            verdicts = {item.approval_id: True for item in waiting.pending_approvals}
        store = CrashingStore(world.store, at, error=RuntimeError("disk full"))
        app = world.process(made(), store=store.as_store)
        if gated:
            await app.aio.resume_embedded(run_id, approvals=verdicts)
        else:
            await app.aio.run_embedded("x", "go", run_id=run_id)
        receipts = await world.receipts(run_id)
        complete = bool(receipts) and all(receipt.stage in ("executed", "completed") for receipt in receipts.values())
        if complete and not await is_answered(world, run_id):
            break
    else:
        raise AssertionError("the checkpoint was never what was refused")
    assert done.done == {"act": 1}
    await world.later(60_000)
    assert (await world.process(made()).aio.resume_embedded(run_id)).status == "completed"
    assert done.done == {"act": 1}


@pytest.mark.spec("STF-005")
@pytest.mark.parametrize("what", ["save", "model call"])
async def test_what_fails_behind_a_settled_turn_leaves_its_answers(world: World, what: str) -> None:
    """The next leg brings neither verdict nor client result: nothing is settled again or denied, nothing runs again."""
    done = Effects()

    def made(dies: bool = False) -> Agent:
        @tool(needs_approval=True)
        async def pay() -> str:
            done("pay")
            return "paid"

        def answer(request: Any) -> Any:
            settled = any(message.tool_results for message in request.messages)
            if dies and settled:
                raise ProcessDied
            return "done" if settled else calls(call("pay"), call("ask"))

        ask = client_tool("ask", "Asks.", {"type": "object", "properties": {}})
        return Agent("x", model=MockModel.function(answer), tools=[pay, ask])

    for at in range(1, 8):
        done.done.clear()
        run_id = f"r{at}"
        waiting = await world.process(made()).aio.run_embedded("x", "go", run_id=run_id)
        verdicts = {item.approval_id: True for item in waiting.pending_approvals}
        results = {item.tool_call_id: "yes" for item in waiting.pending_client_calls}
        if what == "model call":
            with pytest.raises(ProcessDied):
                await world.process(made(dies=True)).aio.resume_embedded(
                    run_id, approvals=verdicts, client_tool_results=results
                )
            break
        store = CrashingStore(world.store, at, error=RuntimeError("disk full"))
        app = world.process(made(), store=store.as_store)
        assert (await app.aio.resume_embedded(run_id, approvals=verdicts, client_tool_results=results)).status == "failed"
        if await is_answered(world, run_id):
            break
    else:
        raise AssertionError("no save behind the settled turn was refused")
    await world.later(60_000)
    result = await world.process(made()).aio.resume_embedded(run_id)
    assert (result.status, result.warnings, done.done) == ("completed", (), {"pay": 1})
    told = [part for message in result.messages for part in message.tool_results]
    assert [(part.text, part.is_error) for part in told] == [("paid", False), ("yes", False)]
