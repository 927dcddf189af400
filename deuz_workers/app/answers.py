"""What a resume brings: verdicts of people, results of clients, and words about effects that nobody knew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from deuz_workers.app.access import Access, not_found
from deuz_workers.app.answers_below import hand_in_below
from deuz_workers.app.narrowing import narrow
from deuz_workers.app.pending import Signing
from deuz_workers.app.results import ResultWarning
from deuz_workers.app.settling import settle_below
from deuz_workers.app.settling_below import parked_below
from deuz_workers.app.verdicts import NO_VERDICTS, Verdicts, verdicts_of
from deuz_workers.app.words import Reconciled, Words, denied, note_body, outcomes_of, token_is_good
from deuz_workers.core.approval_token import DENIAL
from deuz_workers.core.bare_id import names_one_call
from deuz_workers.core.change import FINAL, Bell, ItemAnswer
from deuz_workers.core.codec import encode
from deuz_workers.core.pending_item import CallItem, CallItemKind, binding_of_call, read_call_items
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.run import Run, read_run
from deuz_workers.engine.taken_answers import NOT_NEEDED
from deuz_workers.errors import AnswerConflictError, ConfigurationError
from deuz_workers.ports.definition import NO_TOOLS
from deuz_workers.ports.store import Loaded, RunStore
from deuz_workers.ports.tool import Tool

ClientResults = Mapping[str, object] | Iterable[Mapping[str, object]]
"""Outputs by tool call id, or records of `tool_call_id`, `output` and, for failures, `is_error`."""

NO_RESULTS: Mapping[str, object] = {}
NO_OUTCOMES: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Answers:
    """Complete or of no effect: a set that leaves something open is not stored (APR-009, REC-010, RSM-008)."""

    approvals: Verdicts = field(default_factory=lambda: NO_VERDICTS)
    client_tool_results: ClientResults = field(default_factory=lambda: NO_RESULTS)
    retry_tool_call_ids: tuple[str, ...] = ()
    """Interrupted calls that may run once more."""
    reconciled_tool_results: Reconciled = field(default_factory=lambda: NO_OUTCOMES)
    """How interrupted calls had ended."""
    words: Words = field(init=False)
    _verdicts: Mapping[str, Mapping[str, object]] = field(init=False)
    _results: Mapping[str, Mapping[str, object]] = field(init=False)

    def __post_init__(self) -> None:
        """Raises `ReconciliationError` for a call that is listed twice, `ConfigurationError` for no verdict or no result."""
        object.__setattr__(self, "_verdicts", verdicts_of(self.approvals))
        outcomes = outcomes_of(self.reconciled_tool_results)
        object.__setattr__(self, "words", Words(self.retry_tool_call_ids, outcomes, self._verdicts))
        object.__setattr__(self, "_results", _results_of(self.client_tool_results))

    def settle(self, loaded: Loaded, tools: Mapping[str, Tool] = NO_TOOLS) -> bool:
        """They leave nothing open of what the run waits for. `tools`: its agent's, as this process knows them."""
        if loaded.head.status in FINAL or (_was_interrupted(loaded) and self.words.left(_run_of(loaded), tools)):
            return False
        return loaded.head.status != "suspended" or self.given(loaded, None) is not None

    def check(self, loaded: Loaded) -> None:
        """Raises `ReconciliationError` for a call that was not interrupted (REC-007); a run that has ended is only read."""
        if self.words.any and loaded.head.status not in FINAL:
            self.words.about(_run_of(loaded))

    async def hand_in(self, store: RunStore, loaded: Loaded, signing: Signing | None = None) -> None:
        """Store them; the run is due afterwards. Raises `AnswerConflictError` if somebody was faster, with nothing stored."""
        scope, run_id = loaded.head.scope, loaded.head.run_id
        given = self.given(loaded, signing) if loaded.head.status == "suspended" else None
        if given:
            answered = await store.answer_items(scope, run_id, given)
            if answered is not None and not answered.stored:
                raise AnswerConflictError(
                    f"an item of run {run_id!r} was answered or has expired meanwhile, so none of these answers was stored; "
                    "resume again with what is still pending",
                    run_id=run_id,
                    item_id=answered.item_id,
                )
        if late := self._late(loaded, signing):
            await store.add_note(scope, run_id, "verdict", encode({"verdicts": late}))
        await self.hand_in_effects(store, loaded, signing)

    def _late(self, loaded: Loaded, signing: Signing | None) -> dict[str, Mapping[str, object]]:
        """Verdicts on calls of a turn that has been taken up and holds none for them, by approval id (APR-012)."""
        if not self._verdicts or loaded.head.status != "running":
            return {}
        run = _run_of(loaded)
        found: dict[str, Mapping[str, object]] = {}
        for call in run.open_calls if run.envelope.checkpoint.taken_up else ():
            item_id = binding_of_call("approval", run.envelope.run_id, run.step, call).item_id
            bare = self._verdicts.get(call.call_id) if names_one_call(run, call.call_id) else None
            record = self._verdicts.get(item_id) or bare
            if record is None or call.call_id in run.receipts or call.call_id in run.envelope.verdicts:
                continue
            record = {**record, "approval_id": item_id}
            if signing is not None and record["approved"] is True:
                record = _with_token_checked(record, item_id, run, signing)
            found[item_id] = record
        return found

    def settled_calls(self, loaded: Loaded) -> frozenset[str]:
        """Interrupted calls that something is said about. Raises `ReconciliationError` for a word that fits none."""
        return frozenset(word.call_id for word in self.words.about(_run_of(loaded))) if self.words.any else frozenset()

    async def hand_in_effects(self, store: RunStore, loaded: Loaded, signing: Signing | None = None) -> None:
        """Store what is said about interrupted calls, as one note."""
        if not self.words.any:
            return
        run = _run_of(loaded)
        words = self.words.about(run)
        if signing is not None:
            words = tuple(word if token_is_good(word, run, signing) else denied(word) for word in words)
        kind = "retry" if self.words.retry else "reconcile"
        await store.add_note(loaded.head.scope, loaded.head.run_id, kind, note_body(words))
        if loaded.head.swarm_rid is not None:
            await store.fill_slots(loaded.head.swarm_rid)

    def warnings(self, loaded: Loaded) -> tuple[ResultWarning, ...]:
        """About answers to calls of the newest turn whose receipts say already how they ended (APR-013, CLT-006), and words
        about calls of a run that has ended (REC-003)."""
        if not (self._verdicts or self._results or self.words.any):
            return ()
        run = _run_of(loaded)
        found: list[ResultWarning] = []
        if loaded.head.status in FINAL and self.words.any:
            text = "the run has ended, and nothing of it runs again; what was said about its calls had no influence"
            found.append(ResultWarning("reconciliation", text))
        for call in next((message.tool_uses for message in reversed(run.history) if message.tool_uses), ()):
            receipt = run.receipts.get(call.call_id)
            if receipt is None or receipt.stage in ("executing", "suspended"):
                continue
            for setting, kind, given in (
                ("approvalResponses", "approval", self._verdicts),
                ("clientToolResults", "client_tool", self._results),
            ):
                item_id = binding_of_call(cast(CallItemKind, kind), run.envelope.run_id, run.step, call).item_id
                if item_id in given or (call.call_id in given and (kind == "client_tool" or names_one_call(run, call.call_id))):
                    text = (
                        f"call {call.call_id!r} ({call.name}) ended as its receipt says; what was given for it had no influence"
                    )
                    found.append(ResultWarning(setting, text))
        return tuple(found)

    def given(
        self, loaded: Loaded, signing: Signing | None, ambiguous: frozenset[str] = frozenset()
    ) -> list[ItemAnswer] | None:
        """The answers to all open items of a suspended run, None if one is missing.

        `ambiguous`: ids of calls that name more than one call of the tree, so that nothing is said by such an id alone.
        """
        run = _run_of(loaded)
        items = read_call_items(loaded.items)
        denied = {
            item.binding.call_id for item in items if item.binding.kind == "approval" and self._denies(item, run, ambiguous)
        }
        found: list[ItemAnswer] = []
        for item in items:
            if not item.is_open:
                continue
            if item.binding.kind == "approval":
                record = self._verdict(item, run, ambiguous)
                if record is not None and signing is not None and record["approved"] is True:
                    record = _with_token_checked(record, item.item_id, run, signing)
                if record is not None and record["approved"] is not True:
                    denied.add(item.binding.call_id)
            else:
                record = self._results.get(item.item_id)
                if record is None and item.binding.call_id not in ambiguous:
                    record = self._results.get(item.binding.call_id)
                if item.binding.call_id in denied:
                    record = NOT_NEEDED
            if record is None:
                return None
            votes = item.row.votes
            found.append(ItemAnswer(item.item_id, encode(record), votes=votes, votes_before=votes))
        return found

    def _denies(self, item: CallItem, run: Run, ambiguous: frozenset[str]) -> bool:
        record = self._verdict(item, run, ambiguous)
        return item.is_open and record is not None and record["approved"] is not True

    def _verdict(self, item: CallItem, run: Run, ambiguous: frozenset[str]) -> Mapping[str, object] | None:
        """Under the approval's id, or the call's where that names one call; None where it may not be given here."""
        record = self._verdicts.get(item.item_id)
        call_id = item.binding.call_id
        if record is None and call_id in self._verdicts and call_id not in ambiguous and names_one_call(run, call_id):
            record = self._verdicts[call_id]
        if record is None:
            return None
        terms = item.approval
        if not isinstance(record.get("by"), str | None):
            return None  # a list of people counts for calls that run again
        if terms.people and record.get("by") not in terms.people:
            return None
        if record["approved"] is True and terms.needed > 1:
            return None  # people approve one by one, each under their own name
        return {**record, "approval_id": item.item_id}


