"""Log lines as text or JSON, with run, turn and attempt, and without what libraries put into theirs.

Ours are events: a name in the past and key-values (docs/observability.md). What others log are sentences that quote: pydantic
its input, psycopg the key in `DETAIL`, httpx addresses, tracebacks all of these. Of exceptions only classes and places are
written; of sentences, addresses without account and query, and nothing that looks like a secret.
"""

from __future__ import annotations

import json
import logging
import os
import re
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from deuz_workers.core.redaction import redact
from deuz_workers.engine.log_place import log_place

OURS = "deuz_workers"
MOST_CHARACTERS = 4_000
"""Of a sentence of a library."""
_EVENT = re.compile(r"[a-z][a-z0-9_]*(?= |$)")
_PIECE = re.compile(r"(?:(\w+)=)?(\S+)")
_CONVERSION = re.compile(r"%[-#.0-9]*[sdrf]")
_QUOTED = re.compile(r"(\b(?:DETAIL|CONTEXT|HINT|QUERY|STATEMENT):|\binput_value=|\binput=).*?(?=$|\n)", re.IGNORECASE)
_QUERY = re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://[^\s?#\"'<>]*)[?#][^\s\"'<>]*", re.IGNORECASE)
_ACCOUNT = re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@\"']*@", re.IGNORECASE)
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class TextLines(logging.Formatter):
    """``2026-11-30T12:00:00.000Z WARNING deuz_workers.engine 4711 run_taken_over run=7f3 turn=2 ...``"""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        event, given = fields.pop("event", ""), fields.pop("text", "")
        named = (f"{name}={_shown(value)}" for name, value in fields.items())
        head = (_at(record), record.levelname, record.name, str(record.process or os.getpid()))
        return " ".join(filter(None, (*head, str(event), str(given), *named)))


class JsonLines(logging.Formatter):
    """One JSON object a line: `at`, `level`, `logger`, `pid`, `event` or `text`, and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        head = {"at": _at(record), "level": record.levelname.lower(), "logger": record.name, "pid": record.process}
        return json.dumps({**head, **_fields(record)}, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = _ours(record) if record.name.partition(".")[0] == OURS else None
    if fields is None:
        fields = {"text": without_quotes(_sentence(record))}
    if (place := log_place()) is not None:
        fields.setdefault("run", place.run)
        fields.setdefault("scope", place.scope)
        fields |= {name: value for name, value in (("turn", place.turn), ("attempt", place.attempt)) if value}
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        fields |= {"exception": type(error).__name__, "trace": places_of(error)}
    return fields


def _ours(record: logging.LogRecord) -> dict[str, Any] | None:
    """Name and key-values of one of our events; None for a line that is not written as one."""
    template = str(record.msg)
    args = list(record.args) if isinstance(record.args, tuple) else []
    first, _, others = template.partition(" ")
    if args and len(_CONVERSION.findall(first)) == 1:  # one of several events, as `worker_draining` and `worker_hurrying`
        template = f"{first % (args.pop(0),)} {others}"
    name = _EVENT.match(template)
    if name is None:
        return None
    fields: dict[str, Any] = {"event": name[0]}
    rest = template[name.end() :]
    if len(_CONVERSION.findall(rest)) != len(args) or isinstance(record.args, Mapping):
        return {"event": name[0], "text": without_quotes(_sentence(record)[name.end() :].strip())}
    texts: list[str] = []
    for key, piece in _PIECE.findall(rest):
        taken = [args.pop(0) for _ in _CONVERSION.findall(piece)]
        is_one = _CONVERSION.fullmatch(piece) is not None
        value = _plain(taken[0]) if is_one else redact(piece % tuple(taken))
        if key:
            fields[key] = value
        else:
            texts.append(str(value))
    if texts:
        fields["text"] = " ".join(texts)
    extra = {key: _plain(value) for key, value in record.__dict__.items() if key not in _STANDARD}
    return fields | extra


def _plain(value: object) -> object:
    """Numbers stay numbers; all else is text."""
    return value if value is None or isinstance(value, bool | int | float) else redact(str(value))


def _sentence(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - a wrong call of a library's; what it was about stands in the template
        return str(record.msg)


def without_quotes(text: str) -> str:
    """The sentence of a library without values that it quotes, as far as these can be told."""
    text = _ACCOUNT.sub(r"\1", _QUERY.sub(r"\1", text))
    return redact(_QUOTED.sub(r"\1 ***", text))[:MOST_CHARACTERS]


def places_of(error: BaseException) -> list[str]:
    """Where it was raised, innermost last: file, line and function, and the classes of what caused it; no message."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return places if cause is None else [*places, f"from {type(cause).__name__}"]


def _at(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return json.dumps(text) if not text or re.search(r"[\s\"=]", text) else text
