"""What a resume of a swarm brings: answers and words about interrupted calls, by task id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deuz_workers.app.access import Access, not_found
from deuz_workers.app.answers import Answers, ClientResults, hand_in_and_ring
from deuz_workers.app.settling import settle
from deuz_workers.app.verdicts import NO_VERDICTS, Verdicts
from deuz_workers.app.words import Reconciled, Words, outcomes_of
from deuz_workers.core.change import FINAL, Head
from deuz_workers.core.run import read_run
from deuz_workers.errors import ReconciliationError
from deuz_workers.ports.store import Loaded


@dataclass(frozen=True, slots=True)
class SwarmAnswers:
    """Complete or of no effect, for each task by itself (SRC-017)."""

    approvals: Mapping[str, Verdicts]
    client_tool_results: Mapping[str, ClientResults]
    retry_task_ids: tuple[str, ...]
    retry_tool_call_ids: Mapping[str, Iterable[str]]
    reconciled_tool_results: Mapping[str, Reconciled]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Those that something is said about."""
        named = (*self.approvals, *self.client_tool_results, *self.retry_task_ids)
        return tuple(dict.fromkeys((*named, *self.retry_tool_call_ids, *self.reconciled_tool_results)))

    async def check(self, access: Access, scope: str, run_ids: Mapping[str, str]) -> None:
        """Raises `RunNotFoundError`, `ReconciliationError` and `ConfigurationError` for what cannot be meant of these runs."""
        for task_id, run_id in run_ids.items():
            loaded = await _load(access, scope, run_id)
            if loaded.head.parked is not None:
                words = self._words(task_id)
                if words.any:
                    words.about(read_run(loaded.head, loaded.messages, loaded.receipts))
            else:
                self._answers(task_id)

    async def hand_in(self, access: Access, scope: str, run_ids: Mapping[str, str]) -> None:
        """Store what leaves nothing of its task open. Raises as `check` does where a run has changed meanwhile."""
        for task_id, run_id in run_ids.items():
            head = (await _load(access, scope, run_id)).head
            if head.status in FINAL:
                continue
            if head.parked is None:
                await hand_in_and_ring(access, scope, run_id, self._answers(task_id))
            elif task_id in self.retry_task_ids or task_id in self.reconciled_tool_results:
                await self._free(access, head, task_id)

    async def _free(self, access: Access, head: Head, task_id: str) -> None:
        """A parked task runs again, unless a call of it is left open that nothing was said about (SRC-009)."""
        words = self._words(task_id)
        outputs = {name: record["output"] for name, record in words.results.items() if not record.get("is_error")}
        errors = {name: str(record["output"]) for name, record in words.results.items() if record.get("is_error")}
        retry = None if head.kind == "reducer" else words.retry
        try:
            verdicts = self.approvals.get(task_id, NO_VERDICTS)
            await settle(access, head.scope, head.run_id, retry=retry, outputs=outputs, errors=errors, approvals=verdicts)
        except ReconciliationError as error:
            if error.fields.get("part") != "call":
                raise

    def _words(self, task_id: str) -> Words:
        may_retry = task_id in self.retry_task_ids
        retry = tuple(self.retry_tool_call_ids.get(task_id, ())) if may_retry else ()
        return Words(retry, outcomes_of(self.reconciled_tool_results.get(task_id, {})))

    def _answers(self, task_id: str) -> Answers:
        return Answers(self.approvals.get(task_id, NO_VERDICTS), self.client_tool_results.get(task_id, {}))


async def _load(access: Access, scope: str, run_id: str) -> Loaded:
    loaded = await access.store.load(scope, run_id)
    if loaded is None:
        raise not_found(scope, run_id)
    return loaded
