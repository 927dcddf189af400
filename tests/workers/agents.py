"""The application that real worker processes of these tests import: scripted models, tools that leave traces in files."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.core.limits import Limits
from deuz_workers.ports.context import RunContext, RunFacts
from deuz_workers.ports.guard import StepInfo, StepPlan
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.tool import ToolContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.tools.decorator import tool

TRACES = "TEST_TRACES"
"""Environment variable: the folder in which tools leave their traces."""


def trace(name: str, line: str) -> None:
    """Append one line to a file of the traces' folder, at once or not at all."""
    handle = os.open(Path(os.environ[TRACES]) / name.replace("/", "_"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, f"{line}\n".encode())
    finally:
        os.close(handle)


@tool(replay="idempotent")
def read(context: ToolContext, n: int) -> str:
    """Look something up."""
    trace("read", f"{context.idempotency_key} {os.getpid()}")
    return f"read {n}"


@tool
def write(context: ToolContext, n: int) -> str:
    """Do something that must not happen twice."""
    trace("write", f"{context.idempotency_key} {os.getpid()}")
    return f"wrote {n}"


@tool
async def awrite(context: ToolContext, n: int) -> str:
    """The same as a coroutine."""
    trace("write", f"{context.idempotency_key} {os.getpid()}")
    await asyncio.sleep(0)
    return f"wrote {n}"


@tool
def hold(context: ToolContext, name: str) -> str:
    """Say that it began, and go on when the file `<name>.go` appears."""
    trace("hold", f"{context.idempotency_key} {os.getpid()}")
    go = Path(os.environ[TRACES]) / f"{name}.go"
    while not go.exists():
        time.sleep(0.01)
    return "held"


@tool(replay="idempotent")
def hold_again(context: ToolContext, name: str) -> str:
    """The same, and safe to repeat."""
    trace("hold", f"{context.idempotency_key} {os.getpid()}")
    go = Path(os.environ[TRACES]) / f"{name}.go"
    while not go.exists():
        time.sleep(0.01)
    return "held"


@tool(needs_approval=True)
def sign(context: ToolContext, name: str) -> str:
    """Do what a person has to allow."""
    trace("sign", f"{context.idempotency_key} {os.getpid()}")
    return f"signed {name}"


@tool(replay="idempotent")
async def nothing() -> None:
    """The smallest tool there is."""


@tool(context_schema=dict[str, str])
def whoami(context: ToolContext) -> str:
    """Say what this process was given for the run."""
    trace("whoami", f"{context.context['name']} {os.getpid()}")
    return "known"


def made_context(facts: RunFacts) -> RunContext:
    """What cannot travel in a queue."""
    return RunContext(tools={"whoami": {"name": f"{facts.tags['name']} of {facts.run_id}"}})


def prepared(info: StepInfo) -> StepPlan:
    """Says where it runs, and lets the model call nothing from the second turn on."""
    trace("prepared", f"{info.step} {os.getpid()}")
    return StepPlan(active_tools=["nothing"] if info.step == 1 else [])


def turns_of(request: ModelRequest) -> int:
    """Turns that the prompt asks for: its first word."""
    return int(request.messages[0].text.split()[0]) if request.messages[0].role == "user" else 1


def turn_of(request: ModelRequest) -> int:
    return 1 + sum(message.role == "assistant" for message in request.messages)


def many(*names: str) -> MockModel:
    """Calls the named tools in turn, as many turns as the prompt's first word says, then says `done`."""

    def answer(request: ModelRequest) -> Entry:
        turn = turn_of(request)
        if turn > turns_of(request):
            return "done"
        name = names[(turn - 1) % len(names)]
        return calls(call(name) if name in ("nothing", "nobody", "whoami") else call(name, n=turn))

    return MockModel.function(answer)


def held(name: str) -> MockModel:
    """Calls the tool `name` once, with the prompt as the name of what to wait for."""
    return MockModel.function(
        lambda request: "done" if turn_of(request) > 1 else calls(call(name, name=request.messages[0].text))
    )


def asks() -> MockModel:
    """Says that it was asked, and answers when the file that the prompt names is there."""

    async def answer(request: ModelRequest) -> Entry:
        trace("asked", request.request_id)
        go = Path(os.environ[TRACES]) / f"{request.messages[0].text}.go"
        while not go.exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.01)
        return "done"

    return MockModel.function(answer)


LONG = Limits(max_steps=100_000)


def application(settings: Settings | None = None) -> Deuz:
    """The application; `settings` None: from the environment."""
    return Deuz(
        [
            Agent("worker", model=many("write", "read", "awrite"), tools=[read, write, awrite], limits=LONG),
            Agent("empty", model=many("nothing"), tools=[nothing], limits=LONG),
            Agent("refused", model=many("nobody"), limits=LONG),
            Agent("holder", model=held("hold"), tools=[hold]),
            Agent("thinker", model=asks()),
            Agent("signer", model=held("sign"), tools=[sign]),
            Agent(
                "prepared",
                model=MockModel.function(lambda request: calls(call("nothing")) if request.tools else "done"),
                tools=[nothing],
                prepare_step=prepared,
            ),
            Agent("contextual", model=many("whoami"), tools=[whoami], make_context=made_context),
            Agent("again", model=held("hold_again"), tools=[hold_again]),
        ],
        settings=settings,
    )


app = application()
