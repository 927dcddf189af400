"""What operators ask about budgets and say: `deuz budget` over HTTP, recorded by the name of the token."""

from __future__ import annotations

from dataclasses import asdict

from pydantic import BaseModel, Field

from deuz_workers.app import ledger
from deuz_workers.app.operating import MOST_TEXT_CHARS
from deuz_workers.core.shared_budget import DEFAULT_BUCKETS, Window
from deuz_workers.core.usage import Budget
from deuz_workers.gateway.bodies import MOST_TOKENS, Body, Id, Ms, Parameters, Text
from deuz_workers.gateway.operation import Call, Operation
from deuz_workers.ports.budgets import ScopeBalance


class WindowBody(Body):
    """Only what was used in the newest `ms` milliseconds counts, in steps of a bucket."""

    ms: Ms = Field(ge=1)
    buckets: int = Field(DEFAULT_BUCKETS, ge=1, le=400)


class SetBudget(Body):
    """The limits are set as a whole, at least one of both; the rest stays where it is not given."""

    tokens: int | None = Field(None, ge=0, le=MOST_TOKENS, description="Input and output together.")
    usd_micros: int | None = Field(None, ge=0, le=MOST_TOKENS, description="Millionths of a US dollar.")
    window: WindowBody | None = None
    warn_at_percent: int | None = Field(None, ge=1, le=100)
    slices: int | None = Field(None, ge=0, le=ledger.MAX_SLICES)
    reason: Text = Field("", max_length=MOST_TEXT_CHARS)


class ReleaseHold(Body):
    reason: Text = Field("", max_length=MOST_TEXT_CHARS)


class UsageQuery(Parameters):
    newest_ms: Ms | None = Field(None, description="Only what was used so long ago at most; the bucket counts whole.")


class HoldsQuery(Parameters):
    key: Id | None = Field(None, description="Held in this budget.")
    older_than_ms: Ms = 0
    limit: int = Field(100, ge=1, le=1_000)


class AuditQuery(Parameters):
    key: Id | None = None
    limit: int = Field(100, ge=1, le=1_000)


class Amounts(BaseModel):
    tokens: int | None
    usd_micros: int | None


class WindowRecord(BaseModel):
    ms: int
    buckets: int


class BudgetRecord(BaseModel):
    """`counted` is what counts against the limit now; `spent`, `held` and `unknown` are of its whole life."""

    key: str
    limit: Amounts = Field(description="None is no limit.")
    counted: Amounts
    spent: Amounts
    held: Amounts
    unknown: Amounts
    window: WindowRecord | None
    warn_at_percent: int | None
    slices: int


class ModelUseRecord(BaseModel):
    """Kinds of tokens and cost are of settled calls."""

    model: str = Field(description="Empty where it was not recorded.")
    calls: int
    spent: Amounts
    held: Amounts
    unknown: Amounts
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost_micros: int | None = Field(description="None: some call had no known price.")


class UsageRecord(BaseModel):
    key: str
    models: list[ModelUseRecord]


class HoldRecord(BaseModel):
    """A call whose outcome nobody knows: its estimate counts in `budgets` until somebody releases it."""

    request_id: str
    run_id: str | None = Field(description="None where the run is gone.")
    scope: str | None
    model: str
    tokens: int
    cost_micros: int
    budgets: list[str]
    at_ms: int
    age_ms: int


class HoldsPage(BaseModel):
    holds: list[HoldRecord]


class Released(BaseModel):
    request_id: str
    budgets: list[str]


class AuditRecord(BaseModel):
    at_ms: int
    actor: str
    action: str = Field(description="`set`, `released` or `compacted`.")
    reason: str
    key: str
    request_id: str | None
    tokens: int | None
    usd_micros: int | None


class AuditPage(BaseModel):
    audit: list[AuditRecord]


async def show(call: Call) -> BaseModel:
    return _record(await ledger.budget(call.gateway.app.store, call.path["key"]))


async def set_(call: Call) -> BaseModel:
    body: SetBudget = call.body
    balance = await ledger.set_budget(
        call.gateway.app.store,
        call.path["key"],
        Budget(body.tokens, body.usd_micros),
        window=None if body.window is None else Window(body.window.ms, body.window.buckets),
        warn_at_percent=body.warn_at_percent,
        slices=body.slices,
        actor=call.principal.name,
        reason=body.reason,
    )
    return _record(balance)


