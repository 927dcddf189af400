"""What the tools of `effect_agents` did, read from the files that they append to, beside everything that a store says."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from deuz_workers.app.results import UnknownEffect
from tests.workers.pool import Pool


def sends_of(turns: int) -> int:
    """Sends that a run of so many turns asks for."""
    return sum(turn % 3 != 0 for turn in range(1, turns + 1))


@dataclass(frozen=True)
class Effects:
    """Counted by run, turn and call."""

    sends: Counter[str]
    """Must not happen twice."""
    puts: Counter[str]
    """May happen again under the same key."""
    keys: dict[str, set[str]]
    """Of each put."""

    @classmethod
    def of(cls, pool: Pool) -> Effects:
        puts: Counter[str] = Counter()
        keys: dict[str, set[str]] = defaultdict(set)
        for line in pool.lines("put"):
            effect, _, key = line.rpartition(" ")
            puts[effect] += 1
            keys[effect].add(key)
        return cls(Counter(pool.lines("send")), puts, keys)

    def has_sent(self, run_id: str, effect: UnknownEffect) -> bool:
        return f"{run_id} {effect.step} {effect.tool_call_id}" in self.sends

    def broken(self) -> Iterable[str]:
        """Promises about single effects that were not kept, in words."""
        yield from (f"sent {count} times: {effect}" for effect, count in self.sends.items() if count > 1)
        yield from (f"put under {len(found)} keys: {effect}" for effect, found in self.keys.items() if len(found) > 1)
