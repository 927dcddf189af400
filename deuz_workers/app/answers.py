"""What a resume brings: verdicts of people, and words about effects that nobody knew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deuz_workers.app.results import pending_approvals, result_of
from deuz_workers.core.codec import encode
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.store import Loaded, RunStore

Verdict = bool | Mapping[str, object]
"""True or False, or a mapping with `approved` and perhaps `reason`."""

NO_VERDICTS: Mapping[str, Verdict] = {}
NO_OUTCOMES: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Answers:
    """Complete or of no effect: a set that leaves something open is not stored (APR-009, REC-010, RSM-008)."""

    approvals: Mapping[str, Verdict] = field(default_factory=lambda: NO_VERDICTS)
    """By approval id."""
    retry_tool_call_ids: tuple[str, ...] = ()
    """Interrupted calls that may run once more."""
    reconciled_tool_results: Mapping[str, object] = field(default_factory=lambda: NO_OUTCOMES)
    """What interrupted calls had returned, by call id."""

    def __post_init__(self) -> None:
        """Raises `ConfigurationError` for a call that is listed twice and for what is no verdict."""
        listed = [*self.retry_tool_call_ids, *self.reconciled_tool_results]
        if len(listed) != len(set(listed)):
            raise ConfigurationError("a tool call is listed twice; each is either run again or has an outcome, once")
        for approval_id, verdict in self.approvals.items():
            if not isinstance(_record(verdict).get("approved"), bool):
                raise ConfigurationError(f"the verdict on {approval_id!r} is True, False, or a mapping with `approved`")

    def settle(self, loaded: Loaded) -> bool:
        """They leave nothing open of what the run waits for."""
        result = result_of(loaded)
        calls = {*self.retry_tool_call_ids, *self.reconciled_tool_results}
        return {waiting.approval_id for waiting in result.pending_approvals} <= set(self.approvals) and {
            effect.tool_call_id for effect in result.unknown_effects
        } <= calls

    def check(self, loaded: Loaded) -> None:
        """Raises `ConfigurationError` for a call that was not interrupted (REC-007)."""
        known = {effect.tool_call_id for effect in result_of(loaded).unknown_effects}
        for call_id in (*self.retry_tool_call_ids, *self.reconciled_tool_results):
            if call_id not in known:
                raise ConfigurationError(
                    f"tool call {call_id!r} of run {loaded.head.run_id!r} was not interrupted; interrupted are {sorted(known)}"
                )

    async def hand_in(self, store: RunStore, loaded: Loaded) -> None:
        """Store them; the run is due afterwards."""
        scope, run_id = loaded.head.scope, loaded.head.run_id
        for waiting in pending_approvals(loaded.items):
            record = {"approval_id": waiting.approval_id, **_record(self.approvals[waiting.approval_id])}
            await store.answer_item(scope, run_id, waiting.approval_id, encode(record))
        if self.reconciled_tool_results:
            results = {call_id: {"output": output} for call_id, output in self.reconciled_tool_results.items()}
            await store.add_note(scope, run_id, "reconcile", encode({"results": results}))
        if self.retry_tool_call_ids:
            await store.add_note(scope, run_id, "retry", encode({"tool_call_ids": list(self.retry_tool_call_ids)}))


def _record(verdict: Verdict) -> Mapping[str, object]:
    return {"approved": verdict} if isinstance(verdict, bool) else verdict
