"""What every input does to a run in every state: a total table, which tests carry out pair by pair.

The page `docs/states.md` shows it, drawn by `python -m deuz_workers.core.reactions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

State = Literal["queued", "running", "suspended", "parked", "completed", "stopped", "failed", "failed-transient"]
"""`parked`: whatever its status, until somebody says so. `failed-transient`: for a cause that may have passed."""
Input = Literal[
    "resume", "verdict", "client-result", "reconcile", "retry", "retry-failed", "cancel", "message", "prune", "fork"
]
Reaction = Literal["goes on", "stored", "ends", "stays", "refused", "gone", "copied"]
"""`goes on`: it is at work again. `stored`: the input is kept and the run waits for the rest, or takes it in at its next step.
`ends`: it is stopped by its next commit. `stays`: nothing is written, the stored result comes back. `refused`: a typed error,
nothing is written. `gone`: no row of it is left. `copied`: another run was made, this one is what it was."""

_FINAL: Mapping[Input, Reaction] = {
    "resume": "stays",
    "verdict": "refused",
    "client-result": "refused",
    "reconcile": "refused",
    "retry": "refused",
    "retry-failed": "stays",
    "cancel": "stays",
    "message": "stays",
    "prune": "gone",
    "fork": "copied",
}
_ALIVE: Mapping[Input, Reaction] = {
    "resume": "goes on",
    "verdict": "refused",
    "client-result": "refused",
    "reconcile": "refused",
    "retry": "refused",
    "retry-failed": "stays",
    "cancel": "ends",
    "message": "stored",
    "prune": "stays",
    "fork": "copied",
}
REACTIONS: Mapping[State, Mapping[Input, Reaction]] = {
    "queued": _ALIVE,
    "running": _ALIVE,
    "suspended": {**_ALIVE, "resume": "stays", "verdict": "stored", "client-result": "stored"},
    "parked": {**_ALIVE, "resume": "stays", "reconcile": "goes on", "retry": "goes on"},
    "completed": _FINAL,
    "stopped": _FINAL,
    "failed": {**_FINAL, "retry-failed": "refused"},
    "failed-transient": {**_FINAL, "retry-failed": "goes on"},
}


def page() -> str:
    """The table in Markdown, a row for each input."""
    states: tuple[State, ...] = get_args(State)
    inputs: tuple[Input, ...] = get_args(Input)
    lines = ["| | " + " | ".join(f"`{state}`" for state in states) + " |", "|---" * (len(states) + 1) + "|"]
    lines += [f"| `{name}` | " + " | ".join(REACTIONS[state][name] for state in states) + " |" for name in inputs]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page())  # noqa: T201
