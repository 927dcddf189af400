"""The one door for answers: each is checked against the item it is for, stored at once, and the run is rung (architecture D5).

Client, command line and messages come through here. What does not fit is refused before anything is written, with the part that
does not match.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

from deuz_workers.app.access import Access, not_found
from deuz_workers.app.handoffs import as_executed
from deuz_workers.app.narrowing import store_policy
from deuz_workers.app.pending import Pending
from deuz_workers.core.bare_id import names_one_call
from deuz_workers.core.change import Bell, ItemAnswer
from deuz_workers.core.codec import decode, encode
from deuz_workers.core.delegation import is_below
from deuz_workers.core.envelope import decode_envelope
from deuz_workers.core.pending_item import CallBinding, CallItem, CallItemKind, arguments_digest, read_call_items
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.run import Run, read_run
from deuz_workers.engine.taken_answers import companions
from deuz_workers.errors import AnswerConflictError, AnswerRefusedError, ToolArgumentsError
from deuz_workers.ports.store import Answered


@dataclass(frozen=True, slots=True)
class Answer:
    """It is stored. `open_items`: how many the run still waits for; `still_needed`: people, of an item that needs several."""

    item_id: str
    open_items: int
    still_needed: int = 0


@dataclass(frozen=True, slots=True)
class Door:
    """Of one run. Raises `RunNotFoundError`, `AnswerRefusedError` (nothing was written), `AnswerConflictError`."""

    access: Access
    scope: str
    run_id: str
    policy: ExecutionPolicy | None = None
    """Narrows the run and all below it; stored before the answer, and once nothing speaks against the answer. Where somebody
    else answers in between, they are narrowed all the same."""
    narrows: str | None = None
    """The run that it narrows, where the answer is for one below that; None: the same."""

    async def verdict(
        self,
        approval: str | Pending,
        *,
        approved: bool,
        reason: str | None = None,
        by: str | None = None,
        token: str | None = None,
        arguments: Mapping[str, object] | None = None,
    ) -> Answer:
        """Of a person on a call that waits for an approval. `arguments`: the call runs with these instead."""
        while True:
            door, item, rows = await self.find("approval", approval)
            if door is not self:
                return await door.verdict(approval, approved=approved, reason=reason, by=by, token=token, arguments=arguments)
            self._check_name(item, by)
            self._check_person(item, by, approved=approved)
            self._check_reason(item, reason)
            if approved:
                await self._check_token(item, token or getattr(approval, "token", None))
            record: dict[str, object] = {"approval_id": item.item_id, "approved": approved}
            record |= {
                name: value
                for name, value in (("reason", reason), ("by", by), ("token", token or getattr(approval, "token", None)))
                if value is not None and (approved or name != "token")
            }
            if arguments is not None:
                record |= self._edited(item, rows, arguments, approved=approved)
                await self._check_arguments(item, arguments)
            if approved and item.approval.needed > 1:
                answers, still_needed = self._vote(item, record, by or "")
                if not answers:
                    return Answer(item.item_id, len(rows), still_needed)
            else:
                answers, still_needed = [self._closing(item, record)], 0
                answers += [] if approved else companions(item, tuple(other.row for other in rows))
            answered = await self._store(answers)
            if answered.stored:
                return Answer(item.item_id, answered.open_items, still_needed)
            if answered.winner is not None:
                raise self._conflict(item.item_id, answered.winner)
            if answered.votes == item.row.votes:
                self._refuse("time", f"the request {item.item_id!r} has expired; it counts as denied", code="expired")

    async def result(
        self, call: str | Pending, output: object = None, *, is_error: bool = False, by: str | None = None
    ) -> Answer:
        """What a client's execution of a call returned; with `is_error`, the text of how it failed."""
        door, item, _ = await self.find("client_tool", call)
        if door is not self:
            return await door.result(call, output, is_error=is_error, by=by)
        self._check_name(item, by)
        if is_error and not isinstance(output, str):
            self._refuse("output", f"how {item.item_id!r} failed is said as text")
        record: dict[str, object] = {"tool_call_id": item.binding.call_id, "output": output}
        record |= {"is_error": True} if is_error else {}
        record |= {} if by is None else {"by": by}
        answered = await self._store([self._closing(item, record)])
        if not answered.stored:
            if answered.winner is None:
                self._refuse("call", f"the call {item.item_id!r} is not waited for any more", code="unknown_item")
            raise self._conflict(item.item_id, answered.winner)
        return Answer(item.item_id, answered.open_items)

    async def _store(self, answers: list[ItemAnswer]) -> Answered:
        bells: list[Bell | None] = []
        if self.policy is not None:
            bells.extend(await store_policy(self.access.store, self.scope, self.narrows or self.run_id, self.policy))
        answered = await self.access.store.answer_items(self.scope, self.run_id, answers)
        if answered is None:
            raise not_found(self.scope, self.run_id)
        if answered.stored:
            bells.append(answered.bell)
            if answered.swarm_rid is not None:
                bells.extend(await self.access.store.fill_slots(answered.swarm_rid))
            await self.access.ring(bells)
        return answered

    # -- what an answer has to fit -------------------------------------------------------------------------------------

    async def find(self, kind: CallItemKind, given: str | Pending) -> tuple[Door, CallItem, tuple[CallItem, ...]]:
        """The open item that is meant, all that are open beside it, and the door of their run: this one or one below it."""
        if not isinstance(given, str) and is_below(given.run_id, self.run_id) and await self._delegated(given.run_id):
            door = self._of(given.run_id)
            return await door.find(kind, given)
        if not isinstance(given, str) and given.run_id and given.run_id != self.run_id:
            self._refuse("run", f"the answer is for run {given.run_id!r} and was given to run {self.run_id!r}")
        if not isinstance(given, str) and given.scope and given.scope != self.scope:
            self._refuse("scope", f"the answer is for scope {given.scope!r} and was given to scope {self.scope!r}")
        item_id = given if isinstance(given, str) else given.item_id
        stored = await self.access.store.open_items(self.scope, self.run_id)
        rows = read_call_items(stored)
        item = next((row for row in rows if row.item_id == item_id), None)
        if item is None and any(row.kind == "child_run" for row in stored):
            door = await self._below(kind, item_id)
            return await door.find(kind, given)
        if item is None:
            item = await self._named_by_call(kind, item_id, rows)
        if item.binding.kind != kind:
            does = "approve or deny it" if item.binding.kind == "approval" else "hand in the client's result"
            self._refuse("kind", f"{item_id!r} waits for another kind of answer: {does}")
        if not isinstance(given, str):
            self._check_claims(item.binding, given)
        return self, item, rows

    async def _delegated(self, run_id: str) -> bool:
        """It runs for this one, at any depth. Its id alone does not say so: people choose ids too, and so do swarms."""
        below = (await self.access.store.tree(self.scope, self.run_id))[1:]
        return any(run.run_id == run_id and run.parent_rid is not None for run in below)

    async def _below(self, kind: CallItemKind, item_id: str) -> Door:
        """Of the delegated run, at any depth, that waits under this id; by the id of a call alone if one of them does."""
        below = (await self.access.store.tree(self.scope, self.run_id))[1:]
        waiting = [(run, item) for run in below for item in read_call_items(run.items)]
        for run, item in waiting:
            if item.item_id == item_id:
                return self._of(run.run_id)
        named = {run.run_id: item for run, item in waiting if item.binding.call_id == item_id and item.binding.kind == kind}
        if len(named) == 1:
            return self._of(next(iter(named)))
        if named:
            ids = ", ".join(repr(item.item_id) for item in named.values())
            text = f"{len(named)} runs below {self.run_id!r} wait for a call {item_id!r}; answer under one of {ids}"
            raise self._refusal("call", text)
        for run in below:
            await self._of(run.run_id).refuse_if_answered(item_id)
        shown = ", ".join(f"{item.item_id!r} ({item.binding.tool})" for _, item in waiting) or "nothing"
        text = f"nothing waits under {item_id!r} below run {self.run_id!r}; pending is {shown}"
        raise self._refusal("call", text, code="unknown_item")

    def _of(self, below: str) -> Door:
        return replace(self, run_id=below, narrows=self.narrows or self.run_id)

    async def _named_by_call(self, kind: CallItemKind, item_id: str, rows: tuple[CallItem, ...]) -> CallItem:
        """By the id of its call alone, if the run used that id once (APR-007); otherwise this says what does not match."""
        loaded = await self.access.store.load(self.scope, self.run_id)
        if loaded is None:
            raise not_found(self.scope, self.run_id)
        run = read_run(loaded.head, loaded.messages, loaded.receipts)
        for row in rows:
            if row.binding.kind == kind and row.binding.call_id == item_id:
                if names_one_call(run, item_id):
                    return row
                self._refuse(
                    "call", f"run {self.run_id!r} used the call id {item_id!r} more than once; answer under {row.item_id!r}"
                )
        await self.refuse_if_answered(item_id)
        raise self._unknown(item_id, rows, run)

    async def refuse_if_answered(self, item_id: str) -> None:
        """Nothing open has this id, so this stores nothing; the store knows whether something had it once."""
        answered = await self.access.store.answer_items(self.scope, self.run_id, [ItemAnswer(item_id, None, votes_before="?")])
        if answered is not None and answered.winner is not None:
            raise self._conflict(item_id, answered.winner)

    def _unknown(self, item_id: str, rows: tuple[CallItem, ...], run: Run) -> AnswerRefusedError:
        waiting = ", ".join(f"{row.item_id!r} ({row.binding.tool})" for row in rows) or "nothing"
        call_id = item_id.rpartition("@")[0]
        same_call = [row.binding for row in rows if row.binding.call_id == call_id]
        text = f"nothing waits under {item_id!r} in run {self.run_id!r}"
        part, why = "call", "no such call waits"
        if same_call:
            part, why = "arguments", f"call {call_id!r} waits with other arguments, or the answer is for another run"
        for binding in same_call:
            if step := _step_of(item_id, binding, run):
                part, why = "step", f"that call was of turn {step}, and the one that waits is of turn {binding.step}"
        return self._refusal(part, f"{text}: {why}; pending is {waiting}", code="unknown_item")

    def _check_claims(self, binding: CallBinding, given: Pending) -> None:
        """Raises where the answer carries what it was shown and that differs from what waits."""
        for part, shown, waits in (
            ("step", given.step, binding.step),
            ("call", given.tool_call_id, binding.call_id),
            ("tool", given.tool_name, binding.tool),
        ):
            if shown != waits:
                self._refuse(part, f"the answer is for {part} {shown!r}, and {given.item_id!r} waits for {part} {waits!r}")
        if arguments_digest(given.arguments) != arguments_digest(binding.arguments):
            self._refuse("arguments", f"the answer is for other arguments than those that {given.item_id!r} waits with")

    def _check_name(self, item: CallItem, by: object) -> None:
        """Two people have names that are told apart by whoever reads them."""
        if by is None or (isinstance(by, str) and by.isprintable() and by and by == by.strip()):
            return
        self._refuse("person", f"who answers {item.item_id!r} is named by printable text, with no spaces around it")

    def _check_reason(self, item: CallItem, reason: object) -> None:
        if not isinstance(reason, str | None):
            self._refuse("reason", f"the reason of the verdict on {item.item_id!r} is text")

    def _check_person(self, item: CallItem, by: str | None, *, approved: bool) -> None:
        people = item.approval.people
        if people and by not in people:
            who = "nobody" if by is None else repr(by)
            self._refuse("person", f"{item.item_id!r} is answered by one of {', '.join(people)}, and {who} was named")
        if approved and item.approval.needed > 1 and by is None:
            self._refuse("person", f"{item.item_id!r} needs {item.approval.needed} people; say who approves")

    async def _check_token(self, item: CallItem, token: str | None) -> None:
        signer = self.access.signer
        if signer is None:
            return
        read = signer.read(token, now_ms=None)
        if read is None:
            what = "missing" if token is None else "not one of ours"
            self._refuse("token", f"the token of {item.item_id!r} is {what}; take the one that the request shows")
        for part, named, wanted in (
            ("run", read.run_id, self.run_id),
            ("scope", read.scope, self.scope),
            ("request", read.approval_id, item.item_id),
        ):
            if named != wanted:
                self._refuse("token", f"the token is for {part} {named!r}, and the answer for {part} {wanted!r}")
        if await self.access.store.now_ms() >= read.expires_at_s * 1000:
            self._refuse("token", f"the token of {item.item_id!r} has expired; look at the request again for a new one")

    def _edited(
        self, item: CallItem, rows: tuple[CallItem, ...], arguments: Mapping[str, object], *, approved: bool
    ) -> dict[str, object]:
        """Both digests are recorded: of what was asked for and of what may run."""
        if not approved:
            self._refuse("arguments", "a call that is denied does not run, so its arguments cannot be edited")
        if any(row.binding.kind == "client_tool" and row.binding.call_id == item.binding.call_id for row in rows):
            self._refuse(
                "arguments", f"the client has the call {item.binding.call_id!r} already; its arguments cannot be edited"
            )
        bound = item.binding
        edited = CallBinding(bound.kind, bound.run_id, bound.step, bound.call_id, bound.tool, arguments)
        return {"arguments": dict(arguments), "asked_digest": item.row.digest, "digest": edited.digest}

    async def _check_arguments(self, item: CallItem, arguments: Mapping[str, object]) -> None:
        """Against the tool's own schema where this process knows the agent; the step checks them in any case."""
        if self.access.registry is None:
            return
        head = await self.access.head(self.scope, self.run_id)
        agent = self.access.registry.agent(head.agent)
        tool = None if agent is None else as_executed(agent, decode_envelope(head)).tools.get(item.binding.tool)
        if tool is None:
            return
        try:
            tool.validate(arguments)
        except ToolArgumentsError as error:
            self._refuse("arguments", error.message)

    # -- what is stored ------------------------------------------------------------------------------------------------

    def _closing(self, item: CallItem, record: Mapping[str, object]) -> ItemAnswer:
        return ItemAnswer(item.item_id, encode(record), votes=item.row.votes, votes_before=item.row.votes)

    def _vote(self, item: CallItem, record: dict[str, object], by: str) -> tuple[list[ItemAnswer], int]:
        """One approval more; the last that is needed answers the item. None if this person has approved before."""
        before = item.votes
        needed = item.approval.needed
        if any(vote.get("digest") != record.get("digest") for vote in before):
            self._refuse(
                "arguments", f"those who approved {item.item_id!r} before agreed to other arguments; agree to the same"
            )
        if any(vote.get("by") == by for vote in before):
            return [], needed - len(before)
        votes = [*before, record]
        if len(votes) < needed:
            return [ItemAnswer(item.item_id, None, votes=encode(votes), votes_before=item.row.votes)], needed - len(votes)
        record = {**record, "people": [str(vote.get("by")) for vote in votes]}
        return [ItemAnswer(item.item_id, encode(record), votes=encode(votes), votes_before=item.row.votes)], 0

    def _conflict(self, item_id: str, winner: str) -> AnswerConflictError:
        won = cast(Mapping[str, object], decode(winner))
        told = {name: won[name] for name in ("approved", "reason", "by", "is_error") if isinstance(won.get(name), str | bool)}
        said = "approved" if won.get("approved") is True else "denied" if won.get("approved") is False else "answered"
        by = f" by {won['by']}" if isinstance(won.get("by"), str) else ""
        return AnswerConflictError(
            f"{item_id!r} of run {self.run_id!r} was {said}{by} before, and that answer stays",
            run_id=self.run_id,
            item_id=item_id,
            **cast("dict[str, Any]", told),
        )

    def _refuse(self, part: str, text: str, *, code: str = "answer_refused") -> NoReturn:
        raise self._refusal(part, text, code=code)

    def _refusal(self, part: str, text: str, *, code: str = "answer_refused") -> AnswerRefusedError:
        return AnswerRefusedError(text, code=code, part=part, run_id=self.run_id)


def _step_of(item_id: str, binding: CallBinding, run: Run) -> int | None:
    """The turn whose call of the same id this item was for, with the arguments that it has now or had then."""
    step = 0
    for message in run.history:
        if message.role != "assistant":
            continue
        step += 1
        tried = [binding.arguments, *(call.arguments or {} for call in message.tool_uses if call.call_id == binding.call_id)]
        for arguments in tried:
            other = CallBinding(binding.kind, binding.run_id, step, binding.call_id, binding.tool, arguments)
            if step != binding.step and other.item_id == item_id:
                return step
    return None
