"""The sequence: start the swarm, watch it, kill a worker half way, ask, sum up."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.markup import escape

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.handle import SwarmHandle
from deuz_workers.app.swarm_result import SwarmResult
from deuz_workers.cli.amounts import duration
from deuz_workers.cli.demo.approval import decide
from deuz_workers.cli.demo.screen import Screen
from deuz_workers.cli.demo.stack import Stack
from deuz_workers.cli.demo.takeover import Strike, Takeover
from deuz_workers.cli.demo.watch import View, Watch
from deuz_workers.examples.code_review import Assignment, review_swarm

LOOK_S = 0.1
CLOSE_LOOK_S = 0.03
"""While a victim is looked for, and until its runs have another worker."""
SCOPE = "demo"
SLOTS = 4


@dataclass
class Outcome:
    """What happened, for the summary."""

    handle: SwarmHandle
    result: SwarmResult
    view: View
    seconds: float
    approved: bool | None
    victim: int | None = None
    takeovers: list[Takeover] = field(default_factory=list[Takeover])


class Story:
    def __init__(self, app: Deuz, stack: Stack, screen: Screen, assignment: Assignment, *, kill: bool, yes: bool) -> None:
        self._app = app
        self._stack = stack
        self._screen = screen
        self._assignment = assignment
        self._kill = kill
        self._yes = yes

    def tell(self, budget_tokens: int | None) -> Outcome:
        """The swarm has ended when this returns."""
        screen, stack = self._screen, self._stack
        swarm = review_swarm(self._assignment.files, concurrency=SLOTS, budget_tokens=budget_tokens)
        screen.names = {worker.pid: worker.name.partition("@")[0] for worker in stack.workers}
        with screen:
            handle = self._app.run_swarm(swarm, scope=SCOPE, queue=stack.queue)
            watch = Watch(self._app, handle)
            strike = Strike(stack, watch)
            approved = self._until_over(watch, strike)
            view = watch.look()
            screen.show(view)
        result = handle.result()
        victim = None if strike.victim is None else strike.victim.pid
        return Outcome(handle, result, view, screen.seconds, approved, victim, strike.takeovers)

    def _until_over(self, watch: Watch, strike: Strike) -> bool | None:
        approved: bool | None = None
        planned = False
        while True:
            view = watch.look()
            self._screen.show(view)
            if not planned and any(task.task_id == "plan" and task.status == "completed" for task in view.tasks):
                planned = True
                self._screen.say(f"[green]✓ plan[/] {escape(str(watch.handle.output('plan')))}")
            self._tell_of_takeovers(strike)
            if view.is_over:
                return approved
            if view.is_waiting and approved is None:
                approved = decide(watch.handle.task("report"), self._screen, where=_shown(self._assignment.out), yes=self._yes)
                continue
            hunting = self._kill and strike.is_due(view)
            if hunting and strike.attempt(view):
                self._tell_of_death(strike)
            time.sleep(CLOSE_LOOK_S if hunting or not strike.is_settled else LOOK_S)

    def _tell_of_death(self, strike: Strike) -> None:
        victim = strike.victim
        assert victim is not None
        self._screen.dead = victim.pid
        self._screen.say(f"\n[red]✝ SIGKILL[/] for [bold]{self._name(victim.pid)}[/], in the middle of:")
        for takeover in strike.takeovers:
            middle = takeover.middle
            what = (
                "a call of the model"
                if middle.tool is None
                else f"tool [bold]{escape(middle.tool)}[/], key {escape(middle.key)}"
            )
            self._screen.say(f"    {escape(takeover.task.task_id)}: {what}")
        self._screen.say(f"    nobody restarts it; its leases lapse within {duration(self._stack.settings.lease_ttl_ms)}")

    def _tell_of_takeovers(self, strike: Strike) -> None:
        for takeover in strike.follow():
            by = "another worker" if takeover.taker is None else self._name(takeover.taker)
            after = duration(takeover.after_ms or 0)
            self._screen.say(
                f"[green]↻ taken over[/] {escape(takeover.task.task_id)}: [bold]{by}[/] went on {after} after "
                f"{self._name(takeover.dead.pid)} died; {_repetition(takeover)}"
            )

    def _name(self, pid: int) -> str:
        return f"{self._screen.names.get(pid, 'a worker')} (pid {pid})"


def _repetition(takeover: Takeover) -> str:
    if takeover.middle.tool is None:
        return "the model is asked again, and what the lost call may have cost stays reserved"
    if takeover.repeated is None or takeover.repeated.attempt == takeover.middle.attempt:
        return f"{escape(takeover.middle.tool)} is idempotent and may be repeated"
    return (
        f"{escape(takeover.middle.tool)} is idempotent, so it is repeated under the same key "
        f"(attempt {takeover.repeated.attempt})"
    )


def _shown(path: Path) -> str:
    try:
        return f"./{path.relative_to(Path.cwd())}"
    except ValueError:
        return str(path)
