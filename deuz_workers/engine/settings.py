"""Numbers that steer an engine. All times in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

NO_LIMITS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EngineSettings:
    lease_ttl_ms: int = 30_000
    """A dead worker's run is taken over when this has passed since its last heartbeat."""
    step_limit_ms: int = 1_800_000
    """Past it nobody vouches for a step any more (architecture D8)."""
    step_turns: int = 1
    """Turns that one step may take; more saves the way through the broker and lets other runs wait longer."""
    alone: bool = True
    """This process executes nothing beside a step, so that whatever ends it speaks against that step's run."""
    unclean_back_off_ms: int = 1_000
    """Doubled with every unclean end in a row, up to `unclean_back_off_max_ms`."""
    unclean_back_off_max_ms: int = 300_000
    outcome_patience_ms: int = 600_000
    """How long an outcome of an effect is offered to a store that cannot be reached."""
    retry_base_ms: int = 500
    """Wait before the first repeat of a failed model call; doubled each time, with jitter, up to `retry_max_ms`."""
    retry_max_ms: int = 60_000
    rerun_base_ms: int = 30_000
    """Wait before a run that failed for a passing cause is taken up again by itself; doubled each time, with jitter, up to
    `rerun_max_ms` (`Limits.max_reruns`)."""
    rerun_max_ms: int = 3_600_000
    history_cache_bytes: int = 64_000_000
    """Recent histories that a process keeps, in bytes of content."""
    nobody_postpone_ms: int = 250
    """A run that nobody who is known of can run is looked at again after this, then ever less often, up to
    `nobody_postpone_max_ms`, and at once when a worker comes that can (`RunStore.hasten`)."""
    nobody_postpone_max_ms: int = 300_000
    concurrency_limits: Mapping[str, int] = field(default_factory=lambda: NO_LIMITS)
    """Slots of concurrency keys that nobody has set in the store; of others 1."""
    budget_warn_percent: int | None = None
    """Of every limit that has no threshold of its own; None: only of those that have one."""
    unknown_prices: Literal["refuse", "allow"] = "refuse"
    """A call of a model without a known price under a limit in dollars: refused, or admitted with its money uncounted."""
    cascade_batch: int = 500
    """Most tasks that one commit of a cascade changes (SWM-033)."""
