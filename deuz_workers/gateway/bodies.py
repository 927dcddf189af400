"""What requests bring, checked: unknown fields, wrong types and texts that no database keeps are refused."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from deuz_workers.app.names import is_keepable
from deuz_workers.core.usage import Budget

MOST_MS = 36_525 * 86_400_000
"""A century; no clock of a database reaches much further."""
MOST_TOKENS = 10**15


def _keepable(text: str) -> str:
    if not is_keepable(text):
        raise ValueError("NUL and halves of surrogate pairs are kept by no database")
    return text


def _finite(value: JsonValue) -> JsonValue:
    """Python's JSON has NaN and infinities, that of models and databases has not."""
    left: list[JsonValue] = [value]
    while left:
        match left.pop():
            case float(number) if not math.isfinite(number):
                raise ValueError("a number that is none, or too large, is kept by nobody")
            case list(items):
                left.extend(items)
            case dict(fields):
                left.extend(fields.values())
            case _:
                pass
    return value


Json = Annotated[JsonValue, AfterValidator(_finite)]
Text = Annotated[str, AfterValidator(_keepable)]
Id = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_keepable)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
Ms = Annotated[int, Field(ge=0, le=MOST_MS)]
Status = Literal["queued", "running", "suspended", "completed", "stopped", "failed"]


class Body(BaseModel):
    """Of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True, hide_input_in_errors=True)


class BudgetBody(Body):
    """What a run may spend; at least one of both."""

    tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    usd_micros: int | None = Field(None, ge=1, le=MOST_TOKENS, description="Millionths of a US dollar.")

    def made(self) -> Budget:
        return Budget(tokens=self.tokens, usd_micros=self.usd_micros)


class MessageBody(Body):
    role: Literal["user", "assistant"]
    content: Text


class Schedule(Body):
    """How a run is kept, found and scheduled; times are milliseconds from now by the database's clock."""

    deadline_in_ms: Ms | None = None
    tags: dict[Text, Text] = Field(default_factory=dict)
    queue: Name | None = None
    priority: int = Field(0, ge=-100, le=100)
    budget: BudgetBody | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {
            "deadline": in_ms(self.deadline_in_ms),
            "tags": self.tags,
            "queue": self.queue,
            "priority": self.priority,
            "budget": None if self.budget is None else self.budget.made(),
        }


class StartRun(Schedule):
    """Exactly one of `prompt` and `messages`."""

    agent: Name
    prompt: Text | None = None
    messages: list[MessageBody] | None = None
    stream: bool = Field(
        False,
        description="Record what it shows from its beginning on, for readers who come later; not of one that starts later.",
    )
    start_in_ms: Ms | None = None
    start_before_in_ms: Ms | None = None
    concurrency_key: Id | None = None


class TaskBody(Body):
    """Exactly one of `agent` and `reducer`."""

    id: Name
    agent: Name | None = None
    reducer: Name | None = None
    prompt: Text | None = None
    depends_on: list[Name] = Field(default_factory=list)
    budget: BudgetBody | None = None


class StartSwarm(Schedule):
    name: Name
    tasks: list[TaskBody] = Field(min_length=1, max_length=10_000)
    concurrency: int = Field(5, ge=1, le=100_000)


class VerdictBody(Body):
    approval_id: Id = Field(alias="approvalId")
    approved: bool
    reason: Text | None = None
    token: Text | None = None


class ResultBody(Body):
    tool_call_id: Id = Field(alias="toolCallId")
    output: Json
    is_error: bool = Field(False, alias="isError")


class Resume(Body):
    """Verdicts and results together: all that the run waits for, or nothing is stored. In the camelCase of the UI wire."""

    run_id: Id | None = Field(None, alias="runId", description="The run of the path, where the client names it again.")
    stream: bool = Field(False, description="Record what the leg shows from its beginning, for readers who come later.")
    approvals: list[VerdictBody] = Field(default_factory=list)
    client_tool_results: list[ResultBody] = Field(default_factory=list, alias="clientToolResults")
    retry_tool_call_ids: list[Id] = Field(default_factory=list, alias="retryToolCallIds")
    reconciled_tool_results: list[ResultBody] = Field(default_factory=list, alias="reconciledToolResults")


class Approve(Body):
    approval_id: Id
    reason: Text | None = None
    token: Text | None = None
    arguments: dict[str, Json] | None = None


class Deny(Body):
    approval_id: Id
    reason: Text | None = None


class AnswerCall(Body):
    """`output`, or `error`."""

    item_id: Id
    output: Json = None
    error: Text | None = None


class Cancel(Body):
    reason: Text | None = None


class Prune(Body):
    """Runs of the scope that ended at least so long ago."""

    older_than_ms: Ms
    status: list[Literal["completed", "stopped", "failed"]] = Field(
        default_factory=lambda: ["completed", "stopped", "failed"], min_length=1
    )


def in_ms(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


# -- queries ---------------------------------------------------------------------------------------------------------------


class Parameters(BaseModel):
    """Of a request's address; texts are read as numbers where numbers are meant."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class Query(Parameters):
    """`scope`: of which tenant."""

    scope: Id | None = None


class ListQuery(Query):
    status: list[Status] = Field(default_factory=list)
    kind: list[Literal["agent", "swarm"]] = Field(default_factory=list)
    agent: Id | None = None
    queue: Id | None = None
    tag: list[Annotated[str, Field(pattern=r"^[^=]+=.*$"), AfterValidator(_keepable)]] = Field(
        default_factory=list, description="name=value"
    )
    limit: int = Field(50, ge=1, le=500)
    cursor: Annotated[str, Field(pattern=r"^[0-9a-f]{1,15}\.[0-9a-f]{32}$")] | None = None


class ShowQuery(Query):
    wait_ms: int = Field(0, ge=0, le=60_000, description="Answer when the run has something to report, or after so long.")


class EventsQuery(Query):
    after: int = Field(0, ge=0, le=2**62)
    limit: int = Field(500, ge=1, le=500)


class StreamQuery(Query):
    ticket: str | None = Field(None, description="In place of the authorization header.")
