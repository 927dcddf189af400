"""What a producer asks for, as the row that is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, cast, get_args

from deuz_workers.app.agent import Agent, check_policy
from deuz_workers.app.conversation import Content, GivenMessage, first_messages
from deuz_workers.app.names import check_id, check_name, check_run_id, is_keepable
from deuz_workers.app.nesting import link_of, nested_in, scope_below
from deuz_workers.core.change import MessageRow
from deuz_workers.core.chat import RunChat
from deuz_workers.core.codec import digest, encode
from deuz_workers.core.envelope import AgentRunEnvelope, encode_body
from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import message_to_record
from deuz_workers.core.names import run_scope_key
from deuz_workers.core.policy import NO_POLICY, ExecutionPolicy
from deuz_workers.core.shared_budget import SharedBudget, shared_keys
from deuz_workers.core.usage import Budget, check_budget
from deuz_workers.errors import CodecError, ConfigurationError, RunExistsError, ScopeMismatchError
from deuz_workers.ports.execution import Execution
from deuz_workers.ports.runtime import Ids
from deuz_workers.ports.store import Created, NewRun, When

Moment = datetime | timedelta
"""A point in time with a zone, or a time from now by the database's clock."""
SharedBudgets = Iterable[str | SharedBudget]
OnConflict = Literal["return", "reject"]

FARTHEST = timedelta(days=36_525)
"""A century. The clocks of the databases end somewhere, each at another moment; whoever means "never" leaves it out."""
MAX_TAG_BYTES = 2_000
"""Name and value together as UTF-8: tags are found by an index, a row of which takes 2,700 bytes in Postgres."""

NO_TAGS: Mapping[str, str] = {}
IN_PROCESS_QUEUE = "in-process"
"""Runs that are driven by the process that started them; no worker takes from it unless told to."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is kept, found and scheduled; the same for agents and swarms.

    Raises `ConfigurationError` for what cannot be meant, before anything is written.
    """

    run_id: str | None = None
    """None: a new one. It is unique over all scopes."""
    idempotency_key: str | None = None
    """Unique per scope: asking again under it gives the run that is there."""
    scope: str = "default"
    start_at: Moment | None = None
    deadline: Moment | None = None
    """A run that has not ended by then fails with `deadline_exceeded`."""
    start_before: Moment | None = None
    """A run that has not begun by then is stopped with `start-before-passed`."""
    tags: Mapping[str, str] = field(default_factory=lambda: NO_TAGS)
    queue: str | None = None
    priority: int = 0
    """Higher first, -100 to 100."""
    budget: Budget | None = None
    concurrency_key: str | None = None
    """Of the runs of the scope that name it, only as many run at a time as it has slots."""
    on_conflict: OnConflict = "return"
    """`reject`: raise `RunExistsError` although the run that is there was asked for the same."""
    policy: ExecutionPolicy | None = None
    """What the run may do, beside what its agent's policy says."""
    shared_budgets: SharedBudgets = ()
    """What its model calls are charged to beside its own budget; a key alone is charged as it is stored."""
    chat: RunChat | None = None
    """Where its transcript is written too."""
    execution: Execution | None = None
    """Of the run whose tool or verifier starts this one."""

    def __post_init__(self) -> None:
        check_id("a scope", self.scope)
        if self.run_id is not None:
            check_run_id(self.run_id)
        if self.idempotency_key is not None:
            check_id("an idempotency key", self.idempotency_key)
        if self.concurrency_key is not None:
            check_id("a concurrency key", self.concurrency_key)
        if self.queue is not None:
            check_name("a queue", self.queue)
        if type(self.priority) is not int or not -100 <= self.priority <= 100:
            raise ConfigurationError(f"a priority is a whole number from -100 to 100, not {self.priority!r}")
        if self.budget is not None:
            check_budget("this run", self.budget)
        check_policy("this run", self.policy)
        object.__setattr__(self, "shared_budgets", shared_budgets(self.shared_budgets))
        keys = [shared.key for shared in self.shared]
        if len(set(keys)) < len(keys):
            raise ConfigurationError(f"a shared budget is named twice: {', '.join(sorted(keys))}")
        if self.on_conflict not in get_args(OnConflict):
            raise ConfigurationError(f"on_conflict is 'return' or 'reject', not {self.on_conflict!r}")
        check_tags(self.tags)
        for name in ("start_at", "deadline", "start_before"):
            when(name, getattr(self, name))

    @property
    def shared(self) -> tuple[SharedBudget, ...]:
        """`shared_budgets` in the order of their keys."""
        return cast("tuple[SharedBudget, ...]", self.shared_budgets)


