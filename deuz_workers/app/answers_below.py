"""Answers given at a run to what those below it wait for."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from deuz_workers.core.change import Bell, Head, ItemAnswer
from deuz_workers.core.pending_item import read_call_items
from deuz_workers.errors import AnswerConflictError
from deuz_workers.ports.store import Loaded, RunStore

if TYPE_CHECKING:
    from deuz_workers.app.answers import Answers
    from deuz_workers.app.pending import Signing


async def hand_in_below(store: RunStore, head: Head, answers: Answers, signing: Signing | None) -> tuple[Bell, ...]:
    """Store what `answers` say about items of delegated runs, if that leaves none of them open (APR-017); who goes on.

    An item's id names its run too. The id of a call alone counts where one open item of the tree has it. Raises
    `AnswerConflictError` where somebody was faster, `CheckpointVersionError` or `CodecError` for a run of another build; what
    was stored of runs before that one stays.
    """
    if not head.waits_for_children:
        return ()
    found: list[tuple[Loaded, list[ItemAnswer]]] = []
    waiting = [run for run in (await store.tree(head.scope, head.run_id))[1:] if run.items]
    asked = Counter(call_id for run in waiting for call_id in {item.binding.call_id for item in read_call_items(run.items)})
    ambiguous = frozenset(call_id for call_id, count in asked.items() if count > 1)
    for run in waiting:
        loaded = await store.load(head.scope, run.run_id)
        if loaded is None or loaded.head.status != "suspended":
            continue
        given = answers.given(loaded, signing, ambiguous)
        if given is None:
            return ()
        found.append((loaded, given))
    bells: list[Bell] = []
    for loaded, given in found:
        answered = await store.answer_items(head.scope, loaded.head.run_id, given) if given else None
        if answered is not None and not answered.stored:
            raise AnswerConflictError(
                f"an item of run {loaded.head.run_id!r} was answered or has expired meanwhile; resume again with what is still "
                "pending",
                run_id=loaded.head.run_id,
                item_id=answered.item_id,
            )
        if answered is not None and answered.bell is not None:
            bells.append(answered.bell)
    return tuple(bells)
