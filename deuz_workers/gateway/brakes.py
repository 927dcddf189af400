"""What operators stop and let go on: `deuz brake` over HTTP, recorded by the name of the token."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

from pydantic import BaseModel, Field

from deuz_workers.app.operating import MOST_TEXT_CHARS
from deuz_workers.core.brake import BrakeKind
from deuz_workers.gateway.bodies import Body, Parameters, Text
from deuz_workers.gateway.operation import Call, Operation


class SayBrake(Body):
    reason: Text | None = Field(None, max_length=MOST_TEXT_CHARS)


class BrakesQuery(Parameters):
    acts: int = Field(0, ge=0, le=1_000, description="Also the newest so many acts: who did what.")


class BrakeRecord(BaseModel):
    kind: str
    name: str
    reason: str | None
    actor: str | None
    at_ms: int


class BrakeActRecord(BrakeRecord):
    act: str


class BrakesPage(BaseModel):
    brakes: list[BrakeRecord]
    acts: list[BrakeActRecord]


class BrakeSet(BaseModel):
    kind: str
    name: str
    reason: str | None
    actor: str


class BrakeLifted(BaseModel):
    lifted: bool = Field(description="False: there was none.")
    kind: str
    name: str


async def set_(call: Call) -> BaseModel:
    body: SayBrake = call.body
    kind, name, actor = cast(BrakeKind, call.path["kind"]), call.path["name"], call.principal.name
    await call.gateway.app.aio.operator.set_brake(kind, name, reason=body.reason, actor=actor)
    return BrakeSet(kind=kind, name=name, reason=body.reason, actor=actor)


async def lift(call: Call) -> BaseModel:
    body: SayBrake = call.body
    kind, name, actor = cast(BrakeKind, call.path["kind"]), call.path["name"], call.principal.name
    lifted = await call.gateway.app.aio.operator.lift_brake(kind, name, reason=body.reason, actor=actor)
    return BrakeLifted(lifted=lifted, kind=kind, name=name)


async def listed(call: Call) -> BaseModel:
    query: BrakesQuery = call.query
    operator = call.gateway.app.aio.operator
    acts = await operator.brake_acts(query.acts) if query.acts else ()
    return BrakesPage(
        brakes=[BrakeRecord.model_validate(asdict(brake)) for brake in await operator.brakes()],
        acts=[BrakeActRecord.model_validate(asdict(act)) for act in acts],
    )


_ONE = "/v1/brakes/{kind}/{name}"

OPERATIONS = (
    Operation(
        "GET", "/v1/brakes", "list_brakes", "Brakes that are set", listed, BrakesPage, query=BrakesQuery, access="operator"
    ),
    Operation(
        "PUT", _ONE, "set_brake", "Nothing begins of it", set_, BrakeSet, body=SayBrake, query=Parameters, access="operator"
    ),
    Operation(
        "POST",
        f"{_ONE}/lift",
        "lift_brake",
        "Let it go on",
        lift,
        BrakeLifted,
        body=SayBrake,
        query=Parameters,
        access="operator",
    ),
)
