"""A run as a file: everything that is stored of it, under a checksum.

The checksum finds what was altered or cut off; it is no signature, so a file is as trustworthy as where it comes from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, cast
from uuid import UUID

from deuz_workers.app.access import Access, not_found
from deuz_workers.app.file_values import check_values
from deuz_workers.app.forking import journal_of
from deuz_workers.core.change import FINAL, ItemRow, MessageRow, ReceiptRow
from deuz_workers.core.codec import decode, digest, encode
from deuz_workers.core.compaction import Compaction
from deuz_workers.core.envelope import READABLE_VERSIONS, decode_body
from deuz_workers.core.messages import message_from_record
from deuz_workers.core.names import run_scope_key
from deuz_workers.core.receipts import fold_receipts
from deuz_workers.core.shared_budget import SharedBudget, shared_keys
from deuz_workers.core.transcript import HistoryRewrite, given_in_rows
from deuz_workers.core.usage import Budget
from deuz_workers.errors import CodecError, ConfigurationError, RunExistsError, RunFileError
from deuz_workers.ports.budgets import ScopeBalance
from deuz_workers.ports.whole_run import JournalRow, WholeRun

FORMAT = "deuz-run"
PLAIN, WITH_BUDGETS = 1, 2
"""Versions of the format. The second one is of a run that is charged to budgets which others share: what these have left is not
in the file, so that it can go on only where they are."""
IMPORTED = "imported"
"""Why a run that had not ended is parked after an import: it may still be at work where it comes from."""
_DECIDED_HERE = ("is_due", "input_digest")
_ROWS: Mapping[str, type[Any]] = {"messages": MessageRow, "receipts": ReceiptRow, "journal": JournalRow, "items": ItemRow}


async def export_run(access: Access, scope: str, run_id: str) -> str:
    """The run as of one moment.

    Raises `RunNotFoundError`; `ConfigurationError` for a swarm, a run that waits for others below it, and unseen inputs.
    """
    store = access.store
    loaded = await store.load(scope, run_id)
    if loaded is None:
        raise not_found(scope, run_id)
    head = loaded.head
    if head.kind != "agent":
        raise ConfigurationError(f"run {run_id!r} is a {head.kind}; runs of agents are exported one by one")
    if head.waits_for_children:
        raise ConfigurationError(
            f"run {run_id!r} waits for runs that it delegated, which are no part of its file; export it once they have ended"
        )
    if head.status not in FINAL and head.wake_seq > head.seen_seq:
        raise ConfigurationError(f"run {run_id!r} has inputs that it has not taken in; export it once it has")
    if head.phase == "extracting":
        raise ConfigurationError(f"what run {run_id!r} leaves in the memory is being extracted; export it once that has ended")
    run = WholeRun(
        head.rid,
        scope,
        run_id,
        "agent",
        head.agent,
        head.body,
        head.status,
        head.last_seq,
        loaded.messages,
        loaded.receipts,
        await journal_of(store, loaded),
        loaded.items,
        head.queue,
        head.priority,
        head.phase,
        head.version,
        head.revision,
        head.epoch,
        head.mid_step,
        head.tokens,
        head.cost_micros,
        head.model_step,
        await store.tags(scope, run_id),
        head.slot_key,
        head.created_at_ms,
        head.parked,
        budget=_left(await store.balance(run_scope_key(head.rid))),
        compactions=head.compactions,
        folded_from=head.folded_from,
        folded_to=head.folded_to,
        folded_step=head.folded_step,
    )
    record = _record_of(run)
    version = WITH_BUDGETS if _shared(decode_body(head.body)) else PLAIN
    stamp = {"format": FORMAT, "format_version": version, "checksum": f"sha256:{digest(record)}"}
    return json.dumps({**stamp, "run": record}, indent=1) + "\n"


async def import_run(access: Access, text: str) -> tuple[str, str]:
    """Write the run of a file, under its own scope and id, which it returns. One that has not ended is parked as `imported`.

    Raises `RunFileError` for a file that is altered or none of ours, and for a run that has not ended and is charged to budgets
    which this store does not have; `RunExistsError`. Nothing was written then.
    """
    run = _checked(text)
    rid = access.ids.rid()
    body = _with_own_rows(decode_body(run.body))
    for name in ("scopes", "chat", "transcript"):  # the conversation stays that of the run that was exported
        body.pop(name, None)
    if isinstance(bound := body.get("binding"), Mapping):
        body["binding"] = {name: value for name, value in cast("Mapping[str, object]", bound).items() if name != "chat"}
    if run.status not in FINAL:
        shared = _shared(body)
        await _check_budgets(access, run, shared)
        scopes = (() if run.budget is None else (run_scope_key(rid),)) + shared_keys(shared)
        body |= {"scopes": list(scopes)} if scopes else {}
    here = replace(
        run,
        rid=rid,
        body=encode(body),
        parked=None if run.status in FINAL else IMPORTED,
        items=() if run.status in FINAL else run.items,
        budget=None if run.status in FINAL else run.budget,
        input_digest=digest(text),
    )
    created = await access.store.insert_run(here)
    if not created.created:
        raise RunExistsError(
            f"run id {run.run_id!r} is taken ({created.status}), and an import replaces nothing", run_id=run.run_id
        )
    return run.scope, run.run_id


def _with_own_rows(body: Mapping[str, object]) -> dict[str, object]:
    """The file has the messages of the newest epoch: what its memory counts is counted in these. Raises `RunFileError`."""
    try:
        memory = cast("Mapping[str, Any]", body.get("memory", {}))
        rewrites = tuple(map(HistoryRewrite.from_record, cast("list[Mapping[str, object]]", body.get("transcript", []))))
        if not rewrites or memory.get("given") is None:
            return {**body}
        return {**body, "memory": {**memory, "given": given_in_rows(rewrites, memory["given"])}}
    except (ValueError, KeyError, TypeError, AttributeError, CodecError) as error:
        raise RunFileError(f"the file is no exported run of this build ({type(error).__name__})") from None


def _shared(body: Mapping[str, object]) -> tuple[SharedBudget, ...]:
    """Budgets that the run of this body shares with others. Raises `ConfigurationError`, `KeyError`, `TypeError`."""
    return tuple(map(SharedBudget.from_record, cast("list[Mapping[str, object]]", body.get("shared", []))))


async def _check_budgets(access: Access, run: WholeRun, shared: tuple[SharedBudget, ...]) -> None:
    """Raises `RunFileError` where the run would begin anew what others have spent from already."""
    for budget in shared:
        found = await access.store.balance(budget.key)
        if found is None:
            raise RunFileError(
                f"run {run.run_id!r} is charged to the budget {budget.key!r}, which this store does not have; import it where "
                "that is kept, or set it here before (`deuz budget set`)"
            )
        if not (budget.as_stored or budget.inherited) and found.window != budget.window:
            raise RunFileError(f"run {run.run_id!r} is charged to the budget {budget.key!r}, which has another window here")


def _left(balance: ScopeBalance | None) -> Budget | None:
    """What the run may still spend."""
    if balance is None:
        return None

    def left(name: str) -> int | None:
        limit = getattr(balance.limit, name)
        if limit is None:
            return None
        return max(0, limit - sum(getattr(part, name) or 0 for part in (balance.spent, balance.held, balance.unknown)))

    return Budget(left("tokens"), left("usd_micros"))


def _record_of(run: WholeRun) -> dict[str, Any]:
    record = {field.name: getattr(run, field.name) for field in fields(run)}
    for name in _DECIDED_HERE:
        record.pop(name)
    rows = {name: [[getattr(row, column.name) for column in fields(row)] for row in record[name]] for name in _ROWS}
    budget = None if run.budget is None else [run.budget.tokens, run.budget.usd_micros]
    return {**record, **rows, "rid": run.rid.hex, "tags": dict(run.tags), "budget": budget}


def _checked(text: str) -> WholeRun:
    """The run of a file, which a build like this one can go on with. Raises `RunFileError`."""
    try:
        document = json.loads(text)
        if not isinstance(document, dict) or cast(Mapping[str, Any], document).get("format") != FORMAT:
            raise RunFileError("the file holds no exported run")
        given = cast(Mapping[str, Any], document)
        if given["format_version"] not in (PLAIN, WITH_BUDGETS):
            raise RunFileError(
                f"the file has format version {given['format_version']!r}; this build reads {PLAIN} and {WITH_BUDGETS}"
            )
        record = cast("dict[str, Any]", given["run"])
        if given["checksum"] != f"sha256:{digest(record)}":
            raise RunFileError("the file was altered or cut off: its checksum does not fit; export the run again")
        if not record.keys().isdisjoint(_DECIDED_HERE):
            raise RunFileError(f"the file says what an import decides: {', '.join(_DECIDED_HERE)}; export the run again")
        rows = {name: tuple(kind(*row) for row in cast(Sequence[Any], record[name])) for name, kind in _ROWS.items()}
        budget = record["budget"]
        values: dict[str, Any] = {**record, **rows, "rid": UUID(hex=record["rid"])}
        values["budget"] = None if budget is None else Budget(*budget)
        run = WholeRun(**values)
        check_values(run)
        if run.version not in READABLE_VERSIONS:
            raise RunFileError(f"the run has record version {run.version}; upgrade deuz_workers")
        if given["format_version"] == WITH_BUDGETS and not _shared(decode_body(run.body)):
            raise RunFileError("the file says that its run shares budgets, and names none; export the run again")
        for row in run.messages:
            if row.seq >= 0:
                message_from_record(decode(row.body))
            else:
                Compaction.from_record(-row.seq, decode(row.body))
        fold_receipts(run.receipts)
    except RunFileError:
        raise
    except ConfigurationError as error:
        raise RunFileError(f"the file holds no run that can be stored: {error.message}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, CodecError) as error:
        raise RunFileError(f"the file is no exported run of this build ({type(error).__name__})") from None
    return run
