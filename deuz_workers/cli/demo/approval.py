"""The question before the report is written."""

from __future__ import annotations

from rich.markup import escape

from deuz_workers.app.handle import Handle
from deuz_workers.cli.demo.screen import Screen
from deuz_workers.errors import AnswerConflictError

PREVIEW_LINES = 6


def decide(handle: Handle, screen: Screen, *, where: str, yes: bool) -> bool | None:
    """Show what the run waits for and answer it; whether it was allowed, None where nothing waits.

    A person is asked where there is one, and `yes` was not said before.
    """
    pending = handle.pending()
    if not pending:
        return None
    asked = pending[0]
    preview = str(asked.arguments.get("markdown", "")).splitlines()
    screen.say(
        f"\n[yellow]‖ approval[/] [bold]{escape(asked.tool_name)}[/] wants to write {escape(where)}, {len(preview)} lines:"
    )
    for line in preview[:PREVIEW_LINES]:
        screen.say(f"  [dim]│[/] {escape(line)}")
    if len(preview) > PREVIEW_LINES:
        screen.say(f"  [dim]│ … {len(preview) - PREVIEW_LINES} more[/]")
    if yes:
        allowed, by = True, "--yes was given"
    elif screen.can_ask:
        allowed, by = _ask(screen), "you said so"
    else:
        allowed, by = True, "no terminal, so the demo answers itself"
    answer = handle.approve if allowed else handle.deny
    try:
        answer(asked, by)
    except AnswerConflictError as conflict:
        allowed, by = conflict.winner.get("approved") is True, "somebody else said so first"
    screen.say(f"  {'[green]approved[/]' if allowed else '[red]denied[/]'}: {by}")
    return allowed


def _ask(screen: Screen) -> bool:
    while True:
        try:
            answer = screen.ask(lambda: input("  write it? [y/n] ")).strip().lower()
        except EOFError:
            return False
        if answer in ("y", "yes", "n", "no"):
            return answer[0] == "y"
