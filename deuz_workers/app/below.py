"""What runs below another one wait for, as whoever looks at that one sees it."""

from __future__ import annotations

from dataclasses import replace

from deuz_workers.app.pending import PendingApproval, PendingClientCall, Signing, pending_approvals, pending_client_calls
from deuz_workers.app.results import NOTHING_BELOW, Below, UnknownEffect, effects_of
from deuz_workers.core.change import Head
from deuz_workers.core.run import read_run
from deuz_workers.ports.store import RunStore
from deuz_workers.ports.tree import TreeRun, only_waits, paths_in


async def read_below(store: RunStore, head: Head, signing: Signing | None) -> Below:
    """Of all runs that `head` waits for, at any depth, each under the path of its agents.

    Raises `CheckpointVersionError` or `CodecError` for a parked one of another build.
    """
    if not head.waits_for_children:
        return NOTHING_BELOW
    return await below_of(store, head.scope, await store.tree(head.scope, head.run_id), signing)


async def below_of(store: RunStore, scope: str, tree: tuple[TreeRun, ...], signing: Signing | None) -> Below:
    """`tree`: the run that was looked at, and all below it."""
    paths = paths_in(tree)
    approvals: list[PendingApproval] = []
    client_calls: list[PendingClientCall] = []
    effects: list[UnknownEffect] = []
    for run in tree[1:]:
        path = paths[run.rid]
        approvals.extend(pending_approvals(run.items, signing, scope, path))
        client_calls.extend(pending_client_calls(run.items, scope, path))
        if run.parked is not None and (loaded := await store.load(scope, run.run_id)) is not None:
            found = effects_of(read_run(loaded.head, loaded.messages, loaded.receipts), signing)
            effects.extend(replace(effect, agent_path=path) for effect in found)
    return Below(tuple(approvals), tuple(client_calls), tuple(effects))


async def reports(store: RunStore, head: Head) -> bool:
    """The run has something to report, by itself or because all below it only waits for somebody outside."""
    if head.has_report or not head.waits_for_children or head.has_work:
        return head.has_report
    return only_waits(await store.tree(head.scope, head.run_id))
