"""What keeps an effect from beginning although the run is ready for it: a brake that somebody set, a rate that is used up.

Asked ahead of the commit that would begin it, so nothing is reserved and no receipt says `executing`. The run is left as it is
and looked at again later, ever less often, up to a limit; a brake that is lifted brings it near at once.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from deuz_workers.core.brake import Begins
from deuz_workers.core.controls import Controls
from deuz_workers.core.effects import PlannedCall
from deuz_workers.core.events import Event, HistorySummarized, ModelCallFailed, ModelFailedOver, ModelReplied
from deuz_workers.core.memory_events import ExtractionPlanned
from deuz_workers.core.rate import Draw, RateName
from deuz_workers.engine.leg import Leg, LoopEnd
from deuz_workers.engine.tool_slots import NoSlot, ToolSlots
from deuz_workers.errors import StoreUnavailableError

BRAKED_MS = 250
"""Until the first look after a run met a brake, then twice as long each time, up to `BRAKED_MOST_MS`."""
BRAKED_MOST_MS = 60_000
BUSY_MOST_MS = 5_000
"""Between two looks of a run that waits for a slot of a tool."""
RATED_MOST_MS = 15_000
"""Between two looks of a run that waits for a rate, beyond what the rate itself says."""

log = logging.getLogger(__name__)


class HeldBack(Exception):
    """Nothing of this may begin now; nothing was written."""

    def __init__(self, by: str, least_ms: int, most_ms: int) -> None:
        super().__init__(by)
        self.by = by
        self.least_ms = least_ms
        self.most_ms = most_ms


async def check_brakes(leg: Leg, *, model: str | None = None, tools: Iterable[str] = ()) -> Controls:
    """Raises `HeldBack` under a brake that was set half a second ago or earlier."""
    controls = await read_controls(leg)
    if controls.brakes:
        head = leg.head
        begins = Begins(head.scope, head.agent, head.queue, model, frozenset(tools), leg.run.driver)
        if brake := begins.held_by(controls.brakes):
            raise HeldBack(str(brake), BRAKED_MS, BRAKED_MOST_MS)
    return controls


async def read_controls(leg: Leg) -> Controls:
    """Raises `StoreUnavailableError`; what was paid for is saved first, which waits longer, and then it is asked again."""
    gear = leg.gear
    try:
        return await gear.controls.read(gear.store, gear.clock)
    except StoreUnavailableError:
        if not await _save(leg):
            raise
    return await gear.controls.read(gear.store, gear.clock)


async def draw_for_model(leg: Leg, model: str, tokens: int, calls: int = 1) -> tuple[RateName, ...]:
    """Brakes and rates let this call, or so many, begin; names of the rates that were taken from. Raises `HeldBack`."""
    limited = await limited_by(leg, model)
    await _draw(leg, [Draw(name, calls, tokens) for name in limited])
    return limited


async def limited_by(leg: Leg, model: str) -> tuple[RateName, ...]:
    """Rates of a call of the model, which no brake holds. Raises `HeldBack`."""
    controls = await check_brakes(leg, model=model)
    names = [RateName("model", model)]
    if leg.head.slot_key is not None:
        names.append(RateName("key", leg.head.slot_key, leg.head.scope))
    return tuple(name for name in names if controls.is_limited(name))


async def draw_for_tools(leg: Leg, planned: Iterable[PlannedCall], slots: ToolSlots) -> None:
    """Brakes, rates and slots let these calls begin. Raises `HeldBack`."""
    calls = [one.call for one in planned if one.action != "project"]
    tools = [call.name for call in calls]
    controls = await check_brakes(leg, tools=tools)
    if controls.tool_slots:
        try:
            await slots.take(calls, controls.tool_slots)
        except NoSlot as busy:
            raise HeldBack(f"slots of tool {busy.tool}", busy.wait_ms, max(busy.wait_ms, BUSY_MOST_MS)) from None
    try:
        await _draw_for_tools(leg, controls, tools)
    except BaseException:
        for call in calls:
            slots.ended(call.call_id)
        raise


async def draw_for_delegated(leg: Leg, planned: Iterable[PlannedCall]) -> None:
    """Brakes and rates let other agents do these calls. Raises `HeldBack`.

    Slots of a tool are of calls that a process runs; how many runs of an agent there are at a time is for its concurrency key.
    """
    tools = [one.call.name for one in planned]
    await _draw_for_tools(leg, await check_brakes(leg, tools=tools), tools)


async def _draw_for_tools(leg: Leg, controls: Controls, tools: Sequence[str]) -> None:
    limited = {name: RateName("tool", name) for name in tools if RateName("tool", name) in controls.rates}
    counts = Counter(tools)
    await _draw(leg, [Draw(rate, counts[name]) for name, rate in sorted(limited.items())])


async def give_back(leg: Leg, names: tuple[RateName, ...], tokens: int) -> None:
    """The estimate of a call that was not sent, since its commit was refused. Of no consequence for the run."""
    if names:
        with contextlib.suppress(StoreUnavailableError):
            await leg.gear.store.give_rate(names, tokens)


async def settle_rates(leg: Leg, names: tuple[RateName, ...], tokens: int, event: Event | None) -> None:
    """Give back what a call did not use of its estimate; shut the rates of a provider that asks to wait.

    Of no consequence for the run: a store that is away is not waited for beyond its own patience.
    """
    if not names:
        return
    store = leg.gear.store
    with contextlib.suppress(StoreUnavailableError):
        if isinstance(event, ModelCallFailed | ModelFailedOver):
            if event.billed == "no":
                await store.give_rate(names, tokens)
            wait_ms = event.asked_wait_ms or (event.retry_in_ms if isinstance(event, ModelCallFailed) else 0)
            if event.kind in ("rate-limit", "overload") and wait_ms:
                await store.shut_rate(names, wait_ms)
        elif isinstance(event, ModelReplied | HistorySummarized | ExtractionPlanned) and event.usage is not None:
            await store.give_rate(names, tokens - event.usage.total_tokens)


async def hold_back(leg: Leg, held: HeldBack) -> LoopEnd:
    """The run waits, with what was paid for saved; whoever looks next begins where this one stopped."""
    await _save(leg)
    envelope, left_ms = leg.committer.run.envelope, leg.head.ends_in_ms
    most_ms = held.most_ms if left_ms is None else max(1, min(held.most_ms, left_ms - leg.stop.elapsed_ms))
    await leg.gear.store.put_off(envelope.scope, envelope.run_id, min(held.least_ms, most_ms), most_ms)
    log.info("run_held_back run=%s by=%s", envelope.run_id, held.by)
    return "held_back"


async def _save(leg: Leg) -> bool:
    """What is carried, where somebody paid for it; inputs that were only read are read again. True: there was something.

    A run that stays in the middle of a turn is written only for outcomes: whoever loads it next would take another revision of
    it for another unclean end.
    """
    if leg.carried and leg.run.envelope.status != "queued" and (leg.run.unsaved.progress or not leg.run.is_mid_step):
        await leg.commit()
        return True
    return False


async def _draw(leg: Leg, draws: Sequence[Draw]) -> None:
    if not draws:
        return
    try:
        wait_ms = await leg.gear.store.take_rate(draws)
    except StoreUnavailableError:
        await _save(leg)
        raise
    if wait_ms:
        raise HeldBack(", ".join(f"rate of {draw.of}" for draw in draws), wait_ms, max(wait_ms, RATED_MOST_MS))
