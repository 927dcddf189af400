"""What became of a run, to compare one that met faults with one that met none."""

from __future__ import annotations

from deuz_workers.core.run import Run


def outcome_of(run: Run) -> dict[str, object]:
    """Everything of a run that faults must not change. Attempts, unknown holds and times tell of the faults themselves."""
    envelope = run.envelope
    return {
        "status": envelope.status,
        "reason": envelope.reason,
        "output": envelope.output,
        "error": envelope.error,
        "usage": envelope.usage,
        "step": envelope.checkpoint.step,
        "history": list(run.history),
        "receipts": {key: (receipt.stage, receipt.value, receipt.error) for key, receipt in run.receipts.items()},
    }