async def usage(call: Call) -> BaseModel:
    query: UsageQuery = call.query
    store, key = call.gateway.app.store, call.path["key"]
    since_ms = None if query.newest_ms is None else max(0, await store.now_ms() - query.newest_ms)
    used = await ledger.usage(store, key, since_ms)
    return UsageRecord(
        key=key,
        models=[
            ModelUseRecord(
                model=use.model,
                calls=use.calls,
                spent=_amounts(use.spent),
                held=_amounts(use.held),
                unknown=_amounts(use.unknown),
                input_tokens=use.usage.input_tokens,
                output_tokens=use.usage.output_tokens,
                cached_tokens=use.usage.cached_tokens,
                cache_write_tokens=use.usage.cache_write_tokens,
                reasoning_tokens=use.usage.reasoning_tokens,
                cost_micros=use.usage.cost_micros,
            )
            for use in used
        ],
    )


async def holds(call: Call) -> BaseModel:
    query: HoldsQuery = call.query
    found = await ledger.holds(call.gateway.app.store, query.key, older_ms=query.older_than_ms, limit=query.limit)
    return HoldsPage(
        holds=[
            HoldRecord(
                request_id=hold.request_id,
                run_id=hold.run_id,
                scope=hold.scope,
                model=hold.model,
                tokens=hold.tokens,
                cost_micros=hold.cost_micros,
                budgets=list(hold.scope_keys),
                at_ms=hold.at_ms,
                age_ms=hold.age_ms,
            )
            for hold in found
        ]
    )


async def release(call: Call) -> BaseModel:
    body: ReleaseHold = call.body
    request_id = call.path["request_id"]
    keys = await ledger.release_hold(call.gateway.app.store, request_id, actor=call.principal.name, reason=body.reason)
    return Released(request_id=request_id, budgets=list(keys))


async def audit(call: Call) -> BaseModel:
    query: AuditQuery = call.query
    rows = await ledger.audit(call.gateway.app.store, query.key, limit=query.limit)
    return AuditPage(
        audit=[
            AuditRecord(
                at_ms=row.at_ms,
                actor=row.actor,
                action=row.action,
                reason=row.reason,
                key=row.scope_key,
                request_id=row.request_id,
                tokens=row.tokens,
                usd_micros=row.micros,
            )
            for row in rows
        ]
    )


def _record(balance: ScopeBalance) -> BudgetRecord:
    return BudgetRecord(
        key=balance.key,
        limit=_amounts(balance.limit),
        counted=_amounts(balance.counted),
        spent=_amounts(balance.spent),
        held=_amounts(balance.held),
        unknown=_amounts(balance.unknown),
        window=None if balance.window is None else WindowRecord(**asdict(balance.window)),
        warn_at_percent=balance.warn_at_percent,
        slices=balance.slices,
    )


def _amounts(budget: Budget) -> Amounts:
    return Amounts(tokens=budget.tokens, usd_micros=budget.usd_micros)


_ONE = "/v1/budgets/{key}"

OPERATIONS = (
    Operation("GET", _ONE, "show_budget", "A budget now", show, BudgetRecord, query=Parameters, access="operator"),
    Operation("PUT", _ONE, "set_budget", "Limit it", set_, BudgetRecord, body=SetBudget, query=Parameters, access="operator"),
    Operation(
        "GET", f"{_ONE}/usage", "budget_usage", "Used, by model", usage, UsageRecord, query=UsageQuery, access="operator"
    ),
    Operation(
        "GET", "/v1/holds", "list_holds", "Calls of unknown outcome", holds, HoldsPage, query=HoldsQuery, access="operator"
    ),
    Operation(
        "POST",
        "/v1/holds/{request_id}/release",
        "release_hold",
        "Free what such a call holds, once",
        release,
        Released,
        body=ReleaseHold,
        query=Parameters,
        access="operator",
    ),
    Operation(
        "GET",
        "/v1/budget-audit",
        "budget_audit",
        "Who did what to budgets",
        audit,
        AuditPage,
        query=AuditQuery,
        access="operator",
    ),
)
