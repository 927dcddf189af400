"""What MCP servers may ask a model, and what it costs whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deuz_workers import (
    Agent,
    Budget,
    BudgetLedgerError,
    ConfigurationError,
    DeuzError,
    ExecutionContext,
    ExecutionPolicyError,
    McpSampling,
    MockModel,
    SamplingRequest,
    SharedBudget,
    create_execution_context,
)
from deuz_workers.core.messages import user
from tests.app.world import World

WIRE: dict[str, Any] = {"messages": [{"role": "user", "content": {"type": "text", "text": "How much?"}}], "maxTokens": 100}


@dataclass
class Asked:
    """An approver that remembers what it saw."""

    says: object = True
    seen: list[SamplingRequest] = field(default_factory=list[SamplingRequest])

    async def __call__(self, request: SamplingRequest) -> object:
        self.seen.append(request)
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


def sampling(memory: World, context: ExecutionContext | None = None, **given: Any) -> tuple[McpSampling, MockModel]:
    model = MockModel(["forty-two"])
    return McpSampling(model, context or create_execution_context(), memory.store, **given), model


async def used(memory: World, key: str) -> tuple[int | None, int | None] | None:
    """Tokens that a shared budget has spent and holds; None: nobody used it."""
    found = await memory.store.balance(key)
    return None if found is None else (found.spent.tokens, (found.held.tokens or 0) + (found.unknown.tokens or 0))


@pytest.mark.spec("MCS-001")
@pytest.mark.parametrize("what", ["model", "deadline"])
async def test_the_policy_comes_before_the_approver(memory: World, what: str) -> None:
    """A forbidden model or a deadline that has passed: nobody is asked."""
    past = datetime.now(UTC) - timedelta(hours=1)
    context = create_execution_context(allowed_models=["other"]) if what == "model" else create_execution_context(deadline=past)
    approve = Asked()
    made, model = sampling(memory, context, approve=approve)
    with pytest.raises(ExecutionPolicyError) as refused:
        await made.sampled(made.request_of(WIRE))
    assert refused.value.code == {"model": "model_not_allowed", "deadline": "deadline_exceeded"}[what]
    assert (approve.seen, model.requests) == ([], ())


@pytest.mark.spec("MCS-001", "MCS-005")
@pytest.mark.parametrize("says", [False, None, "yes", ValueError("broken")])
async def test_what_is_not_approved_costs_nothing(memory: World, says: object) -> None:
    """Only True allows it. The approver sees the request with its limit; no run, no reservation, no call; an error for the
    server."""
    approve = Asked(says)
    context = create_execution_context(budget_key="team", tokens=1_000_000)
    made, model = sampling(memory, context, approve=approve)
    with pytest.raises(ExecutionPolicyError, match="not approved"):
        await made.sampled(made.request_of(WIRE))
    [request] = approve.seen
    assert (request.max_tokens, request.messages[0].text, model.requests) == (100, "How much?", ())
    assert await used(memory, "team") is None


@pytest.mark.spec("MCS-002", "MCS-005")
async def test_a_server_cannot_spend_beyond_the_budget(memory: World) -> None:
    """The call is refused before it is sent, and nothing stays reserved."""
    context = create_execution_context(budget_key="team", tokens=10)
    made, model = sampling(memory, context)
    with pytest.raises(DeuzError) as refused:
        await made.sampled(made.request_of(WIRE))
    assert (refused.value.code, model.requests) == (BudgetLedgerError.code, ())
    assert await used(memory, "team") in (None, (0, 0))


@pytest.mark.spec("MCS-003")
async def test_a_child_context_counts_apart_within_the_parent(memory: World) -> None:
    """What the server asked for is in both, and the smaller of the two limits holds."""
    parent = create_execution_context(budget_key="team", tokens=1_000_000)
    child = parent.narrowed(None, SharedBudget("servers", Budget.of(tokens=500_000)))
    made, _ = sampling(memory, child)
    assert (await made.sampled(made.request_of(WIRE)))[0] == "forty-two"
    assert (await used(memory, "servers"), await used(memory, "team")) == ((15, 0), (15, 0))
    await memory.process(Agent("x", model=MockModel(["done"]))).aio.run_embedded("x", "go", **parent.options)
    assert (await used(memory, "servers"), await used(memory, "team")) == ((15, 0), (30, 0))
    poor, model = sampling(memory, parent.narrowed(None, SharedBudget("poor", Budget.of(tokens=20))))
    with pytest.raises(DeuzError):
        await poor.sampled(poor.request_of(WIRE))
    assert model.requests == ()


@pytest.mark.spec("MCS-004")
@pytest.mark.parametrize(
    ("wanted", "most", "sent"), [(100, 4_096, 100), (9_999, 500, 500), (None, 4_096, 1_024), (None, 50, 50)]
)
async def test_the_limit_is_only_ever_lowered(memory: World, wanted: int | None, most: int, sent: int) -> None:
    """As the model gets it."""
    made, model = sampling(memory, max_tokens=most)
    wire = {name: value for name, value in WIRE.items() if name != "maxTokens"} | (
        {} if wanted is None else {"maxTokens": wanted}
    )
    await made.sampled(made.request_of({**wire, "systemPrompt": "Be short.", "temperature": 0.5}))
    [request] = model.requests
    assert (request.max_output_tokens, request.temperature) == (sent, 0.5)
    assert [message.role for message in request.messages] == ["system", "user"]


async def test_what_cannot_be_asked_for_is_refused(memory: World) -> None:
    """Tools of the server's, sounds; and a sampling that cannot be meant."""
    made, _ = sampling(memory)
    for wire in ({**WIRE, "tools": [{"name": "x"}]}, {"messages": [{"role": "user", "content": {"type": "audio"}}]}):
        with pytest.raises(ConfigurationError):
            made.request_of(wire)
    assert made.request_of(WIRE).messages == (user("How much?"),)
    wrongs: list[dict[str, Any]] = [{"max_tokens": 0}, {"approve": "yes"}]
    for wrong in wrongs:
        with pytest.raises(ConfigurationError):
            sampling(memory, **wrong)
