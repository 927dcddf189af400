"""A word about a parked run: which interrupted calls may run again, and what became of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from deuz_workers.app.access import Access, not_found
from deuz_workers.app.narrowing import store_policy
from deuz_workers.app.results import UnknownEffect, effects_of
from deuz_workers.app.settling_below import Parked, divided, parked_below, unnamed
from deuz_workers.app.verdicts import NO_VERDICTS, Verdicts, verdicts_of
from deuz_workers.app.words import Words, note_body, refuse, token_is_good
from deuz_workers.core.change import FINAL, Bell, Head
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.run import Run, read_run
from deuz_workers.core.unclean_ends import QUARANTINE
from deuz_workers.errors import CheckpointVersionError, CodecError, ReconciliationError


async def read_effects(access: Access, scope: str, run_id: str) -> tuple[UnknownEffect, ...]:
    """Calls of a parked run whose effect nobody knows; of a record that cannot be read, none.

    Raises `RunNotFoundError`.
    """
    head, run = await _read(access, scope, run_id)
    if run is None or head.parked is None:
        return ()
    return effects_of(run, await access.signing())


async def settle(
    access: Access,
    scope: str,
    run_id: str,
    *,
    retry: Iterable[str] | None,
    outputs: Mapping[str, object],
    errors: Mapping[str, str],
    approvals: Verdicts = NO_VERDICTS,
    policy: ExecutionPolicy | None = None,
) -> tuple[str, ...]:
    """Store what is said and ring the run; returns the calls that run again. `retry` None: all that nothing is said about.
    `policy` narrows the run and is stored before.

    Complete or of no effect, and one note: raises `ReconciliationError`, whose `part` says what does not match, where the run
    is not parked, a call was not interrupted or is named twice, or one is left open; `RunNotFoundError`. A run that waits for
    parked ones below it takes words about their calls, of each such run all or none.
    """
    head, run = await _read(access, scope, run_id)
    below = () if head.parked is not None else await parked_below(access, head)
    if head.parked is None and not below:
        raise ReconciliationError(f"run {run_id!r} is {_way_out(head)}", code="not_parked", part="run")
    said = {name: {"output": output} for name, output in outputs.items()}
    for name, text in errors.items():
        if name in said:
            refuse("call", f"tool call {name!r} is named twice; it either returned something or failed")
        said[name] = {"output": text, "is_error": True}
    given = Words(() if retry is None else tuple(retry), said, verdicts_of(approvals))
    if below:
        if retry is None:
            given = replace(given, retry=unnamed(below, given))
        divided(below, given)
        if policy is not None:
            await store_policy(access.store, scope, run_id, policy)
        return await settle_below(access, scope, below, given)
    if run is None:
        if given.any:
            refuse("call", f"the record of run {run_id!r} cannot be read here, so nothing can be said of its calls")
        again, body = (), "{}"
    else:
        if retry is None:
            given = replace(given, retry=given.left(run))
        again, body = await _checked(access, given, run)
    # What is said is one note, so that all of it arrives or nothing; a retry sets the unclean ends of the run back.
    if policy is not None:
        await store_policy(access.store, scope, run_id, policy)
    kind = "retry" if again or head.parked == QUARANTINE or not said else "reconcile"
    note = await access.store.add_note(scope, run_id, kind, body)
    if note is None:
        raise ReconciliationError(f"run {run_id!r} has ended meanwhile; nothing was changed", code="not_parked", part="run")
    bells = [note.bell]
    if head.swarm_rid is not None:  # its task waits for a slot again
        bells.extend(await access.store.fill_slots(head.swarm_rid))
    await access.ring(bells)
    return again


async def settle_below(access: Access, scope: str, below: Iterable[Parked], given: Words) -> tuple[str, ...]:
    """Store what is said about calls of these runs, one note for each, and ring them; the calls that run again.

    Everything is checked before anything is written; a death in here leaves runs of which nothing is said yet. Raises
    `ReconciliationError`.
    """
    runs = {one.run_id: one.run for one in below}
    checked = {name: await _checked(access, words, runs[name]) for name, words in divided(below, given).items()}
    bells: list[Bell] = []
    for name, (again, body) in checked.items():
        note = await access.store.add_note(scope, name, "retry" if again else "reconcile", body)
        bells.extend(() if note is None else (note.bell,))
    await access.ring(bells)
    return tuple(call_id for again, _ in checked.values() for call_id in again)


async def _read(access: Access, scope: str, run_id: str) -> tuple[Head, Run | None]:
    """None where this build cannot read the record."""
    loaded = await access.store.load(scope, run_id)
    if loaded is None:
        raise not_found(scope, run_id)
    try:
        return loaded.head, read_run(loaded.head, loaded.messages, loaded.receipts)
    except (CodecError, CheckpointVersionError):
        return loaded.head, None


async def _checked(access: Access, given: Words, run: Run) -> tuple[tuple[str, ...], str]:
    """Ids of the calls that run again, and the body of the note."""
    run_id, words = run.envelope.run_id, given.about(run)
    if left := given.left(run):
        refuse(
            "call",
            f"run {run_id!r} goes on once all its interrupted calls are settled; say in the same command what becomes of "
            f"{', '.join(map(repr, left))}",
        )
    for name in given.unused_verdicts(run):
        refuse("approval", f"the verdict on {name!r} is on no call of run {run_id!r} that runs again")
    signing = await access.signing() if any(word.verdict for word in words) else None
    for word in words:
        if signing is not None and not token_is_good(word, run, signing):
            refuse("token", f"the token of call {word.call_id!r} is missing, not one of ours, expired, or of another request")
    return tuple(word.call_id for word in words if word.again), note_body(words)


def _way_out(head: Head) -> str:
    """Of a run that is not parked."""
    if head.status in FINAL:
        return f"{head.status}, and only parked runs can be freed; enqueue it again under another run id"
    return f"{head.status} and not parked, so nothing is to be settled; wait for its result"