async def handed_in_below(access: Access, loaded: Loaded, answers: Answers) -> Answers:
    """`answers` without words about calls of runs that this one waits for, which are stored where they belong.

    Raises `ReconciliationError` with nothing stored.
    """
    head = loaded.head
    if not answers.words.any or head.parked is not None or not (below := await parked_below(access, head)):
        return answers
    await settle_below(access, head.scope, below, answers.words)
    return Answers(answers.approvals, answers.client_tool_results)


async def hand_in_and_ring(
    access: Access, scope: str, run_id: str, answers: Answers, policy: ExecutionPolicy | None = None
) -> tuple[int | None, tuple[ResultWarning, ...]]:
    """Store `policy` and then `answers`, if they leave nothing open, and ring the run; the revision that it goes on from, None
    if it does not, and what is to be said about answers without influence.

    Raises `RunNotFoundError`, `ConfigurationError`, `AnswerConflictError`; nothing was stored then.
    """
    loaded = await access.store.load(scope, run_id)
    if loaded is None:
        raise not_found(scope, run_id)
    answers = await handed_in_below(access, loaded, answers)
    answers.check(loaded)
    warnings = answers.warnings(loaded)
    if loaded.head.status in FINAL or not answers.settle(loaded):
        return None, warnings
    narrowed = await narrow(access.store, loaded, policy)
    await answers.hand_in(access.store, loaded, await access.signing())
    await access.ring(narrowed)
    await access.ring(await hand_in_below(access.store, loaded.head, answers, await access.signing()))
    head = await access.head(scope, run_id)
    await access.ring([Bell(scope, run_id, head.queue, head.revision, head.priority, head.agent)])
    return loaded.head.revision, warnings


