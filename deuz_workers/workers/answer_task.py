"""The Celery tasks `deuz.answer` and `deuz.reconcile`: what people and clients say, from processes that have none of our code.

::

    order = {"run_id": "r-17", "item": "call_1@5f0c2b1d9a7e4410", "approved": True, "by": "ann"}
    signed = sign_order(order, task="deuz.answer", task_id=key, key_id=..., secret=..., issued_at=...)
    celery.send_task("deuz.answer", kwargs=signed, task_id=key, queue="deuz.default")

Each is believed only when it is signed with a producer key whose `doors` name it, for runs of its scopes and agents. What an
answer has to fit is checked as for any other door, beside what the message itself says of it (`step`, `call`, `tool`, `asked`);
what does not fit is refused before anything is written, and the log says which part. Both take a `policy`, which narrows
the run and is stored before the answer.

Events: ``answer_refused`` (`id`, `error`, `part`), ``answer_late`` (`id`, `run`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.exceptions import Reject

from deuz_workers.app.async_handle import AsyncHandle
from deuz_workers.app.deuz import Deuz
from deuz_workers.core.pending_item import arguments_digest
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.signature import FIELD
from deuz_workers.errors import (
    AnswerConflictError,
    ConfigurationError,
    DeuzError,
    EnqueueRefusedError,
    RunNotFoundError,
    StoreUnavailableError,
)
from deuz_workers.workers.host import Host
from deuz_workers.workers.message_door import ANSWER_TASK, DEFAULT_SCOPE, RECONCILE_TASK, believe, shown_id, until_stored
from deuz_workers.workers.step_task import QUIET_REQUEST

PLACE = frozenset(("run_id", "scope"))
VERDICT = frozenset(("approved", "reason", "by", "token", "arguments"))
RESULT = frozenset(("output", "error", "by"))
CLAIMS: Mapping[str, str] = {
    "step": "step",
    "call": "tool_call_id",
    "tool": "tool_name",
    "asked": "arguments",
    "attempt": "attempt",
}
"""What a message may say of that which it was shown, and where it stands there."""

log = logging.getLogger(__name__)

Order = Mapping[str, Any]


def add_answer_tasks(celery: Celery, host: Host) -> None:
    """`celery` accepts both."""
    for name in (ANSWER_TASK, RECONCILE_TASK):
        _add(celery, host, name)


def _add(celery: Celery, host: Host, name: str) -> None:
    @celery.task(name=name, bind=True, shared=False, Request=QUIET_REQUEST, throws=(EnqueueRefusedError,))
    def answer(task: Any, *args: Any, **order: Any) -> str:
        """Store what is said; returns the run's id. Raises `EnqueueRefusedError`, with the code and part of what was wrong."""
        key = str(task.request.id)
        part = None
        try:
            return host.here.call(lambda: until_stored(host, "answer", key, lambda: taken(host.app, name, key, args, order)))
        except StoreUnavailableError as error:
            raise Reject(error.code, requeue=True) from None
        except AnswerConflictError as error:
            log.info("answer_late id=%s run=%s", shown_id(key), error.fields.get("run_id"))
            return f"{error.fields.get('run_id')} {error.code}"  # somebody was faster, or the message came twice
        except DeuzError as error:
            code, part = error.code, error.fields.get("part")
        except Exception as error:  # noqa: BLE001 - its values are the message's content, so only its kind is told
            code = type(error).__name__
        host.dropped["answer_refused"] += 1
        log.warning("answer_refused id=%s error=%s part=%s", shown_id(key), code, part)
        raise EnqueueRefusedError(
            f"the message {shown_id(key)!r} was refused: {code} {part or ''}".strip(), reason=code, part=part
        )


async def taken(app: Deuz, name: str, key: str, args: tuple[Any, ...], order: Order) -> str:
    """What the message `key` of this task says is stored; the run's id. Raises what was wrong, with nothing written then."""
    believed = await check_message(app, name, key, args, order)
    return await (take_answer if name == ANSWER_TASK else take_words)(app, believed)


