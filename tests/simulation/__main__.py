"""`python -m tests.simulation`: play schedules and print those that fail."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from tests.simulation.plan import plan_of
from tests.simulation.schedule import play


def main() -> int:
    """Exit status 1 if a schedule failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--trace", action="store_true", help="print what arrives at servers, and the log of the processes")
    parser.add_argument("--first", type=int, default=0, help="the first seed of a range")
    parser.add_argument("--count", type=int, default=5_000, help="how many seeds")
    parser.add_argument("--stop", action="store_true", help="end with the first failure")
    given = parser.parse_args()
    if given.seed is not None:
        if given.trace:
            logging.basicConfig(level=logging.INFO, format="       %(message)s", stream=sys.stdout)
        verdict = play(plan_of(given.seed), print if given.trace else None)
        print(verdict)
        print(f"  {verdict.turns} callbacks, {verdict.passed_ms} ms passed, steps {dict(verdict.ends)}")
        print("FAILED" if verdict.wrong else "held")
        return 1 if verdict.wrong else 0
    began, failed = time.monotonic(), 0
    ends: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    deaths = 0
    for seed in range(given.first, given.first + given.count):
        at = time.monotonic()
        plan = plan_of(seed)
        verdict = play(plan)
        spent[plan.kind] += round((time.monotonic() - at) * 1e6)
        ends += verdict.ends
        deaths += verdict.deaths
        if verdict.wrong:
            failed += 1
            print(verdict, flush=True)
            if given.stop:
                break
    took = time.monotonic() - began
    print(f"{given.count} schedules in {took:.1f} s, {failed} failed, {deaths} deaths, steps {dict(ends)}")
    print({kind: round(us / 1e6, 2) for kind, us in spent.items()})
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