def check_tags(tags: object) -> None:
    """Raises `ConfigurationError`, naming the tag, for one that is not text or that the databases cannot keep and find."""
    if not isinstance(tags, Mapping):
        raise ConfigurationError(f"tags are a mapping of text to text, not a {type(tags).__name__}")
    for key, value in cast(Mapping[object, object], tags).items():
        check_id("the name of a tag", key)
        if not isinstance(value, str):
            raise ConfigurationError(f"tag {key!r} is a {type(value).__name__}; tags are text")
        if not is_keepable(value):
            raise ConfigurationError(f"tag {key!r} has a value with NUL or half of a surrogate pair, which no database keeps")
        if len(f"{key}{value}".encode()) > MAX_TAG_BYTES:
            raise ConfigurationError(f"tag {key!r} takes more than {MAX_TAG_BYTES} bytes; tags are found by, not read")


def when(name: str, moment: Moment | None) -> When | None:
    """The moment as the store judges it.

    Raises `ConfigurationError` for a datetime without a zone, and for what lies beyond `FARTHEST` or the reach of clocks.
    """
    match moment:
        case None:
            return None
        case timedelta():
            if abs(moment) > FARTHEST:
                raise ConfigurationError(f"{name} is {moment.days} days away; up to {FARTHEST.days} can be meant")
            return When(in_ms=round(moment / timedelta(milliseconds=1)))
        case datetime():
            try:
                has_zone = moment.tzinfo is not None and moment.utcoffset() is not None
                at_ms = round(moment.timestamp() * 1000) if has_zone else 0
            except (ArithmeticError, ValueError):
                raise ConfigurationError(f"{name} lies where its time zone has no moments; use an earlier one") from None
            if not has_zone:
                raise ConfigurationError(f"{name} has no time zone, so it is a different moment on every machine; add one")
            return When(at_ms=at_ms)
        case _:
            raise ConfigurationError(f"{name} is a datetime with a zone or a timedelta, not a {type(moment).__name__}")


def embedded_options(
    run_id: str | None,
    idempotency_key: str | None,
    scope: str,
    deadline: Moment | None,
    tags: Mapping[str, str],
    budget: Budget | None,
    on_conflict: OnConflict | None,
    policy: ExecutionPolicy | None,
    shared_budgets: SharedBudgets,
    chat: RunChat | None = None,
    execution: Execution | None = None,
) -> Options:
    """Of a run that this process executes: no worker looks for it, and asking again under an idempotency key finds it."""
    return Options(
        run_id,
        idempotency_key,
        scope_below(execution, scope),
        deadline=deadline,
        tags=tags,
        queue=IN_PROCESS_QUEUE,
        budget=budget,
        on_conflict=on_conflict or ("return" if idempotency_key else "reject"),
        policy=policy,
        shared_budgets=shared_budgets,
        chat=chat,
        execution=execution,
    )


def agent_run(
    ids: Ids,
    agent: str,
    known: Agent | None,
    *,
    prompt: Content | None,
    messages: Iterable[GivenMessage] | None,
    options: Options,
    trace: str | None = None,
) -> NewRun:
    """The row of a run of `agent`; `known`: its definition, where this process has it."""
    history = first_messages(prompt, messages)
    budget = options.budget or (known.budget if known else None)
    rid = ids.rid()
    run_id = options.run_id or str(rid)
    policy = (known.definition.policy if known else NO_POLICY).narrowed(options.policy)
    asked_for: dict[str, object] = {} if options.policy is None else {"policy": options.policy.to_record()}
    asked_for |= shared_record(options.shared)
    asked_for |= {} if options.chat is None else {"chat": options.chat.to_record()}
    charged, shared, nested, deadline = shared_keys(options.shared), options.shared, None, when("deadline", options.deadline)
    if options.execution is not None:
        policy, deadline = _bounded(options.execution, policy, deadline)
        charged, shared = options.execution.charged(*shared)
        nested = nested_in(options.execution)
        asked_for["nested"] = nested.scope_id
    envelope = AgentRunEnvelope(
        rid,
        options.scope,
        run_id,
        "agent",
        agent,
        limits=known.limits if known else Limits(),
        scopes=((run_scope_key(rid),) if budget else ()) + charged,
        shared=shared,
        policy=policy,
        trace=trace,
        chat=options.chat,
        nested=nested,
    )
    records = [message_to_record(message) for message in history]
    return NewRun(
        rid,
        options.scope,
        run_id,
        "agent",
        agent,
        encode_body(envelope),
        message_rows(records),
        version=1 if options.chat is None else 2,
        queue=options.queue or (known.queue if known else "default"),
        priority=options.priority,
        start=when("start_at", options.start_at),
        deadline=_deadline(deadline, policy),
        start_before=when("start_before", options.start_before),
        tags=dict(options.tags),
        concurrency_key=options.concurrency_key or (known.concurrency_key if known else None),
        idempotency_key=options.idempotency_key,
        input_digest=digest({"agent": agent, "messages": records, "budget": budget_record(budget), **asked_for}),
        budget=budget,
        trace=trace,
    )


