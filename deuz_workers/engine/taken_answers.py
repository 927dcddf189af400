"""A suspension whose every item is answered, as events; and items whose time has passed, as answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from deuz_workers.core.approval_token import DENIAL, ApprovalSigner
from deuz_workers.core.change import ItemAnswer, ItemRow
from deuz_workers.core.codec import decode, encode
from deuz_workers.core.delegation import call_of, child_ended
from deuz_workers.core.events import CallExecuted, CallFailed, CallStarted, Event, Resumed
from deuz_workers.core.messages import ToolUsePart
from deuz_workers.core.pending_item import CallItem, arguments_digest, binding_of_call, read_call_item, read_call_items
from deuz_workers.core.render import render
from deuz_workers.core.run import Run
from deuz_workers.errors import CodecError
from deuz_workers.ports.tool import Tool

NO_LIMIT = 2**63 - 1
EXPIRED = "The approval request expired."
NOT_NEEDED: Mapping[str, object] = {"not_needed": True}
"""Answer of a client's item whose call was denied: nobody waits for the result any more."""


def take_answers(
    items: Sequence[ItemRow], run: Run, tools: Mapping[str, Tool], signer: ApprovalSigner | None
) -> tuple[Event, ...]:
    """`Resumed`, then the results of clients and of delegated runs as if their tools had returned them here.

    An answer that is not bound to an open call of this turn counts for nothing.
    """
    read = [(item, call, answer) for item, call, answer in _bound(items, run)]
    verdicts = {
        call.call_id: _judged(answer, item, run, signer) | _sealed(item, call, answer)
        for item, call, answer in read
        if item.binding.kind == "approval"
    }
    events: list[Event] = [Resumed(verdicts, len(items))]
    for item, call, answer in read:
        denied = call.call_id in verdicts and verdicts[call.call_id].get("approved") is not True
        if item.binding.kind == "client_tool" and not denied and "output" in answer and call.call_id not in run.receipts:
            events.append(CallStarted(call.call_id, call.name, False))
            events.append(_outcome(call, answer, len(item.row.answer or ""), tools.get(call.name)))
    return (*events, *_ends_of_children(items, run, tools))


def ended_children(items: Sequence[ItemRow], run: Run, tools: Mapping[str, Tool]) -> tuple[Event, ...]:
    """Of a run that ends while others are still waited for: what its delegated runs that have ended came to and cost."""
    return tuple(_ends_of_children([row for row in items if row.answer is not None], run, tools))


def _ends_of_children(items: Sequence[ItemRow], run: Run, tools: Mapping[str, Tool]) -> Iterator[Event]:
    """An answer that cannot be read fails its call."""
    calls = {call.call_id: call for call in run.open_calls}
    for row in items:
        try:
            call = calls.get(call_of(row) or "")
        except CodecError:
            continue
        receipt = None if call is None else run.receipts.get(call.call_id)
        if call is None or receipt is None or receipt.stage != "suspended":
            continue
        tool = tools.get(call.name)
        try:
            yield child_ended(call, row.answer or "", NO_LIMIT if tool is None else tool.max_result_bytes)
        except CodecError as error:
            yield CallFailed(call.call_id, f"the result of {call.name} cannot be read: {error.message}", "child-failed")


def _bound(items: Sequence[ItemRow], run: Run) -> Iterator[tuple[CallItem, ToolUsePart, Mapping[str, object]]]:
    calls = {call.call_id: call for call in run.open_calls}
    for row in items:
        try:
            item = read_call_item(row)
            answer = decode(row.answer or "null")
        except CodecError:
            continue
        call = None if item is None else calls.get(item.binding.call_id)
        if item is None or call is None or not isinstance(answer, Mapping):
            continue
        # The arguments may be those that guardrails made of the call's; what they are is sealed by the row's digest.
        asked = binding_of_call(item.binding.kind, run.envelope.run_id, run.step, call)
        if replace(asked, arguments=item.binding.arguments).digest == row.digest:
            yield item, call, cast(Mapping[str, object], answer)


def _sealed(item: CallItem, call: ToolUsePart, answer: Mapping[str, object]) -> dict[str, object]:
    """Which arguments were approved, where guardrails had rewritten the model's and nobody edited them since."""
    if "arguments" in answer or dict(item.binding.arguments) == dict(call.arguments or {}):
        return {}
    return {"approved_arguments": arguments_digest(item.binding.arguments)}


def _judged(answer: Mapping[str, object], item: CallItem, run: Run, signer: ApprovalSigner | None) -> dict[str, object]:
    """The verdict without its token; an approval whose token is not one for this request denies.

    Whether the token had expired was judged when the answer came, since an answer may wait for others for long.
    """
    verdict = {name: value for name, value in answer.items() if name != "token"}
    if signer is None or answer.get("approved") is not True:
        return verdict
    envelope = run.envelope
    if signer.fits(answer.get("token"), envelope.scope, envelope.run_id, item.item_id, now_ms=None):
        return verdict
    return {"approval_id": item.item_id, "approved": False, "reason": DENIAL}


def _outcome(call: ToolUsePart, answer: Mapping[str, object], size_bytes: int, tool: Tool | None) -> Event:
    output = answer.get("output")
    if answer.get("is_error") is True:
        return CallFailed(call.call_id, output if isinstance(output, str) else render(output))
    if tool is not None and size_bytes > tool.max_result_bytes:
        text = f"the result of {call.name} takes {size_bytes} bytes, more than the {tool.max_result_bytes} that it may"
        return CallFailed(call.call_id, text)
    return CallExecuted(call.call_id, output)


def expired_answers(items: Sequence[ItemRow]) -> tuple[ItemAnswer, ...]:
    """Denials for the open items whose time has passed."""
    found: list[ItemAnswer] = []
    for item in read_call_items(tuple(items)):
        if item.is_open and item.row.expires_in_ms is not None and item.row.expires_in_ms <= 0:
            denial = encode({"approval_id": item.item_id, "approved": False, "reason": EXPIRED})
            votes = item.row.votes
            found.append(ItemAnswer(item.item_id, denial, votes=votes, votes_before=votes, expired=True, required=False))
            found.extend(companions(item, tuple(items)))
    return tuple(found)


def companions(denied: CallItem, items: tuple[ItemRow, ...]) -> list[ItemAnswer]:
    """What is not waited for any more once an approval is denied: the client's result of the same call."""
    return [
        ItemAnswer(item.item_id, encode(NOT_NEEDED), required=False)
        for item in read_call_items(items)
        if item.binding.kind == "client_tool" and item.binding.call_id == denied.binding.call_id and item.is_open
    ]


def next_expiry_ms(items: Sequence[ItemRow]) -> int | None:
    """From the moment of loading until the first open item expires."""
    return min(
        (
            item.expires_in_ms
            for item in items
            if item.answer is None and item.expires_in_ms is not None and item.expires_in_ms > 0
        ),
        default=None,
    )
