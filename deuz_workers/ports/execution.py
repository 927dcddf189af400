"""The execution context of a run: its bounds, and what ties a run to it that is started in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from deuz_workers.core.limits import Limits
from deuz_workers.core.memory import MemoryScope
from deuz_workers.core.policy import NO_POLICY, ExecutionPolicy
from deuz_workers.core.shared_budget import NO_LIMIT, SharedBudget, shared_keys
from deuz_workers.core.usage import Budget
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.signal import Signal

MAX_NAME_CHARS = 64
"""Of one part of a path; the whole key of a part of a ledger has up to 200."""


@dataclass(frozen=True, slots=True)
class Link:
    """What holds runs to the one above while code of that one executes; of this process, and never stored."""

    application: object
    """Whose process executes the run above: a run in its context is stored where it is."""
    signal: Signal
    """Of the call or question for which the context was made: what ends that ends the runs in its context."""
    left_ms: Callable[[], int | None]
    """Until the deadline of the run above, now; None: it has none."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The bounds that a run is executed in.

    Give it, or better a child of it, to the runs that a tool or a verifier starts: ``run_agent(..., execution=ctx.execution
    .child("a"))``. They are charged to the ledger of this run, held to its policy and deadline, and end with it.
    """

    limits: Limits = field(default_factory=Limits)
    budget_scopes: tuple[str, ...] = ()
    """That its model calls reserve in, deepest first."""
    policy: ExecutionPolicy = NO_POLICY
    scope: str = ""
    run_id: str = ""
    root: str = ""
    """Id of the topmost run."""
    depth: int = 0
    """Of the run below the topmost one."""
    scope_id: str = ""
    """Path of this part of the ledger, from the run's id on: `job`, and `job/a` of a child."""
    shared: tuple[SharedBudget, ...] = ()
    """What runs in this context are also charged to, beside those of `budget_scopes` that belong to the tree."""
    ledger_key: str = ""
    """Budget scope of this part of the ledger."""
    memory: MemoryScope | None = None
    """Whose memories the run has: runs in its context have those, or those of fewer."""
    active: list[MemoryScope] = field(default_factory=lambda: list[MemoryScope](), repr=False, compare=False)
    """Of runs that were given this very object and have not ended, in the order in which they were started."""
    link: Link | None = field(default=None, repr=False, compare=False)

    def child(self, name: str, *, policy: ExecutionPolicy | None = None, budget: Budget | None = None) -> Execution:
        """A context for runs that are started in this one, which together are the part `name` of its ledger.

        It allows what this one and `policy` allow, and `budget` is what its runs together may use, beside all budgets above.
        The same name gives the same part. Nothing is written. Raises `ConfigurationError` for what cannot be meant.
        """
        is_name = isinstance(name, str) and name.isprintable() and 1 <= len(name) <= MAX_NAME_CHARS  # pyright: ignore[reportUnnecessaryIsInstance] - what users pass
        if not is_name or "/" in name or "#" in name:
            raise ConfigurationError(
                f"a child of an execution context has a name of up to {MAX_NAME_CHARS} characters without '/' and '#', not "
                f"{name!r}"
            )
        key = f"{self.ledger_key}/{name}"
        part = SharedBudget(key, budget or NO_LIMIT, inherited=True)
        return replace(
            self,
            policy=self.policy.narrowed(policy),
            scope_id=f"{self.scope_id}/{name}",
            ledger_key=key,
            shared=(*(one for one in self.shared if one.key != key), part),
            active=[],
        )

    @property
    def widest_memory(self) -> MemoryScope | None:
        """Whose memories the next run in this context may have, or those of fewer (MEM-028, MEM-029)."""
        return self.active[-1] if self.active else self.memory

    def charged(self, *own: SharedBudget) -> tuple[tuple[str, ...], tuple[SharedBudget, ...]]:
        """Budget scopes of a run in this context, without one of its own, and what it holds those of them to that are shared.

        Raises `ConfigurationError` where the run names one of `own` that the context is charged to already.
        """
        shared = {one.key: one for one in self.shared}
        if twice := sorted(shared.keys() & {one.key for one in own}):
            raise ConfigurationError(f"the context is charged to {', '.join(twice)} already; leave it out, or take another key")
        together = tuple(sorted((*shared.values(), *own), key=lambda one: one.key))
        tree = tuple(key for key in self.budget_scopes if key not in shared)
        return (*tree, *shared_keys(together)), together
