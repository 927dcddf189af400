"""Who is outside: producers, people who answer, cancel and write, and whoever finds out what became of an effect."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import cast

from deuz_workers.app.access import Access
from deuz_workers.app.async_handle import AsyncHandle
from deuz_workers.app.order import Options
from deuz_workers.app.registry import AppRegistry
from deuz_workers.core.change import FINAL, Bell, Head, MessageRow
from deuz_workers.core.chat import RunChat
from deuz_workers.core.codec import encode
from deuz_workers.core.decide import REDUCE
from deuz_workers.core.envelope import AgentRunEnvelope, encode_body
from deuz_workers.core.lost_commits import WENT_BACKWARDS
from deuz_workers.core.messages import message_to_record, user
from deuz_workers.core.names import run_scope_key
from deuz_workers.core.run import Run, read_run
from deuz_workers.core.unclean_ends import QUARANTINE
from deuz_workers.errors import AnswerConflictError, ConfigurationError, RetryRefusedError
from deuz_workers.ports.store import NewRun, When
from deuz_workers.store.sqlite_tasks import UNENDED
from deuz_workers.testing.virtual.world import World
from tests.simulation.agents import guarded_amount
from tests.simulation.crowd import Crowd
from tests.simulation.scenarios import Order, Scenario
from tests.simulation.tools import value_of

SCOPE = "simulation"
POLLS_MS = ((5, 100), (150, 900), (150, 900))
"""Between two looks of the person; of some schedules she is quick."""
EARLY_MS = 2_000
LATE_POLL_MS = (500, 900)


class OutsideBell:
    """People ring through the same broker as processes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.refused: set[str] = set()
        """Runs that people last rang for when the queue was full: only a sweep looks for them, or people who ring again."""

    async def offer(self, bells: Sequence[Bell], *, spare: bool = False) -> tuple[Bell, ...]:
        left = () if self._world.only_sweeps else self._world.broker.offer(bells, spare=spare)
        self.refused -= {bell.run_id for bell in bells}
        self.refused |= {bell.run_id for bell in left}
        return left

    def leave(self, queues: Collection[str]) -> None:
        """They feed nothing."""

    async def has_room(self, queue: str) -> bool:
        return not self._world.only_sweeps and self._world.broker.look(queue).room > 0