def _bounded(above: Execution, policy: ExecutionPolicy, asked: When | None) -> tuple[ExecutionPolicy, When | None]:
    """Policy and deadline of a run in that context: what both allow, and the earlier moment.

    A moment by the clock of the store cannot be compared with one from now, so the policy keeps that one.
    """
    policy, left_ms = above.policy.narrowed(policy), link_of(above).left_ms()
    if left_ms is None:
        return policy, asked
    left_ms = max(0, left_ms)
    if asked is not None and asked.at_ms is not None:
        policy = policy.narrowed(ExecutionPolicy(deadline_ms=max(0, asked.at_ms)))
    elif asked is not None and asked.in_ms is not None:
        left_ms = min(left_ms, asked.in_ms)
    return policy, When(in_ms=left_ms)


def _deadline(asked: When | None, policy: ExecutionPolicy) -> When | None:
    """The earlier of both, where that can be told without the store's clock; the policy's is watched by the steps too."""
    if policy.deadline_ms is None or (asked is not None and asked.at_ms is None):
        return asked
    return When(at_ms=policy.deadline_ms if asked is None or asked.at_ms is None else min(asked.at_ms, policy.deadline_ms))


MAX_MESSAGE_BYTES = 5_000_000
"""As much as a tool may return; what is larger belongs into files that tools read."""


def message_rows(records: list[dict[str, object]]) -> tuple[MessageRow, ...]:
    try:
        return tuple(MessageRow(seq, encode(record, max_bytes=MAX_MESSAGE_BYTES)) for seq, record in enumerate(records))
    except CodecError as error:
        raise ConfigurationError(f"a message of the run cannot be stored: {error.message}") from None


def budget_record(budget: Budget | None) -> list[int | None] | None:
    return None if budget is None else [budget.tokens, budget.usd_micros]


def shared_budgets(given: SharedBudgets) -> tuple[SharedBudget, ...]:
    """As values, by key. Raises `ConfigurationError`."""
    if isinstance(given, str | SharedBudget):
        raise ConfigurationError("shared_budgets is a list of keys or SharedBudget(...)")
    found: list[SharedBudget] = []
    for one in given:
        if not isinstance(one, str | SharedBudget):  # pyright: ignore[reportUnnecessaryIsInstance] - what users pass
            raise ConfigurationError(f"a shared budget is a key or a SharedBudget, not a {type(one).__name__}")
        found.append(SharedBudget(one, as_stored=True) if isinstance(one, str) else one)
        if found[-1].inherited:
            raise ConfigurationError(f"{found[-1].key!r} is a part of a run's ledger; pass that run's context as `execution`")
        if found[-1].limit.is_limited:
            check_budget(f"shared budget {found[-1].key!r}", found[-1].limit)
    return tuple(sorted(found, key=lambda shared: shared.key))


def shared_record(shared: tuple[SharedBudget, ...]) -> dict[str, object]:
    """For digests of what was asked for; nothing where nothing is shared."""
    return {"shared_budgets": [one.to_record() for one in shared]} if shared else {}


def check_created(asked: NewRun, created: Created, options: Options) -> None:
    """Accept what the store answered. Raises `ScopeMismatchError` or `RunExistsError`; nothing was written then."""
    if created.created:
        return
    if created.scope != asked.scope:
        raise ScopeMismatchError(
            "Native checkpoint version, identity, or scope mismatch. "
            f"Run id {asked.run_id!r} is taken in another scope; choose another id",
            run_id=asked.run_id,
        )
    by_key = options.run_id is None or created.run_id != options.run_id
    name = f"idempotency key {options.idempotency_key!r}" if by_key else f"run id {created.run_id!r}"
    if not created.same_input or (options.run_id is not None and created.run_id != options.run_id):
        raise RunExistsError(
            f"{name} belongs to run {created.run_id!r} ({created.status}), which was asked for something else; "
            "use another one, or ask for exactly the same",
            run_id=created.run_id,
            status=created.status,
        )
    if options.on_conflict == "reject":
        raise RunExistsError(
            f"{name} belongs to run {created.run_id!r} ({created.status}); take its handle with app.handle(run_id)",
            run_id=created.run_id,
            status=created.status,
        )
