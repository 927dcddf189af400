"""What the demo did, in the end: a few lines for people, one record for programs."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from deuz_workers.cli.demo.picture import budget
from deuz_workers.cli.demo.stack import Stack
from deuz_workers.cli.demo.story import Outcome
from deuz_workers.cli.demo.takeover import Takeover
from deuz_workers.cli.output import Output


def summarise(output: Output, outcome: Outcome, stack: Stack, *, report: Path, model: str) -> None:
    """Print it, in the form that `output` has."""
    written = report if outcome.approved and outcome.result.status == "completed" else None
    output.document(_record(outcome, stack, report=written, model=model))
    turns = sum(task.model_step for task in outcome.view.tasks)
    output.show(
        f"\n[bold]{outcome.result.status}[/]: {len(outcome.view.tasks)} tasks, {turns} turns of {escape(model)}, "
        f"{outcome.seconds:.1f} s"
    )
    output.show(f"  budget  {budget(outcome.view.balance)}")
    for task in outcome.view.tasks:
        if task.status == "failed":
            error = outcome.handle.task(task.task_id).envelope().error or {}
            output.show(
                f"  [red]failed[/]  {escape(task.task_id)}: {escape(str(error.get('message', 'no reason is recorded')))}"
            )
    if outcome.victim is not None and not outcome.takeovers:
        output.show("  the killed worker held no run, so there was nothing to take over")
    output.show(f"  report  {escape(str(written)) if written else 'not written'}")


def _record(outcome: Outcome, stack: Stack, *, report: Path | None, model: str) -> dict[str, object]:
    balance = outcome.view.balance
    amounts = {} if balance is None else {name: getattr(balance, name).tokens for name in ("limit", "spent", "held", "unknown")}
    return {
        "status": outcome.result.status,
        "run_id": outcome.handle.run_id,
        "scope": outcome.handle.scope,
        "store": "sqlite" if stack.is_sqlite else "postgres",
        "model": model,
        "workers": [worker.pid for worker in stack.workers],
        "flower": stack.flower is not None,
        "tasks": {task.task_id: task.status for task in outcome.view.tasks},
        "turns": sum(task.model_step for task in outcome.view.tasks),
        "seconds": round(outcome.seconds, 3),
        "budget_tokens": amounts,
        "killed": outcome.victim,
        "takeovers": [_takeover(takeover) for takeover in outcome.takeovers],
        "approved": outcome.approved,
        "report": None if report is None else str(report),
    }


def _takeover(takeover: Takeover) -> dict[str, object]:
    return {
        "run_id": takeover.task.run_id,
        "dead_worker": takeover.dead.pid,
        "worker": takeover.taker,
        "after_ms": takeover.after_ms,
        "in_the_middle_of": takeover.middle.tool or "model",
        "key": takeover.middle.key,
        "attempt": None if takeover.repeated is None else takeover.repeated.attempt,
    }