class People:
    """Of one schedule. What they did is remembered, since it decides how a run may end."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        self._scenario = scenario
        self._bell = OutsideBell(world)
        self._access = Access(world.store, self._bell, world.honest_leases, world.clock, signer=world.signer, ids=world.ids)
        self.crowd = Crowd(world, scenario, self._access.doorbell) if scenario.crowd else None
        self._poll_ms = world.chance.choice(POLLS_MS)
        self.cancelled: set[str] = set()
        """Runs whose cancel was accepted: they have to end as aborted."""
        self.mailed: set[str] = set()
        """Runs that were written to while they could still hear it."""
        self.parks = 0
        """Times that a run waited for them because nobody knew an effect."""
        self.quarantines: dict[str, int] = {}

    def handle(self, run_id: str) -> AsyncHandle:
        return AsyncHandle(self._access, SCOPE, run_id)

    async def order(self) -> None:
        """Every run is a row, and somebody was rung for."""
        world, scenario = self._world, self._scenario
        for order in scenario.orders:
            rid = world.ids.rid()
            scopes = () if order.budget is None else (run_scope_key(rid),)
            limits = scenario.agents[order.agent].limits
            envelope = AgentRunEnvelope(
                rid, SCOPE, order.run_id, "agent", order.agent, limits=limits, scopes=scopes, chat=chat_of(order)
            )
            first = (MessageRow(0, encode(message_to_record(user("go")))),)
            deadline = None if order.deadline_ms is None else When(in_ms=order.deadline_ms)
            run = NewRun(
                rid,
                SCOPE,
                order.run_id,
                "agent",
                order.agent,
                encode_body(envelope),
                first,
                version=2 if order.has_chat else 1,
                deadline=deadline,
                budget=order.budget,
                concurrency_key=order.concurrency_key,
            )
            await world.store.create(run)
            world.names[rid] = (SCOPE, order.run_id)
            await self._access.ring([Bell(SCOPE, order.run_id, "default")])
        if scenario.swarm is not None:
            head, rows = scenario.swarm.new_run(world.ids, AppRegistry(), Options(run_id="s", scope=SCOPE))
            await world.store.create(head, rows)
            world.names[head.rid] = (SCOPE, "s")
            for task in rows.tasks:
                world.names[task.run.rid] = (SCOPE, task.run.run_id)
            await self._access.ring(await world.store.fill_slots(head.rid))

    async def attend(self) -> None:
        """Look after every run until all have ended, or only wait for what nobody will do."""
        loop = self._world.loop
        crowd = None if self.crowd is None else loop.start(loop.outside, self.crowd.work(), "crowd")
        try:
            await self._attend(crowd)
        finally:
            if crowd is not None:
                crowd.cancel()

    async def _attend(self, crowd: asyncio.Task[None] | None) -> None:
        left = list(self._scenario.run_ids)
        while True:
            is_early = self._world.clock.monotonic_ms() < EARLY_MS
            await self._world.clock.sleep_ms(self._world.chance.randint(*self._poll_ms if is_early else LATE_POLL_MS))
            left = [run_id for run_id in left if not await self._look(run_id)]
            self._world.audit()
            if crowd is not None and crowd.done():
                crowd.result()
            if not left and self._world.fate.quiet and not any(process.is_frozen for process in self._world.processes):
                return

    async def cancel(self, run_id: str) -> None:
        if await self.handle(run_id).cancel():
            self.cancelled.add(run_id)

    async def write(self, run_id: str) -> None:
        body = encode({"message": message_to_record(user("by the way"))})
        noted = await self._world.store.add_note(SCOPE, run_id, "message", body)
        if noted is not None:
            self.mailed.add(run_id)
            await self._access.ring([noted.bell])

    async def _look(self, run_id: str) -> bool:
        """Do what the run waits for; True if nothing more is to be done for it."""
        world = self._world
        head = await world.store.head(SCOPE, run_id)
        if head is None and run_id in self._scenario.below:
            above = await world.store.head(SCOPE, run_id.rpartition("/")[0])
            return above is not None and above.status in FINAL  # then it did not come so far
        assert head is not None
        self._check(head)
        if head.kind == "swarm" and world.chance.random() < 0.5:
            await self._count(head)
        if head.status in FINAL and head.due_in_ms is not None and self._has_chat(run_id):
            if not world.sweeps:
                await self.handle(run_id).ring()
            return False
        if head.status in FINAL:
            return not (head.status == "failed" and self._scenario.retries_failed and await self._retry_failed(run_id))
        if head.parked == QUARANTINE:
            if run_id in self._scenario.poisoned:
                return True
            self.quarantines[run_id] = self.quarantines.get(run_id, 0) + 1
            await self._find_out(run_id)
        elif head.parked is not None:
            self.parks += 1
            await self._find_out(run_id)
        elif head.status == "suspended" and head.open_items and self._scenario.answers and self.crowd is None:
            await self._answer(run_id)
        elif not world.sweeps and head.has_work and (head.status != "running" or self._left_by_people(head)):
            await self.handle(run_id).ring()  # the queue was full, and what people left as a row nobody else finds
        return False

    def _left_by_people(self, head: Head) -> bool:
        """A swarm's own run reads `running` while it waits for tasks, and no step of it comes by that would find a note."""
        return head.kind == "swarm" and head.run_id in self._bell.refused

    async def _retry_failed(self, run_id: str) -> bool:
        """Take it up again; False where its cause does not pass, which changes nothing."""
        rid = self._world.witness.rids[run_id]
        self._world.witness.reopened.add(rid)
        try:
            return await self.handle(run_id).retry_failed()
        except RetryRefusedError:
            return False
        finally:
            self._world.witness.reopened.discard(rid)

    def _check(self, head: Head) -> None:
        """What holds for a row at any moment."""
        if head.parked == WENT_BACKWARDS:
            self._world.complain(f"{head.run_id} is parked because its store went backwards, and it did not")
        has_input = head.wake_seq > head.seen_seq
        cancels_below = bool(self._scenario.below) and head.status != "completed"
        is_late = head.due_in_ms is not None and not cancels_below and not self._has_chat(head.run_id)
        if head.status in FINAL and (is_late or has_input):
            self._world.complain(f"{head.run_id} has ended and is due")

    def _has_chat(self, run_id: str) -> bool:
        return any(order.has_chat for order in self._scenario.orders if order.run_id == run_id)

    async def _count(self, head: Head) -> None:
        """The counters of a swarm are the numbers of its tasks, whoever died meanwhile; no slot leaks."""
        snapshot = await self._world.store.swarm_snapshot(head.rid)
        assert snapshot is not None
        found = Counter(task.status for task in snapshot.tasks)
        open_tasks = sum(found[status] for status in UNENDED)
        counted = (snapshot.running, snapshot.ready, snapshot.open)
        if counted != (found["running"], found["ready"], open_tasks) or snapshot.running > snapshot.slots:
            self._world.complain(f"{head.run_id} counts running, ready and open tasks as {counted}, and has {dict(found)}")

    async def _answer(self, run_id: str) -> None:
        """One item now, the others later; sometimes twice."""
        handle, chance = self.handle(run_id), self._world.chance
        for waiting in await handle.pending():
            if chance.random() < 0.3:
                continue
            say = handle.deny if self._scenario.denies else handle.approve
            await say(waiting.approval_id)
            if chance.random() < 0.2:
                await self._say_again(say, waiting.approval_id)

    async def _say_again(self, say: Callable[[str], Awaitable[object]], approval_id: str) -> None:
        """The first answer stays, and whoever comes second is told which it was."""
        try:
            await say(approval_id)
        except AnswerConflictError as conflict:
            if conflict.winner.get("approved") is self._scenario.denies:
                self._world.complain(f"{approval_id} has another answer than the one that was given")
        else:
            self._world.complain(f"{approval_id} was answered twice")

    async def _find_out(self, run_id: str) -> None:
        """Say what became of the effects that nobody knows: as they stand outside, or done by hand.

        Sometimes every process is stopped first; then, and only then, an effect that did not begin may be allowed once more.
        """
        world, effects = self._world, self._world.effects
        stops = not world.fate.quiet and world.chance.random() < 0.3
        if stops:
            for process in list(world.processes):
                process.die("stopped by a person")
        run = await read(world, run_id)
        outputs: dict[str, object] = {}
        errors: dict[str, str] = {}
        retry: list[str] = []
        for receipt in run.interrupted:
            if receipt.idempotent:
                continue  # it runs again in any case
            key = f"{run_id}/{run.step}/{receipt.call_id}"
            if receipt.call_id == REDUCE:
                retry.append(receipt.call_id)
                continue
            if key not in effects.values and stops:
                retry.append(receipt.call_id)
                continue
            if key in effects.values and self.crowd is not None and world.chance.random() < 0.2:
                retry.append(receipt.call_id)  # it has happened, and may happen once more
                continue
            amount = _amount_of(run, receipt.call_id)
            effects.values.setdefault(key, value_of(receipt.tool, amount))
            if receipt.tool == "fail":
                errors[receipt.call_id] = f"ValueError: no {amount}"
            else:
                outputs[receipt.call_id] = value_of(receipt.tool, amount)
        if self.crowd is not None and world.chance.random() < 0.3:
            await self._find_out_wrongly(run_id, outputs)
        try:
            effects_there = await self.handle(run_id).unknown_effects()
            approvals: dict[str, Mapping[str, object]] = {  # a gated call needs a new one to run once more
                effect.tool_call_id: {"approved": True, "by": ["ann", "cy"]}
                | ({} if effect.token is None else {"token": effect.token})
                for effect in effects_there
                if effect.tool_call_id in retry and effect.approval_id is not None
            }
            await self.handle(run_id).reconcile(outputs, errors=errors, retry=retry, approvals=approvals)
        except ConfigurationError as error:
            self._world.complain(f"{run_id} is parked and cannot be reconciled: {error}")

    async def _find_out_wrongly(self, run_id: str, outputs: dict[str, object]) -> None:
        """A word about a call that was never interrupted, or about only some that were, changes nothing."""
        before = await self._world.store.head(SCOPE, run_id)
        for said in ({**outputs, "never": 1}, dict(list(outputs.items())[1:])):
            if said == outputs:
                continue
            with contextlib.suppress(ConfigurationError):
                await self.handle(run_id).reconcile(said)
                self._world.complain(f"{run_id} was told {sorted(said)} of {sorted(outputs)}, and took it")
        if before != await self._world.store.head(SCOPE, run_id):
            self._world.complain(f"{run_id} was changed by a wrong word about its effects")


def _amount_of(run: Run, call_id: str) -> int:
    """What an open call begins with: what people made of it, else what guardrails did, else what the model said."""
    edited = run.envelope.verdicts.get(call_id, {}).get("arguments")
    if isinstance(edited, Mapping):
        return int(str(cast("Mapping[str, object]", edited)["amount"]))
    asked = next(use.arguments for use in run.open_calls if use.call_id == call_id)
    assert asked is not None
    return guarded_amount(run.envelope.agent, int(str(asked["amount"])))


def chat_of(order: Order) -> RunChat | None:
    return RunChat(f"chat of {order.run_id}", SCOPE) if order.has_chat else None


async def read(world: World, run_id: str) -> Run:
    loaded = await world.store.load(SCOPE, run_id)
    assert loaded is not None
    return read_run(loaded.head, loaded.messages, loaded.receipts)
