"""What came from outside, taken into a leg: notes of the inbox, answers, items whose time has passed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from itertools import takewhile

from deuz_workers.core.change import NoteRow
from deuz_workers.core.events import NotesFolded, PolicyNarrowed, Waited
from deuz_workers.engine.committer import CancelFirst, StepOver
from deuz_workers.engine.delegating import narrow_children
from deuz_workers.engine.inputs import behind_outcomes, behind_reply, check_policies, fold_notes, with_tokens_checked
from deuz_workers.engine.leg import Leg
from deuz_workers.engine.taken_answers import ended_children, expired_answers, next_expiry_ms, take_answers
from deuz_workers.engine.weight import HEAVY_SIZE
from deuz_workers.errors import CodecError, StoreUnavailableError
from deuz_workers.ports.definition import NO_TOOLS, AgentDefinition
from deuz_workers.ports.store import Loaded

log = logging.getLogger(__name__)

AGAIN_MS = 200
"""Between two looks at a store that is away."""


async def take_in(leg: Leg) -> None:
    """Carry the inputs that were loaded, and the answers of a suspension whose every item was answered."""
    envelope = leg.committer.run.envelope
    if not envelope.is_final and leg.head.wake_seq > envelope.seen_seq:
        folded = with_tokens_checked(fold_notes(leg.notes, leg.head.wake_seq), leg.run, leg.gear.signer)
        if folded.policy is not None and leg.head.waits_for_children:
            leg.bells.extend(await narrow_children(leg.gear, leg.run, folded.policy, folded.shared))
        leg.carry(folded)
    if envelope.status != "suspended" or not leg.items:
        return
    tools = leg.definition.tools if isinstance(leg.definition, AgentDefinition) else NO_TOOLS
    if any(item.answer is None for item in leg.items):
        if leg.run.envelope.cancelled or leg.ending_by_time(leg.run):
            leg.carry(*ended_children(leg.items, leg.run, tools))
    else:
        given = (leg.items, leg.run, tools, leg.gear.signer)
        heavy = sum(len(item.answer or "") for item in leg.items) > HEAVY_SIZE
        leg.carry(*(await asyncio.to_thread(take_answers, *given) if heavy else take_answers(*given)))


async def close_expired(leg: Leg) -> bool:
    """Answer the items whose time has passed, as anybody would from outside; True: the run goes on from there."""
    envelope = leg.committer.run.envelope
    answers = expired_answers(leg.items) if envelope.status == "suspended" else ()
    if not answers or leg.head.is_to_end:
        return False
    answered = await leg.gear.store.answer_items(envelope.scope, envelope.run_id, answers)
    log.info("items_expired run=%s items=%d", envelope.run_id, len(answers))
    if answered is None or not answered.stored:
        raise StepOver("its expired items were answered meanwhile")
    if answered.swarm_rid is not None:
        leg.bells.extend(await leg.gear.store.fill_slots(answered.swarm_rid))
    if answered.bell is not None:
        leg.bells.append(answered.bell)
    if answered.open_items:
        with contextlib.suppress(CancelFirst):  # whoever cancelled has rung for the run
            await leg.commit(Waited(leg.sooner_ms(next_expiry_ms(leg.items))))
    return True


def judge_old_receipts(leg: Leg) -> None:
    """A receipt that records whether its tool is idempotent decides alone; one without the field is judged by the tool
    that is registered now (IDM-004)."""
    if not isinstance(leg.definition, AgentDefinition):
        return
    run, tools = leg.committer.run, leg.definition.tools
    unmarked = [receipt for receipt in run.interrupted if receipt.idempotent is None and receipt.tool in tools]
    allowed = frozenset(receipt.call_id for receipt in unmarked if tools[receipt.tool].replay == "idempotent")
    if allowed:
        leg.committer.run = replace(run, judged_idempotent=allowed)


def narrow_policy(leg: Leg) -> None:
    """What the run may do as stored, and what its agent allows here, together; a wider agent changes nothing."""
    envelope = leg.run.envelope
    if not isinstance(leg.own, AgentDefinition) or envelope.is_final or envelope.status == "suspended":
        return
    policy = envelope.policy.narrowed(leg.own.policy)
    if policy != envelope.policy:
        leg.carry(PolicyNarrowed(policy))


async def fold_inbox(leg: Leg) -> None:
    """Read the inbox and carry what it says, behind older notes and ahead of everything else that is carried."""
    leg.stop.cancel_noticed()
    envelope = leg.run.envelope
    loaded = await load_again(leg)
    if loaded is None:
        raise StepOver("the run is gone")
    leg.head = loaded.head
    fresh = tuple(note for note in loaded.notes if note.seq > envelope.seen_seq)
    if not loaded.head.is_to_end:
        await _check_policies(leg, fresh)
    if loaded.head.wake_seq > envelope.seen_seq:
        # What was written first is heard first.
        older = tuple(takewhile(lambda event: isinstance(event, NotesFolded), leg.carried))
        folded = with_tokens_checked(fold_notes(fresh, loaded.head.wake_seq), leg.run, leg.gear.signer)
        rest = leg.carried[len(older) :]
        said_later = behind_reply(leg.committer.run, older, folded, rest) or behind_outcomes(older, folded, rest)
        leg.carried = said_later or (*older, folded, *rest)


async def _check_policies(leg: Leg, fresh: tuple[NoteRow, ...]) -> None:
    """Raises `StepOver` for what `check_policies` refuses, with everything saved that has happened: the run waits as it would
    have, had the note been there when it was loaded."""
    try:
        check_policies(fresh)
    except CodecError as error:
        await leg.commit()
        raise StepOver("what narrows it cannot be read here") from error


async def load_again(leg: Leg) -> Loaded | None:
    """The run with its newest notes. In the middle of a step this waits for a store that is away as long as a commit does:
    given up here, what the step began would be found by the next one as if this process had died."""
    gear, envelope = leg.gear, leg.run.envelope
    until_ms = gear.clock.monotonic_ms() + gear.settings.outcome_patience_ms
    while True:
        try:
            return await gear.store.load(envelope.scope, envelope.run_id, gear.known(leg.committer.run))
        except StoreUnavailableError:
            if not leg.committer.stored.is_mid_step or gear.clock.monotonic_ms() >= until_ms:
                raise
        if leg.stop.is_lost:
            raise StepOver("the lease is gone")
        await gear.clock.sleep_ms(AGAIN_MS)
