"""Commands that a person types to get a run on, exactly."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from deuz_workers.core.lost_commits import WENT_BACKWARDS


def ways_out(run_id: str, scope: str, parked: str, effects: Sequence[Mapping[str, Any]]) -> list[str]:
    """Commands that free a parked run, each with what it does. They name the executions that were shown, and no later ones."""
    run = shlex.quote(run_id) + place_of(scope)
    if parked == WENT_BACKWARDS:
        again = "; what came later, and these calls, may happen again" if effects else "; what came later may happen again"
        return [
            f"deuz runs retry {run}{_options('--call', effects)}   (goes on from the older record{again})",
            f"deuz runs cancel {run}",
        ]
    if not effects:
        why = "once what ended its processes is mended" if parked == "quarantine" else "lets it go on"
        return [f"deuz runs retry {run}   ({why})", f"deuz runs cancel {run}"]
    calls = "the call" if len(effects) == 1 else "all these calls"
    rest, gates, others = _options("--retry", effects[1:]), _approvals(effects), _approvals(effects[1:])
    return [
        f"deuz runs retry {run}{_options('--call', effects)}{gates}   (runs {calls} again)",
        f"deuz runs reconcile {run}{_options('--call', effects[:1])} --output JSON{rest}{others}   (or --error TEXT)",
    ]


def place_of(scope: str) -> str:
    """The option that names the scope, where it needs one."""
    return "" if scope == "default" else f" --scope {shlex.quote(scope)}"


def _options(name: str, effects: Sequence[Mapping[str, Any]]) -> str:
    return "".join(f" {name} {shlex.quote(effect['effect_id'])}" for effect in effects)


def _approvals(effects: Sequence[Mapping[str, Any]]) -> str:
    """What lets gated ones run again; without it they are answered as denied."""
    gated = [effect for effect in effects if effect["approval_id"]]
    tokens = "".join(f" --token {effect['token']}" for effect in gated if effect["token"])
    return _options("--approve", gated) + tokens


def answer_commands(run_id: str, scope: str, call: Mapping[str, Any]) -> list[str]:
    """Commands that answer an item."""
    place, run = place_of(scope), shlex.quote(run_id)
    if "approval_id" not in call:
        return [f"deuz runs answer {run} {shlex.quote(call['item_id'])}{place} --output JSON   (or --error TEXT)"]
    item = shlex.quote(call["approval_id"])
    by = " --by NAME" if call["people"] or call["needed"] > 1 else ""
    token = f" --token {call['token']}" if call["token"] else ""
    return [f"deuz runs approve {run} {item}{place}{by}{token}", f"deuz runs deny {run} {item}{place}{by} --reason TEXT"]
