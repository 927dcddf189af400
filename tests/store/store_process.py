"""One process of the tests with several: `python -m tests.store.store_process VERB URL ...`, which answers in lines of JSON.

It says `ready`, waits for a line, and then does what its verb says, so that several begin together.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from deuz_workers.core.change import Applied
from deuz_workers.ports.store import NewRun
from deuz_workers.store import SqlStore, open_store
from deuz_workers.testing.store_conformance_bench import change_from, message, new_rid


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


async def create(store: SqlStore, place: str) -> None:
    """Create `run-<place>` of the scope `scope`; whether it was."""
    run = NewRun(new_rid(), "scope", f"run-{place}", "agent", "writer", "{}")
    say((await store.create(run)).created)


async def commit(store: SqlStore, scope: str, run_id: str, upto: str) -> None:
    """Commit from the stored head, again and again, until the run has the revision `upto`; the revisions that were ours."""
    ours: list[int] = []
    while True:
        head = await store.head(scope, run_id)
        assert head is not None
        if head.revision >= int(upto):
            return say(ours)
        text = f"{os.getpid()}"
        outcome = await store.commit(change_from(head, messages=(message(head.last_seq + 1, text),), journal=(text,)))
        if isinstance(outcome, Applied):
            ours.append(outcome.revision)


async def append(store: SqlStore, scope: str, run_id: str, count: str) -> None:
    """Make `count` commits of a run that nobody else writes; how many were applied."""
    applied = 0
    for _ in range(int(count)):
        head = await store.head(scope, run_id)
        assert head is not None
        applied += isinstance(await store.commit(change_from(head, body="x" * 1_000)), Applied)
    say(applied)


async def answer(store: SqlStore, scope: str, run_id: str, item_id: str) -> None:
    """Answer an item with our process id; whether it was stored, and the answer that counts."""
    own = str(os.getpid())
    answered = await store.answer_item(scope, run_id, item_id, own)
    assert answered is not None
    say([answered.stored, own if answered.stored else answered.winner, answered.bell is not None])


async def die(store: SqlStore, scope: str, run_id: str) -> None:
    """Commit, say the revision, and be killed on the spot."""
    head = await store.head(scope, run_id)
    assert head is not None
    outcome = await store.commit(change_from(head, messages=(message(head.last_seq + 1, "last words"),), journal=("died",)))
    assert isinstance(outcome, Applied)
    say(outcome.revision)
    os.kill(os.getpid(), signal.SIGKILL)


VERBS = {"create": create, "commit": commit, "append": append, "answer": answer, "die": die}


async def main(verb: str, url: str, *given: str) -> None:
    store = open_store(url)
    say("ready")
    sys.stdin.readline()
    await VERBS[verb](store, *given)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
