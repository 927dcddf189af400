"""What a build of an application can run, and where it is rung (architecture D16).

Two builds work side by side during every deploy. Each announces the agents that it knows under the bindings that it has, and
takes from a queue of its own beside the ones it shares, so that a doorbell which met the wrong build goes on to the right one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from deuz_workers.core.catalog import without_catalog
from deuz_workers.core.codec import digest

SEPARATOR = "@"
"""Between a queue and a build; names of queues have none."""
NAME_DIGITS = 12
"""Of a digest: enough to keep the builds of one deployment apart."""


@dataclass(frozen=True, slots=True)
class Build:
    name: str
    members: tuple[str, ...]
    """What it can run, as `member` spells it."""

    def queue(self, queue: str) -> str:
        """Its own queue beside the shared one."""
        return f"{queue}{SEPARATOR}{self.name}"


def build_of(bindings: Mapping[str, Mapping[str, object]], reducers: Collection[str]) -> Build:
    """The build with these agents, by name with their bindings, and these reducers.

    Processes with the same agents and bindings are the same build, whatever else of their code differs.
    """
    runnable = [member(name) for name in (*bindings, *reducers)] + [member(name, found) for name, found in bindings.items()]
    members = tuple(sorted(runnable))
    return Build(digest(members)[:NAME_DIGITS], members)


def member(name: str, binding: Mapping[str, object] | None = None) -> str:
    """An agent or reducer as builds announce it: under the binding that a run began with; None: of a run that has not begun.

    What tool servers offer is no part of it: it changes without a build.
    """
    return digest({"name": name, "binding": None if binding is None else without_catalog(binding)})


def shared_queue(queue: str) -> str:
    """The queue beside which a build's own one stands; any other queue itself."""
    return queue.partition(SEPARATOR)[0]
