"""Making a new run that goes on from a turn of another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from deuz_workers.app.access import Access, not_found
from deuz_workers.app.agent import Agent
from deuz_workers.app.conversation import Content, first_messages
from deuz_workers.app.names import check_id, check_name, check_run_id
from deuz_workers.app.order import budget_record, message_rows
from deuz_workers.core.change import Bell, MessageRow
from deuz_workers.core.codec import digest, encode
from deuz_workers.core.envelope import AgentRunEnvelope, encode_body
from deuz_workers.core.fork import FORKED, forked, place_of
from deuz_workers.core.messages import message_to_record
from deuz_workers.core.names import run_scope_key
from deuz_workers.core.run import read_run
from deuz_workers.core.usage import Budget, check_budget
from deuz_workers.errors import ForkRefusedError, RunExistsError
from deuz_workers.ports.store import Loaded, RunStore
from deuz_workers.ports.whole_run import JournalRow, WholeRun

JOURNAL_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Fork:
    """From which turn, and what of the new run is its own."""

    turn: int
    run_id: str | None = None
    """None: a new one."""
    prompt: Content | None = None
    queue: str | None = None
    """None: that of the first run."""
    budget: Budget | None = None
    """None: as much as the first run may spend, anew; without a limit of its own the agent's. What both share, they share."""


async def fork(access: Access, agents: Mapping[str, Agent], name: tuple[str, str], wanted: Fork) -> str:
    """Write the new run and ring for it; its id. Asking again for the same under an id gives the run that is there.

    Raises `ForkRefusedError`, `RunExistsError`, `RunNotFoundError`, `ConfigurationError`; nothing was written then.
    """
    scope, run_id = check_id("a scope", name[0]), check_id("a run id", name[1])
    if wanted.run_id is not None:
        check_run_id(wanted.run_id)
    if wanted.queue is not None:
        check_name("a queue", wanted.queue)
    if type(wanted.turn) is not int or wanted.turn < 0:
        raise ForkRefusedError(f"a turn is a whole number from 0, not {wanted.turn!r}", run_id=run_id)
    loaded = await access.store.load(scope, run_id)
    if loaded is None:
        raise not_found(scope, run_id)
    if loaded.head.kind != "agent":
        raise ForkRefusedError(f"run {run_id!r} is a {loaded.head.kind}; only runs of agents are forked", run_id=run_id)
    own = await access.store.balance(run_scope_key(loaded.head.rid))
    limit = wanted.budget or (None if own is None else own.limit)
    new = _new_run(access, agents, loaded, await journal_of(access.store, loaded), replace(wanted, budget=limit))
    created = await access.store.insert_run(new)
    if not created.created and not created.same_input:
        raise RunExistsError(
            f"run id {new.run_id!r} belongs to another run ({created.status}); choose another one", run_id=new.run_id
        )
    if created.created:
        await access.ring([Bell(scope, new.run_id, new.queue, 0, new.priority, new.agent)])
    return new.run_id


async def journal_of(store: RunStore, loaded: Loaded) -> tuple[JournalRow, ...]:
    """All rows that the loaded head knows of. Raises `RunNotFoundError` where the run is gone."""
    head, rows = loaded.head, list[JournalRow]()
    while len(rows) < head.journal_seq:
        page = await store.journal(head.scope, head.run_id, len(rows), min(JOURNAL_PAGE, head.journal_seq - len(rows)))
        if not page:  # pruned meanwhile
            raise not_found(head.scope, head.run_id)
        rows += page
    return tuple(rows)


def _new_run(
    access: Access, agents: Mapping[str, Agent], loaded: Loaded, journal: tuple[JournalRow, ...], wanted: Fork
) -> WholeRun:
    head, turn = loaded.head, wanted.turn
    run = read_run(head, loaded.messages, loaded.receipts)
    if (parent := run.envelope.parent) is not None:  # guardrails and approver of those above are functions, kept in no record
        raise ForkRefusedError(
            f"run {head.run_id!r} was delegated by {parent.run_id!r}, and what guards it there would not guard a fork of it; "
            f"fork {parent.root or parent.run_id!r}",
            run_id=head.run_id,
        )
    if (nested := run.envelope.nested) is not None:
        raise ForkRefusedError(
            f"run {head.run_id!r} was started within {nested.run_id!r}, whose ledger it is charged to; fork {nested.root!r}",
            run_id=head.run_id,
        )
    place = place_of(run.envelope, (row.body for row in journal), turn)
    said = () if wanted.prompt is None else first_messages(wanted.prompt, None)
    known = agents.get(head.agent)
    budget = wanted.budget or (known.budget if known else None)
    if budget is not None:
        check_budget("this run", budget)
    rid = access.ids.rid()
    run_id = wanted.run_id or str(rid)
    above = tuple(key for key in run.envelope.scopes if key != run_scope_key(head.rid))
    scopes = (() if budget is None else (run_scope_key(rid),)) + above
    history = (*tuple(run.transcript)[: place.last_seq + 1], *said)
    begins = AgentRunEnvelope(rid, head.scope, run_id, "agent", head.agent, scopes=scopes, shared=run.envelope.shared)
    envelope = forked(run.envelope, turn, history, begins)
    given = message_rows([message_to_record(message) for message in said])
    kept = tuple(row for row in loaded.messages if 0 <= row.seq <= place.last_seq)
    first = len(kept)
    asked = {"fork": [head.run_id, turn], "prompt": [message_to_record(message) for message in said]}
    return WholeRun(
        rid,
        head.scope,
        run_id,
        "agent",
        head.agent,
        encode_body(envelope),
        "queued",
        envelope.last_seq,
        (*kept, *(MessageRow(first + row.seq, row.body) for row in given)),
        tuple(row for row in loaded.receipts if row.step <= turn),
        (JournalRow(1, encode({"type": FORKED, "from": head.run_id, "turn": turn}), 0),),
        queue=wanted.queue or head.queue,
        priority=head.priority,
        model_step=turn,
        concurrency_key=head.slot_key,
        is_due=True,
        input_digest=digest({**asked, "budget": budget_record(budget)}),
        budget=budget,
    )
