"""`python -m tests.simulation`: play schedules and print those that fail."""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext

from deuz_workers.store import migrate
from deuz_workers.testing.virtual.two_sessions import TwoSessions, postgres_of
from tests import servers
from tests.simulation.plan import crowded_plan_of, plan_of
from tests.simulation.schedule import Verdict, play


def main() -> int:
    """Exit status 1 if a schedule failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--trace", action="store_true", help="print what arrives at servers, and the log of the processes")
    parser.add_argument("--first", type=int, default=0, help="the first seed of a range")
    parser.add_argument("--count", type=int, default=5_000, help="how many seeds")
    parser.add_argument("--stop", action="store_true", help="end with the first failure")
    parser.add_argument("--processes", type=int, default=1, help="share the seeds among so many")
    parser.add_argument("--postgres", action="store_true", help="on two sessions of a real Postgres")
    given = parser.parse_args()
    if given.processes > 1 and given.seed is None:
        return share(given.first, given.count, given.processes, ["--postgres"] * given.postgres + ["--stop"] * given.stop)
    with two_sessions() if given.postgres else nullcontext() as sessions:
        return play_all(given, sessions)


def share(first: int, count: int, processes: int, options: list[str]) -> int:
    """Each process plays as many; exit status 1 if a schedule failed in any."""
    began, at = time.monotonic(), first
    started: list[subprocess.Popen[bytes]] = []
    for number in range(processes):
        many = count // processes + (number < count % processes)
        command = [sys.executable, "-m", "tests.simulation", "--first", str(at), "--count", str(many), *options]
        started.append(subprocess.Popen(command))
        at += many
    failed = max(process.wait() for process in started)
    print(f"{count} schedules from {first} on {processes} processes in {time.monotonic() - began:.1f} s")
    return failed


@contextmanager
def two_sessions() -> Generator[TwoSessions]:
    """On a Postgres of this process' own, or the given one of `DEUZ_DATABASE_URL`."""
    with (
        servers.vanishing_folder() as folder,
        servers.shared_databases(folder) as databases,
        databases.fresh(databases.migrated_template(migrate)) as url,
    ):
        sessions = TwoSessions(url)
        try:
            yield sessions
        finally:
            sessions.close()


def play_all(given: argparse.Namespace, sessions: TwoSessions | None) -> int:
    """Exit status 1 if a schedule failed."""
    if given.seed is not None:
        if given.trace:
            logging.basicConfig(level=logging.INFO, format="       %(message)s", stream=sys.stdout)
        verdict = play_one(given.seed, print if given.trace else None, sessions)
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
        verdict = play_one(seed, None, sessions)
        spent[verdict.plan.kind] += round((time.monotonic() - at) * 1e6)
        ends += verdict.ends
        deaths += verdict.deaths
        if verdict.wrong:
            failed += 1
            print(verdict, flush=True)
            if given.stop:
                break
    took = time.monotonic() - began
    print(f"{given.count} schedules in {took:.1f} s, {failed} failed, {deaths} deaths, steps {dict(ends)}")
    if sessions is not None:
        print(f"{sessions.overlaps} statements beside an open transaction, {sessions.waits} of them waited for its locks")
    print({kind: round(us / 1e6, 2) for kind, us in spent.items()})
    return 1 if failed else 0


def play_one(seed: int, trace: Callable[[str], None] | None, sessions: TwoSessions | None) -> Verdict:
    """On SQLite in memory, or on Postgres with others who work on the same runs."""
    if sessions is None:
        return play(plan_of(seed), trace)
    return play(crowded_plan_of(seed), trace, postgres_of(sessions, seed))


if __name__ == "__main__":
    raise SystemExit(main())
