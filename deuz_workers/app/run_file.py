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
from deuz_workers.core.usage import Budget
from deuz_workers.errors import CodecError, ConfigurationError, RunExistsError, RunFileError
from deuz_workers.ports.budgets import ScopeBalance
from deuz_workers.ports.whole_run import JournalRow, WholeRun

FORMAT, FORMAT_VERSION = "deuz-run", 1
IMPORTED = "imported"
"""Why a run that had not ended is parked after an import: it may still be at work where it comes from."""
_DECIDED_HERE = ("is_due", "input_digest")
_ROWS: Mapping[str, type[Any]] = {"messages": MessageRow, "receipts": ReceiptRow, "journal": JournalRow, "items": ItemRow}


async def export_run(access: Access, scope: str, run_id: str) -> str:
    """The run as of one moment. Raises `RunNotFoundError`; `ConfigurationError` for a swarm, and for unseen inputs."""
    store = access.store
    loaded = await store.load(scope, run_id)
    if loaded is None:
        raise not_found(scope, run_id)
    head = loaded.head
    if head.kind != "agent":
        raise ConfigurationError(f"run {run_id!r} is a {head.kind}; runs of agents are exported one by one")
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
    stamp = {"format": FORMAT, "format_version": FORMAT_VERSION, "checksum": f"sha256:{digest(record)}"}
    return json.dumps({**stamp, "run": record}, indent=1) + "\n"


async def import_run(access: Access, text: str) -> tuple[str, str]:
    """Write the run of a file, under its own scope and id, which it returns. One that has not ended is parked as `imported`.

    Raises `RunFileError` for a file that is altered or none of ours; `RunExistsError`. Nothing was written then.
    """
    run = _checked(text)
    rid = access.ids.rid()
    body = {**decode_body(run.body)}
    for name in ("scopes", "chat", "transcript"):  # the conversation stays that of the run that was exported
        body.pop(name, None)
    if isinstance(bound := body.get("binding"), Mapping):
        body["binding"] = {name: value for name, value in cast("Mapping[str, object]", bound).items() if name != "chat"}
    if run.budget is not None and run.status not in FINAL:
        body["scopes"] = [run_scope_key(rid)]
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
        if given["format_version"] != FORMAT_VERSION:
            raise RunFileError(f"the file has format version {given['format_version']!r}; this build reads {FORMAT_VERSION}")
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
        decode_body(run.body)
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
