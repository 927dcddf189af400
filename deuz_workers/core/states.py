"""The transitions of a run and of a receipt, as tables.

Everything that may change a status is listed here; an unlisted pair raises and changes nothing. The diagram in
`docs/states.md` is drawn from these tables by `python -m deuz_workers.core.states`.
"""

from __future__ import annotations

from collections.abc import Mapping

from deuz_workers.core.change import RunStatus, Stage
from deuz_workers.errors import DeuzError

RUN: Mapping[tuple[RunStatus, str], tuple[RunStatus, ...]] = {
    ("queued", "NotesFolded"): ("queued",),
    ("queued", "Bound"): ("queued",),
    ("queued", "PolicyNarrowed"): ("queued",),
    ("queued", "InputsGiven"): ("queued",),
    ("queued", "ModelCallStarted"): ("running",),
    ("queued", "ModelFailedOver"): ("queued",),
    ("queued", "ModelCallFailed"): ("running",),
    ("queued", "CallStarted"): ("running",),
    ("queued", "Waited"): ("running",),
    ("queued", "Finished"): ("completed", "stopped", "failed"),
    ("running", "NotesFolded"): ("running",),
    ("running", "Bound"): ("running",),
    ("running", "CatalogRecorded"): ("running",),
    ("running", "PolicyNarrowed"): ("running",),
    ("running", "ModelCallStarted"): ("running",),
    ("running", "BudgetStood"): ("running",),
    ("running", "ModelReplied"): ("running",),
    ("queued", "GuardrailFired"): ("queued",),
    ("queued", "InputChecked"): ("queued",),
    ("queued", "HistoryRewritten"): ("queued",),
    ("queued", "Warned"): ("queued",),
    ("running", "GuardrailFired"): ("running",),
    ("running", "InputChecked"): ("running",),
    ("running", "HistoryRewritten"): ("running",),
    ("running", "Warned"): ("running",),
    ("queued", "HistoryPruned"): ("queued",),
    ("queued", "SummaryStarted"): ("running",),
    ("running", "HistoryPruned"): ("running",),
    ("running", "SummaryStarted"): ("running",),
    ("running", "HistorySummarized"): ("running",),
    ("running", "ContextOverflowed"): ("running",),
    ("running", "OutputAsked"): ("running",),
    ("running", "OutputRejected"): ("running",),
    ("running", "VerificationStarted"): ("running",),
    ("running", "VerificationEnded"): ("running",),
    ("running", "ModelCallFailed"): ("running",),
    ("running", "ModelFailedOver"): ("running",),
    ("running", "ModelCallAbandoned"): ("running",),
    ("running", "CallStarted"): ("running",),
    ("running", "CallRejected"): ("running",),
    ("running", "CallExecuted"): ("running",),
    ("running", "CallFailed"): ("running",),
    ("running", "CallDelegated"): ("running",),
    ("running", "ChildEnded"): ("running",),
    ("running", "CallCompleted"): ("running",),
    ("running", "CallUnprojectable"): ("running",),
    ("running", "HandedOff"): ("running",),
    ("running", "TurnAnswered"): ("running",),
    ("running", "Suspended"): ("suspended",),
    ("running", "Waited"): ("running",),
    ("running", "Finished"): ("completed", "stopped", "failed"),
    ("suspended", "NotesFolded"): ("suspended",),
    ("suspended", "ChildEnded"): ("suspended",),
    ("suspended", "Resumed"): ("running",),
    ("suspended", "Waited"): ("suspended",),
    ("suspended", "Finished"): ("stopped", "failed"),
    ("failed", "Reopened"): ("running",),
    ("queued", "MemoryAttached"): ("queued",),
    ("queued", "RecallStarted"): ("running",),
    ("queued", "MemoryRecalled"): ("queued",),
    ("running", "MemoryRecalled"): ("running",),
    ("completed", "Warned"): ("completed",),
    ("completed", "ExtractionAdmitted"): ("completed",),
    ("completed", "ExtractionPlanned"): ("completed",),
    ("completed", "ExtractionProgressed"): ("completed",),
    ("completed", "ExtractionEnded"): ("completed",),
    ("completed", "ExtractionReopened"): ("completed",),
}
"""(status, event) to the statuses that may follow."""

RECEIPT: Mapping[tuple[Stage | None, str], Stage] = {
    (None, "CallStarted"): "executing",
    (None, "CallRejected"): "failed",
    (None, "CallDelegated"): "suspended",
    ("suspended", "CallExecuted"): "executed",
    ("suspended", "CallFailed"): "failed",
    ("executing", "CallStarted"): "executing",
    ("executing", "CallExecuted"): "executed",
    ("executing", "CallFailed"): "failed",
    ("executed", "CallCompleted"): "completed",
    ("executed", "CallUnprojectable"): "validation-failed",
    ("validation-failed", "CallCompleted"): "completed",
    ("validation-failed", "CallUnprojectable"): "validation-failed",
    ("projection-failed", "CallCompleted"): "completed",
    ("projection-failed", "CallUnprojectable"): "validation-failed",
}
"""(stage, event) to the stage that follows. `CallUnprojectable` says itself which of its two stages it is, and an executor that
finds one in a turn without answers tries again (TSC-004). An interrupted call starts again only where its receipt says
`idempotent` or somebody allowed it."""


class ImpossibleTransition(DeuzError):
    """An event that cannot happen in this state; nothing was changed."""

    code = "impossible_transition"


def next_run_status(status: RunStatus, event: str, wanted: RunStatus | None = None) -> RunStatus:
    """The status after `event`; `wanted` chooses where the table leaves a choice. Raises `ImpossibleTransition`."""
    allowed = RUN.get((status, event))
    if allowed is None or (wanted is not None and wanted not in allowed):
        raise ImpossibleTransition(f"a run that is {status} cannot take {event}" + (f" to {wanted}" if wanted else ""))
    return wanted or allowed[0]


def next_stage(stage: Stage | None, event: str) -> Stage:
    """The stage of a receipt after `event`. Raises `ImpossibleTransition`."""
    following = RECEIPT.get((stage, event))
    if following is None:
        raise ImpossibleTransition(f"a call whose receipt is {stage or 'not written'} cannot take {event}")
    return following


def diagram() -> str:
    """Both tables as Mermaid state diagrams, one arrow per pair of states, its events as the label."""
    return "\n".join(
        [
            "```mermaid",
            "stateDiagram-v2",
            "    [*] --> queued",
            *_arrows({(before, event): after for (before, event), after in RUN.items()}),
            *(f"    {final} --> [*]" for final in ("completed", "stopped", "failed")),
            "```",
            "",
            "```mermaid",
            "stateDiagram-v2",
            *_arrows({(before or "[*]", event): (after,) for (before, event), after in RECEIPT.items()}),
            "```",
        ]
    )


def _arrows(table: Mapping[tuple[str, str], tuple[str, ...]]) -> list[str]:
    labels: dict[tuple[str, str], list[str]] = {}
    for (before, event), targets in table.items():
        for after in targets:
            labels.setdefault((before, after), []).append(event)
    return [
        f"    {before.replace('-', '_')} --> {after.replace('-', '_')}: {', '.join(events)}"
        for (before, after), events in labels.items()
    ]


if __name__ == "__main__":
    print(diagram())  # noqa: T201
