"""Words about interrupted calls of delegated runs, given at a run above: each goes to the run whose call it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deuz_workers.app.access import Access
from deuz_workers.app.words import Words, refuse
from deuz_workers.core.change import Head
from deuz_workers.core.reconciliation import approval_id_of, arguments_of, effect_id, unknown_effects
from deuz_workers.core.run import Run, read_run
from deuz_workers.errors import CheckpointVersionError, CodecError


@dataclass(frozen=True, slots=True)
class Parked:
    """A delegated run that waits for words about its calls."""

    run_id: str
    run: Run

    @property
    def names(self) -> frozenset[str]:
        """Of its interrupted calls: their ids, and their effect ids."""
        found = unknown_effects(self.run)
        return frozenset(name for receipt in found for name in (receipt.call_id, self.effect_of(receipt.call_id)))

    @property
    def approvals(self) -> frozenset[str]:
        """Under which a verdict on one of them may stand."""
        asked = (approval_id_of(self.run, receipt.call_id) for receipt in unknown_effects(self.run))
        return self.names | {name for name in asked if name is not None}

    def effect_of(self, call_id: str) -> str:
        receipt = next(receipt for receipt in unknown_effects(self.run) if receipt.call_id == call_id)
        return effect_id(self.run.envelope.run_id, receipt, arguments_of(self.run, call_id))


async def parked_below(access: Access, head: Head) -> tuple[Parked, ...]:
    """Those below `head`, at any depth, whose records this build can read."""
    if not head.waits_for_children:
        return ()
    found: list[Parked] = []
    for below in (await access.store.tree(head.scope, head.run_id))[1:]:
        loaded = None if below.parked is None else await access.store.load(head.scope, below.run_id)
        try:
            run = None if loaded is None else read_run(loaded.head, loaded.messages, loaded.receipts)
        except (CodecError, CheckpointVersionError):
            continue
        if run is not None and unknown_effects(run):
            found.append(Parked(below.run_id, run))
    return tuple(found)


def divided(parked: Iterable[Parked], given: Words) -> Mapping[str, Words]:
    """What `given` says about each of these runs, by id; complete for every run that it says something about.

    Raises `ReconciliationError` for a name that fits no interrupted call below, or calls of several runs, and where one of a
    run's calls is left open.
    """
    parked = tuple(parked)
    owners = {name: _owner(name, parked) for name in (*given.retry, *given.results)}
    found: dict[str, Words] = {}
    for one in parked:
        mine = {name for name, owner in owners.items() if owner is one}
        if not mine:
            continue
        words = Words(
            tuple(name for name in given.retry if name in mine),
            {name: record for name, record in given.results.items() if name in mine},
            {name: verdict for name, verdict in given.verdicts.items() if name in one.approvals},
        )
        words.about(one.run)
        if left := words.left(one.run):
            refuse(
                "call", f"run {one.run_id!r} goes on once all its interrupted calls are settled; {', '.join(left)} is left open"
            )
        found[one.run_id] = words
    return found


def unnamed(parked: Iterable[Parked], given: Words) -> tuple[str, ...]:
    """Effect ids of all interrupted calls of these runs that nothing is said about."""
    named = set(given.results) | set(given.retry)
    return tuple(
        effect
        for one in parked
        for receipt in unknown_effects(one.run)
        if not {effect := one.effect_of(receipt.call_id), receipt.call_id} & named
    )


def _owner(name: str, parked: tuple[Parked, ...]) -> Parked:
    owners = [one for one in parked if name in one.names]
    if len(owners) > 1:
        refuse("call", f"{name!r} is a call of {', '.join(one.run_id for one in owners)}; say its effect id")
    if not owners:
        known = ", ".join(sorted(repr(name) for one in parked for name in one.names if "@" in name)) or "none"
        refuse("call", f"{name!r} is no interrupted call of a run below; interrupted are {known}")
    return owners[0]
