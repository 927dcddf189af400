"""The engine: one step of one run, from claim to ring (architecture D2)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from dataclasses import replace
from typing import Literal

from deuz_workers.core.build import member, shared_queue
from deuz_workers.core.change import FINAL, Bell, Head
from deuz_workers.core.failure import place_of
from deuz_workers.core.lost_commits import WENT_BACKWARDS, revision_after
from deuz_workers.core.names import run_lease_key
from deuz_workers.core.run import Read, Run, read_run
from deuz_workers.core.unclean_ends import QUARANTINE, is_poisoned, is_suspicious, quarantine_queue
from deuz_workers.engine.binding import Bindings
from deuz_workers.engine.chat_turn import chat_after_end, chat_after_leg, lacks_chat_store, only_chat_is_due
from deuz_workers.engine.committer import Committer, StepOver
from deuz_workers.engine.conduct import settled
from deuz_workers.engine.delegating import Inherited, cancel_children
from deuz_workers.engine.extracting import extract
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.hold import Hold
from deuz_workers.engine.inputs import check_policies
from deuz_workers.engine.leg import Leg, LoopEnd
from deuz_workers.engine.log_place import at_run
from deuz_workers.engine.loop import advance
from deuz_workers.engine.offering import CatalogRefused
from deuz_workers.engine.projecting import Projected
from deuz_workers.engine.ring import bell_of, ring_or_ripen, rings_for, stays
from deuz_workers.engine.step_report import StepEnd, StepReport
from deuz_workers.engine.stop import Stop
from deuz_workers.engine.telling import tell_commit
from deuz_workers.engine.user_code import is_end_of
from deuz_workers.engine.waiting import waits_since_ms
from deuz_workers.errors import (
    AgentRunLeaseError,
    CheckpointVersionError,
    CodecError,
    DeuzError,
    LeaseStoreUnavailableError,
    RevisionConflictError,
    StoreUnavailableError,
)
from deuz_workers.ports.definition import AgentDefinition, ReducerDefinition
from deuz_workers.ports.leases import Gone, Lease, Young
from deuz_workers.ports.store import NOTHING_KNOWN, Loaded

FULL_BUILD_MS = 2_000
"""Between two looks at a run whose build has a full queue, at most."""

log = logging.getLogger(__name__)


class Engine:
    """Runs steps on the loop it is used from. One per process."""

    def __init__(self, gear: Gear) -> None:
        self.gear = gear
        self._stops: dict[str, Stop] = {}
        """By lease key."""
        self._draining = False
        self._bindings = Bindings()
        self._inherited = Inherited(gear.registry)

    @property
    def running_steps(self) -> int:
        return len(self._stops)

    def drain(self) -> None:
        """Take no new step, and no further turn in the ones that run."""
        self._draining = True
        for stop in self._stops.values():
            stop.drain()

    def abort_model_calls(self) -> None:
        """The grace period of a drain is over: end model calls, give their leases back. Tools are waited for."""
        self.drain()
        for stop in self._stops.values():
            stop.abort_model()

    async def step(self, scope: str, run_id: str, *, seen: int = 0, at: str = "", alone: bool | None = None) -> StepReport:
        """Look at a run and advance it if there is work and nobody else does; what that made due is rung.

        Arguments and result as of `look`, and it never raises either.
        """
        report = await self.look(scope, run_id, seen=seen, at=at, alone=alone)
        await self.ring(scope, run_id, report)
        return report

    async def look(self, scope: str, run_id: str, *, seen: int = 0, at: str = "", alone: bool | None = None) -> StepReport:
        """Look at a run and advance it if there is work and nobody else does. The lease was given back.

        Never raises for what is wrong with a run or a server: it is logged, and the sweep comes back to it. The caller
        hands the report to `ring`. `seen`: a revision that was saved, as somebody says who is
        believed; a run that is stored at a lower one is parked. `at`: the queue that it was rung in; where that is the own one
        of a build, the run stays in it. `alone`: nothing is executed beside this step; None: as the settings say.
        """
        if self._draining:
            return StepReport("refused")
        try:
            with at_run(scope, run_id):
                report = await self._step(scope, run_id, seen, self.gear.settings.alone if alone is None else alone)
        except (LeaseStoreUnavailableError, StoreUnavailableError) as error:
            log.warning("step_unreachable run=%s error=%s", run_id, error.code)
            return StepReport("unreachable", error=error)
        if shared_queue(at) != at and not self._draining:
            report = replace(report, bells=tuple(stays(bell, run_id, at) for bell in report.bells))
        return report

    async def notice(self, scope: str, run_id: str) -> None:
        """Somebody rang for a run of which a step is under way here: if it was for a cancel, the step is told at once.

        Never raises for a server that is away: the step's next commit tells.
        """
        with contextlib.suppress(StoreUnavailableError):
            await self._notice(run_lease_key(scope, run_id), scope, run_id)

    async def ring(self, scope: str, run_id: str, report: StepReport) -> None:
        """Everything that a look at the run made due is rung, or waits as a row to be fed.

        The run's own next step comes first, as far as its queue has room. Never raises for a server that is away: the sweep
        finds what was not rung. A queue of another build that is full is left alone for a while: whoever took the run from the
        shared queue would find the same again.
        """
        gear = self.gear
        bells = sorted(report.bells, key=lambda bell: (bell.scope, bell.run_id) != (scope, run_id))
        with contextlib.suppress(StoreUnavailableError):
            if report.end in ("nobody", "other_build"):
                for bell in await gear.doorbell.offer(bells):
                    await gear.store.put_off(bell.scope, bell.run_id, gear.settings.nobody_postpone_ms, FULL_BUILD_MS)
            else:
                await ring_or_ripen(gear.store, gear.doorbell, bells)

    async def _step(self, scope: str, run_id: str, seen: int, alone: bool) -> StepReport:
        gear = self.gear
        key, ttl_ms = run_lease_key(scope, run_id), gear.settings.lease_ttl_ms
        owner = f"{gear.process}#{gear.ids.token()}"
        claim = await gear.leases.acquire(key, owner, ttl_ms)
        young_ms: int | None = None
        if isinstance(claim, Young):
            young_ms = claim.ms_until_old
            head = await gear.store.head(scope, run_id)
            lost_commits = head is not None and head.revision < seen
            if head is None or not (head.has_work or lost_commits):
                return StepReport("idle")
            if head.mid_step and not lost_commits:
                await gear.store.postpone(scope, run_id, young_ms)
                return StepReport("young")
            claim = await gear.leases.acquire(key, owner, ttl_ms, force=True)
        if not isinstance(claim, Lease):
            await self._notice(key, scope, run_id)
            return StepReport("held")
        stop = Stop(gear.clock)
        loop = asyncio.get_running_loop()

        confirming: set[asyncio.Task[None]] = set()

        def confirm() -> None:
            confirming.add(loop.create_task(self._confirm_cancel(scope, run_id, stop)))

        def on_cancel() -> None:
            # The coroutine is made on the loop, so that none is left unbegun where the loop takes no more calls.
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(confirm)

        hold = gear.heartbeat.hold(
            claim, limit_ms=gear.settings.step_limit_ms, on_lost=stop.lose, on_cancel=on_cancel, label="step"
        )
        self._stops[key] = stop
        end: StepEnd = "crashed"
        bells: list[Bell] = []
        faults: list[DeuzError] = []
        again, broke_off = False, True
        try:
            end = await self._work(scope, run_id, seen, alone, claim, young_ms, hold, stop, bells, faults)
            broke_off = end in ("crashed", "over")
        finally:
            self._stops.pop(key, None)
            gear.heartbeat.drop(hold)
            if broke_off and self._leaves_calls(hold):
                log.warning("lease_left run=%s label=%s", run_id, hold.label)
            else:
                again = await self._release(hold, stop)
        if again and end in ("turn", "waiting", "held_back", "suspended", "idle") and not rings_for(bells, run_id):
            head = await gear.store.head(scope, run_id)
            # what was held back would be so again, but for what came meanwhile
            if head is not None and head.has_work and (end != "held_back" or head.wake_seq > head.seen_seq):
                bells.append(bell_of(head))
        return StepReport(end, tuple(bells), faults[0] if faults else None)

    async def _notice(self, key: str, scope: str, run_id: str) -> None:
        """Somebody rang for a run that this very process works on: if it was for a cancel, say so at once.

        The lease provider's signal, which reaches other processes, takes until the next heartbeat.
        """
        stop = self._stops.get(key)
        if stop is not None and not stop.is_cancelled and await self._cancel_waits(scope, run_id):
            stop.cancel()

    async def _confirm_cancel(self, scope: str, run_id: str, stop: Stop) -> None:
        """A signal only points at the inbox; one without a note ends nothing (LSE-008). Unread, the next commit tells."""
        with contextlib.suppress(StoreUnavailableError):
            if await self._cancel_waits(scope, run_id):
                stop.cancel()

    async def _cancel_waits(self, scope: str, run_id: str) -> bool:
        """The inbox holds a cancel that the run has not folded in."""
        head = await self.gear.store.head(scope, run_id)
        return head is not None and head.cancel_seq > head.seen_seq

    def _leaves_calls(self, hold: Hold) -> bool:
        """A sync tool of the step, or of its name, goes on in a thread, which nothing ends but the process.

        So the lease lapses instead of being given back: nobody begins the same effect beside it any sooner.
        """
        left = self.gear.threads.running()
        return any(left.get(name) for name in hold.label.split(","))

    async def _release(self, hold: Hold, stop: Stop) -> bool:
        """Give the lease back before anything is rung; True if somebody rang meanwhile or nobody can tell."""
        if stop.is_lost:
            return False
        try:
            released = await self.gear.leases.release(hold.lease)
        except LeaseStoreUnavailableError:
            return True
        return not isinstance(released, Gone) and released.again

    async def _work(
        self,
        scope: str,
        run_id: str,
        seen: int,
        alone: bool,
        lease: Lease,
        young_ms: int | None,
        hold: Hold,
        stop: Stop,
        bells: list[Bell],
        faults: list[DeuzError],
    ) -> StepEnd:
        gear = self.gear
        loaded, remembered = await self._load(scope, run_id)
        if loaded is None:
            if max(seen, lease.revision_seen):
                log.error("run_lost run=%s seen=%d", run_id, max(seen, lease.revision_seen))
            return "unknown_run"
        head = loaded.head
        seen = max(seen, lease.revision_seen, gear.histories.revision_of(head))
        if head.revision < seen and (left := await self._went_backwards(head, head.revision, seen, bells)):
            return left
        hold.saw(head.revision)
        if not head.has_work:
            return "idle"
        if head.status in FINAL and (left := await chat_after_end(gear, head, hold)):
            return left
        if head.status in FINAL and head.phase != "extracting":
            bells.extend(await cancel_children(gear, head))
            return "ended"
        if young_ms is not None and head.mid_step:
            # its holder is alive and began something between our look at the head and our claim; it renews soon
            await gear.store.postpone(scope, run_id, young_ms)
            return "young"
        definition = self._definition(head)
        if definition is None and head.kind != "swarm" and not head.is_to_end:
            return await self._pass_on(head, "nobody", member(head.agent), head.attempts, bells)
        attempts = head.attempts
        if lease.predecessor == "lapsed" or (head.mid_step and not await self._was_recorded(head)):
            taken_over = await self._record_unclean_end(head, head.revision, alone, found="taken over")
            if taken_over is None:
                return "over"
            attempts = taken_over
            log.warning("run_taken_over run=%s revision=%d attempts=%d", run_id, head.revision, attempts)
        # An extraction that is begun too often has failed; nothing of an ended run is parked.
        kept_away = None if head.status in FINAL else await self._keep_away(head, attempts, alone, bells)
        if kept_away is not None:
            return kept_away
        try:
            run = read_run(head, loaded.messages, loaded.receipts, remembered, whole=False)
            if not head.is_to_end:
                check_policies(loaded.notes)
        except (CheckpointVersionError, CodecError) as error:
            await gear.store.postpone(scope, run_id, gear.settings.unclean_back_off_max_ms)
            log.error("run_unreadable run=%s error=%s message=%s", run_id, error.code, error.message)
            faults.append(error)
            return "unreadable"
        if isinstance(definition, AgentDefinition):
            fits = self._bindings.match(run.envelope.agent_binding, definition)
            definition = self._inherited.of(definition, run) if fits else None
        if definition is None and head.kind != "swarm" and not head.is_to_end:
            return await self._pass_on(head, "other_build", member(head.agent, run.envelope.agent_binding), attempts, bells)
        if lacks_chat_store(gear, run):
            await self._put_off(head)
            return "other_build"
        if await only_chat_is_due(gear, head, run, hold):
            return "suspended"

        def applied(as_saved: Run, revision: int) -> None:
            hold.saw(revision)
            tell_commit(gear.sink, as_saved, revision)
            gear.telemetry.saved(as_saved)

        committer = Committer(
            gear.store, run, gear.clock, gear.ids, gear.settings.outcome_patience_ms, lambda: hold.state != "lost", applied
        )
        leg = Leg(gear, head, definition, committer, self._bindings, stop, hold, loaded.notes, loaded.items)
        end: StepEnd = "over"
        try:
            since_ms = await waits_since_ms(gear, head)
            with stop.expiring(head.until_in_ms), gear.telemetry.step(run, head.created_at_ms, since_ms):
                end = await advance(leg, gear.settings.step_turns)
                if end == "ended" and head.status not in FINAL and committer.run.envelope.phase == "extracting":
                    end = await self._extract(leg, bells)
        except StepOver as over:
            log.info("step_over run=%s why=%s", run_id, over.why)
            if hold.state == "lost":
                text = f"run {run_id!r} was taken over by another executor; look at its handle for what becomes of it"
                faults.append(AgentRunLeaseError(text, code="lease_lost", run_id=run_id))
            elif over.stored is not None and over.stored < committer.stored.envelope.revision:
                ended = await self._went_backwards(head, over.stored, committer.stored.envelope.revision, bells)
                return ended or "over"
            elif over.conflict:
                text = f"another executor wrote run {run_id!r} first, so nothing more was saved here; look at its handle"
                faults.append(RevisionConflictError(text, run_id=run_id))
        except StoreUnavailableError:
            raise
        except CatalogRefused as refused:
            log.warning("run_without_tools run=%s agent=%s error=%s", head.run_id, head.agent, refused.error.code)
            await self._put_off(head)
            faults.append(refused.error)
            end = "other_tools"
        except BaseException as error:  # a fault of ours must not end the worker and its other runs
            if isinstance(error, SystemExit | KeyboardInterrupt) or is_end_of(asyncio.current_task(), error):
                raise
            log.error("step_crashed run=%s error=%s at=%s", run_id, type(error).__name__, place_of(error))
            faults.append(error if isinstance(error, DeuzError) else DeuzError(f"the step crashed: {type(error).__name__}"))
            found = f"{type(error).__name__} at {place_of(error)}"
            await self._record_unclean_end(head, committer.stored.envelope.revision, alone, found=found)
            end = "crashed"
        bells.extend(leg.bells)
        projected = await chat_after_leg(gear, head, run, committer.run, hold) if end in ("suspended", "ended") else None
        await self._after(head, committer, end, bells, projected)
        return end

    async def _extract(self, leg: Leg, bells: list[Bell]) -> LoopEnd:
        """The run has ended, and what follows is done under the same lease; nobody else waits for that (MEM-014, LEA-008)."""
        bells.extend(leg.bells)
        leg.bells.clear()
        projected = await chat_after_leg(self.gear, leg.head, leg.committer.run, leg.committer.run, leg.hold)
        await self._after(leg.head, leg.committer, "ended", bells, projected)
        await ring_or_ripen(self.gear.store, self.gear.doorbell, bells)
        bells.clear()
        leg.committer.applied.clear()
        return await extract(leg)

    async def _pass_on(
        self, head: Head, end: Literal["nobody", "other_build"], wanted: str, attempts: int, bells: list[Bell]
    ) -> StepEnd:
        """The run goes to a build that can execute it, if one is at work; else it waits, looked at less and less often."""
        gear = self.gear
        queue = quarantine_queue(head.queue) if is_suspicious(attempts) else head.queue
        found = await gear.builds.find(queue, wanted)
        if found is not None:
            bells.append(replace(bell_of(head), queue=found))
            log.info("step_passed_on run=%s agent=%s queue=%s", head.run_id, head.agent, found)
            return end
        await self._put_off(head)
        event = "step_without_agent" if end == "nobody" else "binding_changed"
        log.warning("%s run=%s agent=%s", event, head.run_id, head.agent)
        return end

    async def _went_backwards(self, head: Head, stored: int, seen: int, bells: list[Bell]) -> StepEnd | None:
        """Park a run of which the store has lost commits: it is at `stored`, and `seen` was saved.

        None: it is not parked, because a cancel is unseen (it may go on, since it only ends) or somebody else moved it.
        """
        gear = self.gear
        gear.histories.forget(head.scope, head.run_id)
        parked = await gear.store.park(head.rid, stored, WENT_BACKWARDS, despite_notes=True, as_revision=revision_after(seen))
        log.error(
            "store_went_backwards run=%s agent=%s stored=%d seen=%d parked=%s", head.run_id, head.agent, stored, seen, parked
        )
        if not parked:
            return None if head.is_to_end else "over"
        await self._fill_key(head, bells)
        if head.swarm_rid is not None:
            bells.extend(await gear.store.fill_slots(head.swarm_rid))
        return "parked"

    async def _record_unclean_end(self, head: Head, revision: int, alone: bool, *, found: str) -> int | None:
        """The run's ends in a row with this one; None: the run is at another revision."""
        hands_over = is_suspicious(head.attempts + 1) and not alone  # to a process that need not wait for anything
        back_off_ms = 0 if hands_over else self._back_off_ms(head.attempts)
        evidence = {"found": found, "by": self.gear.process, "alone": alone, "revision": revision}
        body = json.dumps({**evidence, "mid_step": head.mid_step})
        return await self.gear.store.record_unclean_end(head.rid, revision, back_off_ms, body)

    async def _was_recorded(self, head: Head) -> bool:
        """The end that left the run in the middle of a turn was counted: by a step that crashed, or handed the run over."""
        ends = await self.gear.store.unclean_ends(head.scope, head.run_id) if head.attempts else ()
        return bool(ends) and json.loads(ends[-1].evidence).get("revision") == head.revision

    async def _keep_away(self, head: Head, attempts: int, alone: bool, bells: list[Bell]) -> StepEnd | None:
        """What becomes of a run whose steps ended unclean too often, before anything of it is decoded; None: go on.

        A cancelled run goes on, if nothing runs beside it: it only ends.
        """
        gear = self.gear
        if is_poisoned(attempts) and await gear.store.park(head.rid, head.revision, QUARANTINE, despite_notes=True):
            log.error("run_quarantined run=%s agent=%s attempts=%d", head.run_id, head.agent, attempts)
            await self._fill_key(head, bells)
            if head.swarm_rid is not None:
                bells.extend(await gear.store.fill_slots(head.swarm_rid))
            return "quarantined"
        if is_suspicious(attempts) and not alone:
            log.warning("run_suspicious run=%s agent=%s attempts=%d", head.run_id, head.agent, attempts)
            bells.append(replace(bell_of(head), queue=quarantine_queue(head.queue)))
            return "suspicious"
        return None

    async def _after(
        self, head: Head, committer: Committer, end: StepEnd, bells: list[Bell], projected: Projected | None
    ) -> None:
        """Collect what this step made due: its own next step, runs it woke, tasks that got the slot it gave back."""
        run = committer.run
        if end == "over":
            self.gear.histories.forget(head.scope, head.run_id)
        else:
            self.gear.histories.keep(committer.stored)
        for applied in committer.applied:
            bells.extend(applied.woken)
        last = committer.applied[-1] if committer.applied else None
        goes_on = not run.envelope.is_final or run.envelope.phase == "extracting"
        is_due = end == "drained" if last is None else last.due if projected is None else projected.due
        if is_due and goes_on and end in ("turn", "waiting", "suspended", "drained"):
            bells.append(replace(bell_of(head, committer.stored.envelope.revision), trace=run.envelope.trace))
        if end not in ("ended", "suspended", "parked"):
            return
        if last is not None and last.readied_swarm is not None:
            bells.extend(await self.gear.store.fill_slots(last.readied_swarm))
        if end == "ended" and run.has_children:
            bells.extend(await cancel_children(self.gear, head))
        await self._fill_key(head, bells)
        if head.swarm_rid is None:
            return
        bells.extend(await self.gear.store.fill_slots(head.swarm_rid))
        if end == "parked" or (last is not None and last.swarm_still):
            bells.extend(await settled(self.gear, head.swarm_rid))

    async def _fill_key(self, head: Head, bells: list[Bell]) -> None:
        """The slot of its concurrency key, which the run gave back just now, goes to another."""
        if head.slot_key is not None:
            bells.extend(await self.gear.store.fill_key(head.scope, head.slot_key))

    async def _load(self, scope: str, run_id: str) -> tuple[Loaded | None, Read | None]:
        store, histories = self.gear.store, self.gear.histories
        remembered = histories.find(scope, run_id)
        loaded = await store.load(scope, run_id, remembered.known if remembered else NOTHING_KNOWN)
        if loaded is None or remembered is None:
            return loaded, None
        if loaded.head.revision < histories.revision_of(loaded.head):
            return loaded, None  # it is not executed
        if histories.fits(remembered, loaded.head):
            return loaded, remembered.read
        histories.forget(scope, run_id)
        return await store.load(scope, run_id, NOTHING_KNOWN), None

    def _definition(self, head: Head) -> AgentDefinition | ReducerDefinition | None:
        registry = self.gear.registry
        return registry.reducer(head.agent) if head.kind == "reducer" else registry.agent(head.agent)

    async def _put_off(self, head: Head) -> None:
        """Nobody here can run it: it is looked at ever less often until somebody has."""
        settings = self.gear.settings
        least_ms, most_ms = settings.nobody_postpone_ms, settings.nobody_postpone_max_ms
        await self.gear.store.put_off(head.scope, head.run_id, least_ms, most_ms)

    def _back_off_ms(self, attempts: int) -> int:
        settings = self.gear.settings
        return min(settings.unclean_back_off_ms * 2 ** min(attempts, 20), settings.unclean_back_off_max_ms)
