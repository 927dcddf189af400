"""Several people who answer what runs wait for, each when it suits them, over a network of their own; and one who means harm.

What they agree to is decided by the amount of a call, the same for all, unless they quarrel. What each has said is written down
before it is sent, so that an effect which began without it is noticed.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deuz_workers.app.access import Access
from deuz_workers.app.async_handle import AsyncHandle
from deuz_workers.app.door import Answer, Door
from deuz_workers.app.pending import PendingApproval, PendingClientCall
from deuz_workers.core.delegation import is_below
from deuz_workers.errors import AnswerConflictError, AnswerRefusedError, RunNotFoundError
from deuz_workers.ports.runtime import Doorbell
from deuz_workers.ports.tool import ToolContext
from deuz_workers.store.sql_store import SqlStore
from deuz_workers.testing.virtual.world import World
from tests.simulation.agents import BLOCKED, GUARDED, MORE, REWRITTEN, edited_amount, is_denied, needs_people
from tests.simulation.scenarios import Scenario

SCOPE = "simulation"
NAMES = ("ann", "bob", "cy")
POLL_MS = ((5, 200), (100, 900), (400, 2_000))
"""Between two looks of one of them."""
MOST_POLL_MS = 2_000
ITEMS = (
    "select h.run_id, i.item_id, i.body, i.answer from pending_item i join run_head h on h.rid = i.rid"
    " where i.kind = 'approval'"
)
CallKey = tuple[str, int, str]
"""Run id, turn, call id."""


class _FarDialect:
    """The database as somebody sees it whose messages take their time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.name = world.dialect.name

    async def fetch(self, operation: str, params: Mapping[str, object], *, connection: Any = None) -> Sequence[Any]:
        world = self._world
        await world.clock.sleep_ms(world.chance.choice((0, 1, 30)))
        rows = await world.dialect.fetch(operation, params)
        await world.clock.sleep_ms(world.chance.choice((0, 1, 30)))
        world.dialect.settle()
        return rows

    async def schema_version(self) -> int:
        return await self._world.dialect.schema_version()

    async def migrate(self, migrations: Sequence[Any]) -> tuple[int, ...]:
        return await self._world.dialect.migrate(migrations)

    async def close(self) -> None:
        """There is no connection."""


