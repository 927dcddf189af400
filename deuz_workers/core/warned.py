"""What a run was warned of, in its record."""

from __future__ import annotations

from deuz_workers.core.draft import Draft
from deuz_workers.core.envelope import PLAIN, Warning

MOST_WARNINGS = 20
"""That a run keeps; the journal has all."""


def warn(draft: Draft, setting: str, text: str, kind: str = PLAIN) -> None:
    """`kind`: what readers get as its type."""
    known: tuple[Warning, ...] = draft.value("warnings")
    warning = (setting, text) if kind == PLAIN else (setting, text, kind)
    if warning not in known:
        draft.change(warnings=(*known, warning)[:MOST_WARNINGS])
        draft.journal("warning", setting=setting, message=text, **({} if kind == PLAIN else {"of_type": kind}))
