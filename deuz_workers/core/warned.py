"""What a run was warned of, in its record."""

from __future__ import annotations

from deuz_workers.core.draft import Draft

MOST_WARNINGS = 20
"""That a run keeps; the journal has all."""


def warn(draft: Draft, setting: str, text: str) -> None:
    known: tuple[tuple[str, str], ...] = draft.value("warnings")
    if (setting, text) not in known:
        draft.change(warnings=(*known, (setting, text))[:MOST_WARNINGS])
        draft.journal("warning", setting=setting, message=text)