def _was_interrupted(loaded: Loaded) -> bool:
    """Some call may have begun whose outcome is not stored. Bodies are not read for it."""
    newest = {(row.step, row.call_id): row.stage for row in loaded.receipts}
    return loaded.head.mid_step and "executing" in newest.values()


def _run_of(loaded: Loaded) -> Run:
    return read_run(loaded.head, loaded.messages, loaded.receipts)


def _with_token_checked(record: Mapping[str, object], approval_id: str, run: Run, signing: Signing) -> Mapping[str, object]:
    """An approval without a good token denies (APR-015)."""
    envelope = run.envelope
    token = record.get("token")
    if signing.signer.fits(token, envelope.scope, envelope.run_id, approval_id, now_ms=signing.now_ms):
        return record
    return {"approval_id": approval_id, "approved": False, "reason": DENIAL}


def _results_of(given: ClientResults) -> dict[str, Mapping[str, object]]:
    if isinstance(given, Mapping):
        outputs = cast(Mapping[str, object], given)
        return {name: {"tool_call_id": name, "output": output} for name, output in outputs.items()}
    found: dict[str, Mapping[str, object]] = {}
    for record in given:
        name = record.get("tool_call_id")
        if not isinstance(name, str) or "output" not in record or not isinstance(record.get("is_error", False), bool):
            raise ConfigurationError("a client's result has `tool_call_id`, `output` and, for failures, `is_error`")
        if name in found:
            raise ConfigurationError(f"there are two results of call {name!r}; give one")
        found[name] = {part: record[part] for part in ("tool_call_id", "output", "is_error") if part in record}
    return found
