"""The application that every driver executes: models that answer by their request, tools that leave traces by run.

Nothing here is remembered in a process, since the next turn of a run may be another one's.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from deuz_workers import (
    Agent,
    Approval,
    Block,
    CompactionPolicy,
    Deuz,
    GuardContext,
    Guardrails,
    Limits,
    MockModel,
    Rejected,
    Rewrite,
    Settings,
    StepInfo,
    StepPlan,
    ToolContext,
    Usage,
    Verified,
    VerifyContext,
    agent_tool,
    client_tool,
    reducer,
    run_agent,
    run_agent_sync,
    tokens_above,
    tool,
)
from deuz_workers.core.history import message_bytes
from deuz_workers.core.summary_request import INSTRUCTIONS
from deuz_workers.errors import ModelRateLimitedError, ModelRequestError
from deuz_workers.ports.leases import LeaseProvider
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.store import RunStore
from deuz_workers.providers.script import Entry, attempts, call, calls, hangs, reply
from tests.workers.agents import TRACES, trace


class Invoice(BaseModel):
    number: str
    due: int


GOOD = '{"number": "A7", "due": 3}'


def is_open(name: str) -> bool:
    """The gate of that name was opened."""
    return (Path(os.environ[TRACES]) / f"{name}.go").exists()


# -- tools -----------------------------------------------------------------------------------------------------------------


@tool
async def note(context: ToolContext, text: str) -> str:
    """Not to be repeated; on the loop."""
    trace(context.run_id, f"note {text}")
    return f"noted {text}"


@tool(replay="idempotent")
def look(context: ToolContext, text: str) -> str:
    """May be repeated; in a thread."""
    trace(context.run_id, f"look {text}")
    return f"saw {text}"


@tool
def stumble(context: ToolContext) -> str:
    """Fails."""
    trace(context.run_id, "stumble")
    raise ValueError("no ground")


@tool(needs_approval=True)
async def pay(context: ToolContext, to: str, amount: int = 1) -> str:
    """Waits for a person."""
    trace(context.run_id, f"pay {to} {amount}")
    return f"paid {amount} to {to}"


@tool(needs_approval=Approval(people=("ann", "bob", "cid"), needed=2))
async def sign(context: ToolContext, what: str) -> str:
    """Waits for two of three people."""
    trace(context.run_id, f"sign {what}")
    return f"signed {what}"


@tool(needs_approval=Approval(expires_in_ms=200))
async def rush(context: ToolContext) -> str:
    """Waits for a person, and not for long."""
    trace(context.run_id, "rush")
    return "rushed"


@tool
async def hold(context: ToolContext, text: str) -> str:
    """Not to be repeated, and in the middle until its gate is open."""
    trace(context.run_id, f"hold {text}")
    while not is_open(context.run_id):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.01)
    return f"held {text}"


@tool(replay="idempotent")
async def hold_again(context: ToolContext, text: str) -> str:
    """The same, and may be repeated."""
    trace(context.run_id, f"hold {text}")
    while not is_open(context.run_id):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.01)
    return f"held {text}"


@tool
def enter(context: ToolContext, room: str) -> str:
    """Says when it came and went."""
    trace(room, f"in {context.run_id}")
    time.sleep(0.02)
    trace(room, f"out {context.run_id}")
    return "left"


ask = client_tool("ask", "Asks the user.", {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]})

# -- hooks -----------------------------------------------------------------------------------------------------------------


def tidy(text: str, context: GuardContext) -> Rewrite:
    return Rewrite(text.strip().lower())


def refuse(text: str, context: GuardContext) -> Block:
    return Block("not here")


def keep_secrets(arguments: Mapping[str, Any], context: GuardContext) -> Block | None:
    return Block("secret") if arguments["text"] == "secret" else None


def shorten(text: str, context: GuardContext) -> Rewrite:
    return Rewrite(text[:5])


def one_look(info: StepInfo) -> StepPlan:
    return StepPlan(active_tools=["look"] if info.step == 1 else [], tool_choice="required" if info.step == 1 else "none")


def certify(output: Any, context: VerifyContext) -> Verified | Rejected:
    return Verified() if output.due == 3 else Rejected("due in three days")


# -- models ----------------------------------------------------------------------------------------------------------------


def offered(request: ModelRequest) -> Entry:
    """Calls what it is offered, once, and says what that was."""
    if request.tools:
        return calls(call(request.tools[0].name, text="it"))
    return f"{request.tool_choice} {len(request.messages)}"


def outage(request: ModelRequest) -> Entry:
    """Away until the gate that the prompt names is open."""
    return "back" if is_open(request.messages[0].text) else ModelRateLimitedError("come back later")


def room(request: ModelRequest) -> Entry:
    """Enters the room that the prompt names, twice."""
    turn = sum(message.role == "assistant" for message in request.messages)
    return calls(call("enter", room=request.messages[0].text)) if turn < 2 else "done"


def reading(request: ModelRequest) -> Entry:
    """Looks at eight pages, more than its window holds."""
    usage = Usage(sum(map(message_bytes, request.messages)) // 4, 5)
    if request.messages[0].text == INSTRUCTIONS:
        return reply("in short", usage=usage)
    turn = int(request.request_id.split(":")[1])
    return calls(call("look", text="page " * 200), usage=usage) if turn <= 8 else "done"


@reducer
def merge(results: Mapping[str, object]) -> object:
    """All results, as pairs."""
    return sorted(results.items())


def scripted(name: str, *script: Entry, **given: Any) -> Agent:
    return Agent(name, model=MockModel(script), **given)


@tool
async def consult(context: ToolContext) -> str:
    """Start a run in the context of this one, from the loop."""
    inner = scripted("consulted", calls(call("note", text="x").with_id("n")), "advice", tools=[note])
    run_id, part = f"{context.run_id}-loop", context.execution.child("loop")
    return str((await run_agent(inner, "what?", run_id=run_id, execution=part)).text)


@tool
def consult_here(context: ToolContext) -> str:
    """The same from a thread."""
    inner = scripted("consulted", calls(call("note", text="x").with_id("n")), "advice", tools=[note])
    run_id, part = f"{context.run_id}-thread", context.execution.child("thread")
    return str(run_agent_sync(inner, "what?", run_id=run_id, execution=part).text)


@tool
async def consult_long(context: ToolContext) -> str:
    """One whose model never answers."""
    part = context.execution.child("long")
    return str((await run_agent(scripted("silent", hangs()), "what?", run_id=f"{context.run_id}-long", execution=part)).text)


def agents() -> list[Agent]:
    """Made anew for every application, as a process does."""
    two = calls(call("note", text="a").with_id("a"), call("look", text="b").with_id("b"))
    both = calls(call("pay", to="ann").with_id("p"), call("ask", what="name").with_id("q"), call("note", text="c").with_id("n"))
    tools = [note, look, stumble]
    return [
        scripted("talker", "hello"),
        scripted("worker", two, calls(call("stumble")), calls(call("nobody")), "done", tools=tools),
        scripted("payer", calls(*(call("pay", to=to).with_id(to) for to in ("ann", "bob"))), "done", tools=[pay]),
        scripted("signer", calls(call("sign", what="it").with_id("s")), "done", tools=[sign]),
        scripted("hurried", calls(call("rush").with_id("r")), "done", tools=[rush]),
        scripted(
            "asker", calls(call("ask", what="name").with_id("q"), call("ask", what="age").with_id("a")), "done", tools=[ask]
        ),
        scripted("mixed", both, "done", tools=[pay, ask, note]),
        scripted("typed", "no idea", '{"number": "A7"}', GOOD, output_type=Invoice, limits=Limits(max_output_attempts=3)),
        scripted("mute", "no idea", "no idea", "no idea", output_type=Invoice, limits=Limits(max_output_attempts=2)),
        scripted("verified", '{"number": "A7", "due": 9}', GOOD, output_type=Invoice, verify=certify),
        scripted(
            "guarded",
            calls(call("note", text="secret").with_id("s"), call("note", text="plain").with_id("p")),
            "DONE",
            tools=[note],
            guardrails=Guardrails(on_input=tidy, on_tool_call=keep_secrets, on_tool_result=shorten, on_output=tidy),
        ),
        scripted("shut", "never", guardrails=Guardrails(on_input=refuse)),
        Agent("planned", model=MockModel.function(offered), tools=[note, look], prepare_step=one_look),
        scripted("stopped", *(calls(call("look", text="on")) for _ in range(9)), tools=[look], stop_when=tokens_above(40)),
        scripted("endless", *(calls(call("look", text="on")) for _ in range(9)), tools=[look], limits=Limits(max_steps=3)),
        Agent(
            "long", model=MockModel.function(reading), tools=[look], compaction=CompactionPolicy(context_window_tokens=4_000)
        ),
        scripted("slow", hangs()),
        scripted("broken", calls(call("look", text="on")), ModelRequestError("no such model"), tools=[look]),
        scripted("flaky", attempts(ModelRateLimitedError("slow down", retry_after_ms=20), "done")),
        Agent("away", model=MockModel.function(outage), limits=Limits(max_retries=0)),
        scripted("holder", calls(call("hold", text="it").with_id("h")), "done", tools=[hold]),
        scripted("holder-again", calls(call("hold_again", text="it").with_id("h")), "done", tools=[hold_again]),
        Agent("keyed", model=MockModel.function(room), tools=[enter]),
        Agent("echo", model=MockModel.function(lambda request: f"saw {request.messages[-1].text}")),
        scripted(
            "delegating",
            calls(
                call("worker-below", prompt="a"),
                call("look", text="b"),
                call("worker-below", prompt="c"),
                call("mute-below", prompt="d"),
            ),
            "done",
            tools=[
                look,
                scripted("worker-below", calls(call("note", text="x").with_id("n")), "noted", tools=[note]),
                scripted("mute-below", ModelRequestError("no such model")),
            ],
        ),
        scripted("nesting", calls(call("consult"), call("consult_here")), "done", tools=[consult, consult_here]),
        scripted("nesting-long", calls(call("consult_long")), "never", tools=[consult_long]),
        scripted(
            "desk",
            calls(call("transfer_to_till", reason="money").with_id("t")),
            "never",
            "never",
            "never",
            "at the desk",
            handoffs=[
                scripted(
                    "till",
                    "never",
                    calls(call("pay", to="ann").with_id("p")),
                    calls(call("note", text="b").with_id("n")),
                    calls(call("transfer_to_desk").with_id("u")),
                    tools=[pay, note],
                )
            ],
        ),
        scripted(
            "holding-desk",
            calls(call("transfer_to_holding-till").with_id("t")),
            handoffs=[
                scripted("holding-till", "never", calls(call("hold_again", text="it").with_id("h")), "done", tools=[hold_again])
            ],
        ),
        scripted("waiting-below", calls(call("slow", prompt="wait")), "never", tools=[agent_tool("slow")]),
        scripted(
            "asking-below",
            calls(call("between", prompt="a"), call("between", prompt="b")),
            "done",
            tools=[
                scripted(
                    "between",
                    calls(call("payer-below", prompt="pay")),
                    "up",
                    tools=[scripted("payer-below", calls(call("pay", to="ann").with_id("p")), "paid", tools=[pay])],
                )
            ],
        ),
    ]


def application(settings: Settings | None = None, store: RunStore | None = None, leases: LeaseProvider | None = None) -> Deuz:
    """The application; `settings` None: from the environment."""
    return Deuz(agents(), reducers=[merge], settings=settings, store=store, leases=leases)


app = application()