@dataclass(slots=True)
class Crowd:
    """Of one schedule. `work` goes on until it is cancelled."""

    world: World
    scenario: Scenario
    doorbell: Doorbell
    said: dict[CallKey, dict[str, int]] = field(default_factory=lambda: defaultdict[CallKey, dict[str, int]](dict))
    """Who agreed to a call, and to which amount."""
    told: list[tuple[str, object]] = field(default_factory=lambda: list[tuple[str, object]]())
    """What somebody who came too late heard of the answer that stays, by item id."""
    taken: Counter[str] = field(default_factory=lambda: Counter[str]())
    """Answers that closed an item, by item id."""

    def __post_init__(self) -> None:
        self.world.rules.append(self.may_begin)

    async def work(self) -> None:
        loop = self.world.loop
        people = [self._person(name) for name in NAMES] + [self._client(), self._client(), self._stranger()]
        tasks = [loop.start(loop.outside, person, "people") for person in people]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    # -- what is looked at ---------------------------------------------------------------------------------------------

    def may_begin(self, context: ToolContext, amount: int) -> None:
        """A call begins with an amount that guardrails let pass and as many people agreed to as it needs."""
        if context.agent.startswith(GUARDED) and amount in (REWRITTEN, BLOCKED):
            self.world.complain(f"{context.idempotency_key} begins with {amount}, and no guardrail was asked")
        # A person who adds to the amount of a call says so; a predicate was asked about the amount before that.
        needed = needs_people(context.tool_name, amount)
        said = self.said.get((context.run_id, context.model_step, context.tool_call_id), {})
        agreed = sum(one == amount for one in said.values())
        if agreed < needed:
            self.world.complain(f"{context.idempotency_key} begins with {amount}, and {needed} had to agree: {dict(said)}")

    def judge(self, wrong: list[str]) -> None:
        """Each item has one answer, which is what happened and what everybody was told."""
        effects = self.world.effects
        answers: dict[str, object] = {}
        for run_id, item_id, body, answer in self.world.dialect.rows(ITEMS):
            asked = json.loads(body)
            key = f"{run_id}/{asked['step']}/{asked['call_id']}"
            given = None if answer is None else json.loads(answer)
            answers[item_id] = None if given is None else given["approved"]
            amount = None if given is None else given.get("arguments", asked["arguments"])["amount"]
            begun = effects.amounts.get(key, set())
            if begun and not (given is not None and given["approved"] is True and begun == {amount}):
                wrong.append(f"{key} began with {begun}, and the answer to {item_id} is {given}")
        for item_id, winner in self.told:
            if answers.get(item_id) is not winner:
                wrong.append(f"somebody was told that {item_id} is answered {winner}, and it is {answers.get(item_id)}")
        wrong += [f"{item_id} was answered {times} times" for item_id, times in self.taken.items() if times > 1]

    # -- people --------------------------------------------------------------------------------------------------------

    @property
    def _access(self) -> Access:
        world = self.world
        store = SqlStore(_FarDialect(world), ttl_ms=world.settings.lease_ttl_ms)
        return Access(store, self.doorbell, world.honest_leases, world.clock, signer=world.signer, ids=world.ids)

    def _handle(self, run_id: str) -> AsyncHandle:
        return AsyncHandle(self._access, SCOPE, run_id)

    async def _waiting(self, *polls_ms: tuple[int, int]) -> AsyncHandle:
        """Look again and again, less often while there is nothing to see, until a run waits for somebody."""
        chance = self.world.chance
        least_ms, most_ms = chance.choice(polls_ms or POLL_MS)
        while True:
            await self.world.clock.sleep_ms(chance.randint(least_ms, most_ms))
            suspended = sorted(self.world.witness.suspended)
            if suspended:
                return self._handle(chance.choice(suspended))
            most_ms = min(2 * most_ms, MOST_POLL_MS)

    async def _person(self, name: str) -> None:
        while True:
            handle = await self._waiting()
            for waiting in await handle.pending():
                if self.world.chance.random() < 0.6:
                    await self._say(handle, waiting, name)

    async def _say(self, handle: AsyncHandle, waiting: PendingApproval, name: str) -> None:
        if waiting.people and name not in waiting.people:
            return
        if waiting.expires_in_ms is not None:
            await self._come_late(handle, waiting, name)
            return
        chance, amount = self.world.chance, int(str(waiting.arguments["amount"]))
        denies, edited = is_denied(amount), edited_amount(waiting.tool_name, amount)
        if self.scenario.quarrels:
            denies = chance.random() < 0.3
            edited = amount + chance.choice((0, MORE, 2 * MORE)) if waiting.tool_name == "edit" else amount
        if denies:
            await self._hear(waiting.approval_id, lambda: handle.deny(waiting, by=name))
        else:
            self.said[handle.run_id, waiting.step, waiting.tool_call_id][name] = edited
            arguments = None if edited == amount else {"amount": edited}
            await self._hear(waiting.approval_id, lambda: handle.approve(waiting, by=name, arguments=arguments))

    async def _come_late(self, handle: AsyncHandle, waiting: PendingApproval, name: str) -> None:
        """Agree to a request just after it has expired, perhaps before anybody has taken note of that."""
        left_ms = max(0, waiting.expires_in_ms or 0)
        await self.world.clock.sleep_ms(left_ms + self.world.chance.randint(1, 60))
        await self._must_fail("answers an expired request", lambda: handle.approve(waiting, by=name))

    async def _client(self) -> None:
        """Executes what it finds; another one may be faster."""
        while True:
            handle = await self._waiting()
            for waiting in await handle.pending_client_calls():
                if self.world.chance.random() < 0.3:
                    continue
                amount = int(str(waiting.arguments["amount"]))
                error = f"nothing at {amount}" if amount % 4 == 3 else None
                await self._hear(waiting.item_id, lambda: handle.answer(waiting, {"seen": amount}, error=error))  # noqa: B023

    async def _hear(self, item_id: str, say: Callable[[], Awaitable[Answer]]) -> None:
        try:
            answer = await say()
        except AnswerConflictError as conflict:
            if "approved" in conflict.winner:
                self.told.append((item_id, conflict.winner["approved"]))
        except AnswerRefusedError:
            pass  # the run has gone on, or the others agreed to another amount
        else:
            self.taken[item_id] += answer.still_needed == 0

    # -- the one who means harm ----------------------------------------------------------------------------------------

    async def _stranger(self) -> None:
        while True:
            handle = await self._waiting((5, 300))
            for waiting in (*await handle.pending(), *await handle.pending_client_calls()):
                wrong = self._wrong(handle, waiting)
                for what, attempt in self.world.chance.sample(wrong, min(3, len(wrong))):
                    await self._must_fail(what, attempt)

    def _wrong(
        self, handle: AsyncHandle, waiting: PendingApproval | PendingClientCall
    ) -> list[tuple[str, Callable[[], Awaitable[Answer]]]]:
        other = self._handle(self.world.chance.choice(self.scenario.run_ids))
        forged = f"{waiting.tool_call_id}@{'0' * 16}"
        if isinstance(waiting, PendingClientCall):
            return [
                ("approves a client's call", lambda: handle.approve(waiting.item_id, by="ann")),
                ("answers another step", lambda: handle.answer(replace(waiting, step=waiting.step + 1), {"seen": -1})),
                ("answers other arguments", lambda: handle.answer(replace(waiting, arguments={"amount": -1}), {"seen": -1})),
                ("answers under a forged id", lambda: handle.answer(forged, {"seen": -1})),
            ]
        door = Door(self._access, SCOPE, handle.run_id)
        changed = replace(waiting, arguments={"amount": -1})
        found: list[tuple[str, Callable[[], Awaitable[Answer]]]] = [
            ("approves other arguments", lambda: handle.approve(changed, by="ann")),
            ("approves under a forged id", lambda: handle.approve(forged, by="ann", token=waiting.token)),
            ("approves another step", lambda: handle.approve(replace(waiting, step=waiting.step + 1), by="ann")),
            ("returns what a person has to decide", lambda: handle.answer(waiting.approval_id, {"seen": -1})),
            ("denies and changes", lambda: door.verdict(waiting, approved=False, by="ann", arguments={"amount": 1})),
        ]
        if other.run_id != waiting.run_id and not is_below(waiting.run_id, other.run_id):  # a swarm hears for its tasks
            found.append(("approves in another run", lambda: other.approve(waiting, by="ann")))
            found.append(("approves by id in another run", lambda: other.approve(waiting.approval_id, by="ann")))
        if waiting.people:
            found.append(("approves without a say", lambda: handle.approve(waiting, by="eve")))
            found.append(("approves without a name", lambda: handle.approve(waiting)))
        signer = self.world.signer
        if signer is not None:
            now_ms = self.world.clock.unix_ms()
            old = signer.sign(SCOPE, handle.run_id, waiting.approval_id, now_ms=now_ms - signer.ttl_s * 1_000 - 1_000)
            others = signer.sign(SCOPE, handle.run_id, forged, now_ms=now_ms)
            found += [
                ("has another's token", lambda: handle.approve(waiting.approval_id, by="ann", token=others)),
                ("has no token", lambda: handle.approve(waiting.approval_id, by="ann")),
                ("has an expired token", lambda: handle.approve(waiting.approval_id, by="ann", token=old)),
                ("has half a token", lambda: handle.approve(waiting.approval_id, by="ann", token=(waiting.token or "")[:-2])),
            ]
        return found

    async def _must_fail(self, what: str, attempt: Callable[[], Awaitable[Answer]]) -> None:
        try:
            answer = await attempt()
        except (AnswerRefusedError, AnswerConflictError, RunNotFoundError):
            return
        self.world.complain(f"somebody {what} and was heard: {answer}")
