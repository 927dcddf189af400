"""What people may call things that others have to spell: agents, reducers, queues, tasks, runs, scopes."""

from __future__ import annotations

import re

from deuz_workers.errors import ConfigurationError, DeuzError

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""Safe in a shell, a URL, a queue of the broker and a log line."""

MAX_RUN_ID_CHARS = 512
"""A swarm's task adds its own id to the swarm's; an index row of Postgres takes 2,700 bytes."""


def check_name(what: str, name: object) -> str:
    """The name. Raises `ConfigurationError` for anything but letters, digits, '_', '.' and '-', at most 128."""
    if not isinstance(name, str) or not _PLAIN.fullmatch(name):
        raise ConfigurationError(
            f"{what} cannot be called {_shown(name)}: up to 128 letters, digits, '_', '.' and '-', first a letter or digit"
        )
    return name


def check_run_id(value: object) -> str:
    """Of a run that somebody starts. Raises `ConfigurationError`; a slash is kept for the tasks of swarms."""
    run_id = check_id("a run id", value)
    if any(letter.isspace() for letter in run_id):
        raise ConfigurationError(
            f"a run id cannot be {_shown(run_id)}: spaces make it hard to copy and to quote; use '-' or ':'"
        )
    if "/" in run_id:
        raise ConfigurationError(
            f"a run id cannot be {_shown(run_id)}: '/' stands between a swarm and its tasks; use '-' or ':'"
        )
    return run_id


def check_id(what: str, value: object, error: type[DeuzError] = ConfigurationError) -> str:
    """A run id, scope or idempotency key: any printable text. Raises `error` for an empty, long or unprintable one."""
    if not isinstance(value, str) or not value or len(value) > MAX_RUN_ID_CHARS or not value.isprintable():
        raise error(f"{what} cannot be {_shown(value)}: 1 to {MAX_RUN_ID_CHARS} printable characters")
    return value


def is_keepable(text: str) -> bool:
    """Whether every database keeps the text: Postgres refuses U+0000, and UTF-8 has no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