async def check_message(app: Deuz, name: str, key: str, args: tuple[Any, ...], order: Order) -> Order:
    """The order without its signature. Raises `EnqueueRefusedError` unless its producer may answer that run, which exists."""
    producer = believe(app.settings, app.clock.unix_ms() // 1000, key, order, name)
    order = {given: value for given, value in order.items() if given != FIELD}
    if args:
        raise EnqueueRefusedError("arguments are given by name", code="unknown_argument")
    run_id, scope = order.get("run_id"), order.get("scope", DEFAULT_SCOPE)
    if not isinstance(run_id, str) or not isinstance(scope, str):
        raise EnqueueRefusedError("a run is named by the texts run_id and scope", code="unknown_argument", part="run")
    head = await app.store.head(scope, run_id)
    if not producer.allows(scope, "*" if head is None else head.agent):
        # Of a run that its key does not reach, a producer does not learn whether it exists.
        raise EnqueueRefusedError(
            "this producer key may not answer runs of that agent in that scope (DEUZ_PRODUCER_KEYS: scopes, agents), or "
            "there is no such run in it",
            code="not_allowed",
            part="scope",
        )
    if head is None:
        raise RunNotFoundError(f"there is no run {run_id!r} in scope {scope!r}; check both", part="run")
    return order


async def take_answer(app: Deuz, order: Order) -> str:
    """Store one verdict or one client's result. Raises as `AsyncHandle.approve` does."""
    _only(order, PLACE | VERDICT | RESULT | CLAIMS.keys() - {"attempt"} | {"item", "policy"})
    policy = _policy(order)
    handle, item = _handle(app, order), order.get("item")
    if not isinstance(item, str):
        raise EnqueueRefusedError("an answer names the item that it is for", code="unknown_argument", part="call")
    waiting = (*await handle.pending(), *await handle.pending_client_calls())
    for shown in waiting:
        if shown.item_id == item:
            _check_claims(order, shown)
    approved = order.get("approved")
    if isinstance(approved, bool) and not RESULT & order.keys() - {"by"}:
        if approved:
            given = {name: order.get(name) for name in ("reason", "by", "token", "arguments")}
            await handle.approve(item, **given, policy=policy)
        else:
            await handle.deny(item, order.get("reason"), by=order.get("by"), policy=policy)
    elif approved is None and ("output" in order) != ("error" in order):
        await handle.answer(item, order.get("output"), error=order.get("error"), by=order.get("by"), policy=policy)
    else:
        raise EnqueueRefusedError("an answer has `approved`, `output` or `error`, one of them", code="unknown_argument")
    return handle.run_id


async def take_words(app: Deuz, order: Order) -> str:
    """Store what became of all interrupted calls of a parked run. Raises as `AsyncHandle.reconcile` does."""
    _only(order, PLACE | {"calls", "policy"})
    handle, calls, policy = _handle(app, order), order.get("calls"), _policy(order)
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise EnqueueRefusedError("`calls` is a list of records", code="unknown_argument")
    effects = {effect.effect_id: effect for effect in await handle.unknown_effects()}
    outputs: dict[str, object] = {}
    errors: dict[str, str] = {}
    retry: list[str] = []
    verdicts: dict[str, Mapping[str, object]] = {}
    for call in calls:
        _only(call, {"effect", "output", "error", "again", "verdict"} | CLAIMS.keys())
        name = call.get("effect")
        if not isinstance(name, str) or "@" not in name:
            # By its id alone, a message that comes late would be about another execution of the call.
            raise EnqueueRefusedError("a call is named by its effect id", code="unknown_argument", part="call")
        if name in effects:
            _check_claims(call, effects[name])
        if name in outputs or name in errors or name in retry:
            raise EnqueueRefusedError("a call is named twice", code="unknown_argument", part="call")
        if call.get("again") is True:
            retry.append(name)
            if isinstance(call.get("verdict"), dict):
                verdicts[name] = call["verdict"]
        elif isinstance(call.get("error"), str):
            errors[name] = call["error"]
        elif "output" in call:
            outputs[name] = call["output"]
        else:
            raise EnqueueRefusedError("a call has `output`, `error` or `again`", code="unknown_argument", part="call")
    await handle.reconcile(outputs, errors=errors, retry=retry, approvals=verdicts, policy=policy)
    return handle.run_id


def _handle(app: Deuz, order: Order) -> AsyncHandle:
    return app.aio.handle(order["run_id"], order.get("scope", DEFAULT_SCOPE))


def _policy(order: Order) -> ExecutionPolicy | None:
    """Raises `EnqueueRefusedError` for what is no policy: one that cannot be read narrows nothing."""
    given = order.get("policy")
    if given is None:
        return None
    try:
        if not isinstance(given, dict):
            raise ConfigurationError("a policy is a record")
        return ExecutionPolicy.from_record(given)
    except ConfigurationError:
        raise EnqueueRefusedError("the policy cannot be read here", code="unknown_argument", part="policy") from None


def _only(given: Order, known: frozenset[str] | set[str]) -> None:
    if not given.keys() <= known:
        raise EnqueueRefusedError(f"only these are taken, by name: {', '.join(sorted(known))}", code="unknown_argument")


def _check_claims(given: Order, shown: object) -> None:
    """Raises where the message carries what its sender was shown, and that is not what waits."""
    for name, where in CLAIMS.items():
        if name not in given:
            continue
        said, waits = given[name], getattr(shown, where, None)
        if name == "asked":
            same = isinstance(said, dict) and arguments_digest(said) == arguments_digest(waits or {})
        else:
            same = type(said) is type(waits) and said == waits
        if not same:
            part = "arguments" if name == "asked" else name
            text = f"the message is for another {part} than the one that waits"
            raise EnqueueRefusedError(text, code="answer_refused", part=part)
