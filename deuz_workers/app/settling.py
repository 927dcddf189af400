"""A word about a parked run: which interrupted calls may run again, and what became of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from deuz_workers.app.access import Access, not_found
from deuz_workers.app.results import UnknownEffect, unknown_effects
from deuz_workers.core.change import FINAL, Head
from deuz_workers.core.codec import encode
from deuz_workers.core.unclean_ends import QUARANTINE
from deuz_workers.errors import CheckpointVersionError, CodecError, ConfigurationError


async def read_effects(access: Access, scope: str, run_id: str) -> tuple[Head, tuple[UnknownEffect, ...]]:
    """The run's head, and the calls whose effect nobody knows; of a record that cannot be read, none.

    Raises `RunNotFoundError`.
    """
    loaded = await access.store.load(scope, run_id)
    if loaded is None:
        raise not_found(scope, run_id)
    try:
        return loaded.head, unknown_effects(loaded)
    except (CodecError, CheckpointVersionError):
        return loaded.head, ()


async def settle(
    access: Access,
    scope: str,
    run_id: str,
    *,
    retry: Iterable[str] | None,
    outputs: Mapping[str, object],
    errors: Mapping[str, str],
) -> tuple[str, ...]:
    """Store what is said and ring the run; returns the calls that run again. `retry` None: all that nothing is said about.

    Complete or of no effect: raises `ConfigurationError` where the run is not parked, a call was not interrupted or is named
    twice, or one is left open; `RunNotFoundError`.
    """
    head, effects = await read_effects(access, scope, run_id)
    if head.parked is None:
        raise ConfigurationError(f"run {run_id!r} is {_way_out(head)}", code="not_parked")
    unknown = [effect.tool_call_id for effect in effects]
    said = [*outputs, *errors]
    again = tuple(call_id for call_id in unknown if call_id not in said) if retry is None else tuple(retry)
    _check(run_id, unknown, [*again, *said])
    note = None
    if again or head.parked == QUARANTINE or not said:
        # First, since only the note that frees the run sets its unclean ends back.
        note = await access.store.add_note(scope, run_id, "retry", encode({"tool_call_ids": list(again)}))
    if said:
        results = {call_id: {"output": output} for call_id, output in outputs.items()}
        results |= {call_id: {"output": text, "is_error": True} for call_id, text in errors.items()}
        note = await access.store.add_note(scope, run_id, "reconcile", encode({"results": results}))
    if note is None:
        raise ConfigurationError(f"run {run_id!r} has ended meanwhile; nothing was changed", code="not_parked")
    bells = [note.bell]
    if head.swarm_rid is not None:  # its task waits for a slot again
        bells.extend(await access.store.fill_slots(head.swarm_rid))
    await access.ring(bells)
    return again


def _way_out(head: Head) -> str:
    """Of a run that is not parked."""
    if head.status in FINAL:
        return f"{head.status}, and only parked runs can be freed; enqueue it again under another run id"
    return f"{head.status} and not parked, so nothing is to be settled; wait for its result"


def _check(run_id: str, unknown: list[str], named: list[str]) -> None:
    known = ", ".join(map(repr, unknown)) or "none"
    for call_id in named:
        if call_id not in unknown:
            raise ConfigurationError(f"tool call {call_id!r} of run {run_id!r} was not interrupted; interrupted are {known}")
        if named.count(call_id) > 1:
            raise ConfigurationError(f"tool call {call_id!r} is named twice; it either runs again or has an outcome, once")
    if left := [call_id for call_id in unknown if call_id not in named]:
        raise ConfigurationError(
            f"run {run_id!r} goes on once all its interrupted calls are settled; say in the same command what becomes of "
            f"{', '.join(map(repr, left))}"
        )
