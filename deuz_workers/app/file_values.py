"""What the values of a run from a file have to be before any of them reaches the store."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Any, NoReturn, get_args

from deuz_workers.app.names import check_id, check_name, is_keepable
from deuz_workers.app.order import check_tags
from deuz_workers.core.change import ItemKind, ItemRow, MessageRow, Phase, ReceiptRow, RunStatus, Stage
from deuz_workers.core.usage import check_budget
from deuz_workers.errors import RunFileError
from deuz_workers.ports.whole_run import JournalRow, WholeRun

MOST, MOST_IN_ALL = 2**31 - 1, 2**53
"""Columns that count within a run have 32 bits in Postgres; in the others the next number has to fit as well."""
LAST_MS = 253_402_300_799_999
"""The end of the year 9999, where the clocks of Python end."""


def check_values(run: WholeRun) -> None:
    """Every database can keep them, and neither messages nor journal have a gap. Raises `ConfigurationError`."""
    check_id("a scope", run.scope)
    check_id("a run id", run.run_id)
    check_id("an agent", run.agent)
    check_name("a queue", run.queue)
    if run.concurrency_key is not None:
        check_id("a concurrency key", run.concurrency_key)
    _one_of("kind", run.kind, ("agent",))
    _one_of("status", run.status, get_args(RunStatus))
    _one_of("phase", run.phase, get_args(Phase))
    _number("version", run.version, MOST)
    _number("priority", run.priority, 100, least=-100)
    for name in ("epoch", "last_seq", "model_step", "compactions", "folded_from", "folded_to", "folded_step"):
        _number(name, getattr(run, name), MOST)
    for name in ("revision", "tokens"):
        _number(name, getattr(run, name), MOST_IN_ALL)
    if run.cost_micros is not None:
        _number("cost_micros", run.cost_micros, MOST_IN_ALL)
    if run.created_at_ms is not None:
        _number("created_at_ms", run.created_at_ms, LAST_MS)
    if type(run.mid_step) is not bool:
        _refuse("mid_step")
    check_tags(run.tags)
    if run.budget is not None:
        check_budget("the run of the file", run.budget)
    _check_rows(run)


def _check_rows(run: WholeRun) -> None:
    for row in run.messages:
        _message(row)
    for row in run.receipts:
        _receipt(row)
    for row in run.journal:
        _event(row)
    for row in run.items:
        _item(row)
    _distinct("messages", (row.seq for row in run.messages))
    _distinct("receipts", ((row.step, row.call_id, row.seq) for row in run.receipts))
    _distinct("items", (row.item_id for row in run.items))
    if sorted(row.seq for row in run.messages if row.seq >= 0) != list(range(run.last_seq + 1)):
        _refuse("messages")
    if [row.seq for row in run.journal] != list(range(1, len(run.journal) + 1)):
        _refuse("journal")


def _message(row: MessageRow) -> None:
    _number("messages", row.seq, MOST, least=-MOST)
    _text("messages", row.body)


def _receipt(row: ReceiptRow) -> None:
    _number("receipts", row.step, MOST)
    _number("receipts", row.seq, MOST)
    _one_of("receipts", row.stage, get_args(Stage))
    _text("receipts", row.call_id)
    _text("receipts", row.body)


def _event(row: JournalRow) -> None:
    _number("journal", row.seq, MOST_IN_ALL)
    _number("journal", row.at_ms, LAST_MS)
    _text("journal", row.body)


def _item(row: ItemRow) -> None:
    _one_of("items", row.kind, get_args(ItemKind))
    for text in (row.item_id, row.body, *(text for text in (row.digest, row.answer, row.votes) if text is not None)):
        _text("items", text)
    for moment in (row.expires_in_ms, row.remind_in_ms, row.escalate_in_ms):
        if moment is not None:
            _number("items", moment, LAST_MS, least=-LAST_MS)


def _number(name: str, value: object, most: int, *, least: int = 0) -> None:
    if type(value) is not int or not least <= value <= most:
        _refuse(name)


def _text(name: str, value: object) -> None:
    if not isinstance(value, str) or not is_keepable(value):
        _refuse(name)


def _one_of(name: str, value: object, known: Collection[Any]) -> None:
    if not isinstance(value, str) or value not in known:
        _refuse(name)


def _distinct(name: str, keys: Iterable[Hashable]) -> None:
    seen = list(keys)
    if len(set(seen)) < len(seen):
        _refuse(name)


def _refuse(name: str) -> NoReturn:
    raise RunFileError(f"the file holds no run that can be stored: its {name!r} is none; export the run again")
