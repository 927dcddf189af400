"""How a tool call ended, where it did not end with a result."""

from __future__ import annotations

from typing import Literal

CallOutcome = Literal[
    "error",
    "denied",
    "blocked",
    "withheld",
    "invalid-arguments",
    "unknown-tool",
    "invalid-context",
    "timeout",
    "cancelled",
    "invalid-result",
    "projection-failed",
    "transfer-refused",
    "not-dispatched",
    "child-failed",
    "child-stopped",
    "over-budget",
]
"""Of the result that the model reads, of the receipt and of the journal record; a call that succeeded has none.

`error`: the tool raised, or returned what cannot be stored. `denied`: a person said no. `blocked`: a guardrail refused the
call. `withheld`: it ran, and a guardrail keeps its result from the model. `invalid-arguments`, `unknown-tool`,
`invalid-context`: it never ran. `timeout`, `cancelled`: it was ended; whether it had an effect is not known. `invalid-result`:
the result misses its schema. `projection-failed`: the result is recorded, its text could not be made. `transfer-refused`: the
run stays with its agent. `not-dispatched`: the reply was cut off or refused, so none of its calls ran. `child-failed`,
`child-stopped`, `over-budget`: how the run of a delegated call ended; one that was cancelled is `cancelled`.
"""

NO_TOOL_ERRORS: frozenset[CallOutcome] = frozenset(
    ("denied", "blocked", "transfer-refused", "not-dispatched", "unknown-tool", "cancelled")
)
"""Somebody decided that the call does not run, or there is no tool: no error of a tool (PTH-015, GRD-006)."""
