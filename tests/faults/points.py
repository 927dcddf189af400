"""A worker gets SIGKILL before and after every kind of commit, and of write to its run's chat; another one brings the run to
its end.

``python -m tests.faults.points [POINT ...]`` goes through all points, or those named, over Postgres and Redis, with doorbells
delivered again by the broker and the sweep, and ends with 0 if every promise was kept:

* the worker died at its point, and the run completes with the answer of a run without faults;
* an effect that must not happen twice did not, unless a person allowed it for an effect that nobody knew of;
* a model that failed over was not called again;
* the chat of the run is what was said in it, and nothing of it is due any more.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deuz_workers import AgentResult, Chat, ResultTimeoutError
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.handle import Handle
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.app.settings import Settings
from deuz_workers.store import migrate
from tests import servers
from tests.faults.killing_store import POINTS
from tests.faults.point_agents import Answer, application
from tests.workers.pool import Pool, Worker

PATIENCE_S = 90.0
TTL_MS = 2_000


@dataclass
class Passage:
    """One run past one point. `broken`: promises that were not kept, in words."""

    point: str
    seconds: float = 0.0
    parked: int = 0
    allowed: Counter[str] = field(default_factory=Counter[str])
    """Effects that were unknown and were allowed to happen again, by tool."""
    broken: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        again = f", {self.allowed.total()} effects allowed again" if self.parked else ""
        return f"{self.point:18} {self.seconds:5.1f} s{again}" + "".join(f"\n  {text}" for text in self.broken)


def pass_point(pool: Pool, app: Deuz, point: str) -> Passage:
    """Start the worker that dies there, a run, and then a worker that lives; answer what is asked."""
    passage, began = Passage(point), time.monotonic()
    dying = pool.start("threads", concurrency=4, TEST_POINT=point)
    handle = app.enqueue("reference", "go", chat=Chat(f"killed {point}"))
    helper: Worker | None = None
    while True:
        if helper is None and dying.process.poll() is not None:
            helper = pool.start("threads", concurrency=4, wait=False)
        if time.monotonic() - began > PATIENCE_S:
            passage.broken.append(f"run {handle.run_id} is {handle.status()} after {PATIENCE_S} s")
            break
        try:
            result = handle.result(0.5)
        except ResultTimeoutError:
            continue
        if result.status in ("completed", "failed"):
            _judge(pool, handle, result, passage)
            if helper is None and point.endswith(" ended"):  # what follows the end is left to another one
                helper = pool.start("threads", concurrency=4)
            _judge_chat(app, handle, result, passage)
            break
        _answer(handle, result, passage)
    if dying.process.poll() is None and not (pool.traces / f"killed {point}").exists():
        passage.broken.append("no commit of that kind was made")
    for worker in (dying, helper):
        if worker is not None:
            worker.kill()
    passage.seconds = time.monotonic() - began
    return passage


def _answer(handle: Handle, result: AgentResult[Any], passage: Passage) -> None:
    """Allow what waits, bring the client's result, let unknown effects happen again."""
    if result.status == "stopped":
        passage.parked += 1
        for effect in result.unknown_effects:
            passage.allowed[effect.tool_name] += 1
        approved = {effect.approval_id: True for effect in result.unknown_effects if effect.approval_id}
        handle.retry([effect.effect_id for effect in result.unknown_effects], approvals=approved)
        return
    for item in handle.pending():
        handle.approve(item)
    for item in handle.pending_client_calls():
        handle.answer(item, "yes")


def _judge(pool: Pool, handle: Handle, result: AgentResult[Any], passage: Passage) -> None:
    if result.status != "completed" or result.output != Answer(4):
        passage.broken.append(f"run {handle.run_id} is {result.status}: {result.error}")
    for name, expected in (("send", 2), ("pay", 1)):
        mine = Counter(line for line in pool.lines(name) if line.startswith(f"{handle.run_id} "))
        if len(mine) != expected:
            passage.broken.append(f"{name} had {len(mine)} effects instead of {expected}")
        if mine.total() - len(mine) > passage.allowed[name]:
            passage.broken.append(f"{name} happened {mine.total()} times, {passage.allowed[name]} allowed again")
    if not any(line.startswith(f"{handle.run_id} ") for line in pool.lines("put")):
        passage.broken.append("put never happened")
    _judge_models(pool, handle, passage)


def _judge_chat(app: Deuz, handle: Handle, result: AgentResult[Any], passage: Passage) -> None:
    """It may be a moment behind the end of the run."""
    until = time.monotonic() + PATIENCE_S
    while (head := LOOP.run(app.store.head("default", handle.run_id))) is not None and head.has_work:
        if time.monotonic() > until:
            passage.broken.append("the chat of the run is due for ever")
            return
        time.sleep(0.05)
    record = LOOP.run(app.store.load_chat(f"killed {passage.point}"))
    said = None if record is None else record.messages
    if said != result.transcript:
        passage.broken.append(f"the chat is {said}, and what was said is {result.transcript}")
    elif record is not None and record.revision != 2:
        passage.broken.append(f"the chat was written {record.revision} times, for one suspension and one end")


def _judge_models(pool: Pool, handle: Handle, passage: Passage) -> None:
    """The model that went away was called before the run recorded it, and never after; the record says it once."""
    envelope = handle.envelope()
    failovers = list(envelope.models.failovers) if envelope.models is not None else []
    if [(each.failed.name, each.next.name, each.step) for each in failovers] != [("mock:first", "mock:second", 2)]:
        passage.broken.append(f"failed over by {failovers}")
        return
    rid = envelope.rid.hex
    called = [(int(step), int(attempt)) for own, step, attempt in map(str.split, pool.lines("first")) if own == rid]
    if len(set(called)) != len(called):
        passage.broken.append(f"the first model got one attempt twice: {called}")
    if max(called) > (2, failovers[0].attempt):
        passage.broken.append(f"the first model was called in {max(called)}, after it had failed over")


def pass_all(pool: Pool, points: Collection[str]) -> list[Passage]:
    """Every point with a run of its own, one after the other."""
    pool.module = "tests.faults.point_agents:app"
    app = application(pool.settings)
    passages: list[Passage] = []
    try:
        for point in points:
            passages.append(pass_point(pool, app, point))
            print(passages[-1], flush=True)
    finally:
        app.close()
    return passages


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.points", description=__doc__)
    parser.add_argument("points", nargs="*", metavar="POINT", help="such as 'after receipts'; all if none is given")
    given = parser.parse_args()
    os.environ["DEUZ_CONFIG"] = os.devnull
    with (
        servers.vanishing_folder() as folder,
        servers.shared_databases(folder) as databases,
        servers.shared_redis() as redis_url,
        databases.fresh(databases.migrated_template(migrate)) as dsn,
        tempfile.TemporaryDirectory() as here,
    ):
        settings = Settings(database_url=dsn, redis_url=redis_url, lease_ttl_ms=TTL_MS, sweep_interval_ms=500)
        pool = Pool(Path(here), settings)
        try:
            passages = pass_all(pool, given.points or POINTS)
        finally:
            pool.close()
    broken = sum(len(passage.broken) for passage in passages)
    print(f"{len(passages)} points, {broken} promises broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
