"""What is wrong with settings, in words: which one, where it comes from, what it may be. Secrets are never repeated."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from pydantic import ValidationError

PREFIX = "DEUZ_"
OTHER_VARIABLES = frozenset(
    (
        "DEUZ_APP",
        "DEUZ_APP_DIR",
        "DEUZ_COMPANION_OF",
        "DEUZ_CONFIG",
        "DEUZ_LOG_FORMAT",
        "DEUZ_POSTGRES_BIN_DIR",
        "DEUZ_POSTGRES_PASSWORD",
        "DEUZ_REDIS_SERVER",
    )
)
"""Variables of ours that are no settings: of the command line, of embedded servers, of processes that start each other."""
NEAR = 0.8
SHOWN_CHARS = 60
_SHORT = re.compile(
    r"value should have at least (\d+) items after validation, not \d+"
)  # pydantic's words about a short SecretStr


def explain(error: ValidationError, given: Mapping[str, object], file: Path | None) -> str:
    """One sentence per mistake: setting, where it comes from, what is wrong, and the value if it cannot be a secret."""
    sentences: list[str] = []
    for mistake in error.errors(include_url=False):
        name = str(mistake["loc"][0]) if mistake["loc"] else ""
        text = mistake["msg"].removeprefix("Value error, ")
        if not name:
            sentences.append(text)
        elif mistake["type"] == "extra_forbidden":
            place = origin(name, given, file)
            sentences.append(f"there is no setting {name!r} ({place}); see config/deuz.toml for all of them")
        else:
            text = _SHORT.sub(r"it should have at least \1 characters", f"{text[0].lower()}{text[1:]}")
            shown = "" if _may_be_secret(name) else f", not {_clipped(mistake['input'])}"
            sentences.append(f"setting {name!r} ({origin(name, given, file)}): {text}{shown}")
    return "; ".join(sentences)


def _may_be_secret(name: str) -> bool:
    """By the name alone, so that the next secret is none that somebody forgot to list."""
    return "secret" in name or name == "producer_keys" or name.endswith("_url")


def origin(name: str, given: Mapping[str, object], file: Path | None) -> str:
    if name in given:
        return "given in Python"
    variable = f"{PREFIX}{name.upper()}"
    return f"environment variable {variable}" if os.environ.get(variable) else f"file {file}"


def mistyped_variables(settings: Collection[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that are none of ours and look like one of `settings`, each with the variable that was probably meant."""
    known = {f"{PREFIX}{name.upper()}" for name in settings} | OTHER_VARIABLES
    found: dict[str, str] = {}
    for name in sorted(environment):
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, 1, NEAR)
            if near:
                found[name] = near[0]
    return found


def _clipped(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."
