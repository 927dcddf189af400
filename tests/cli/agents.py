"""An application for tests of the command line: an agent that answers, one that asks first, one that fails, and two swarms."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from deuz_workers import (
    Agent,
    Approval,
    Deuz,
    Limits,
    MockModel,
    ModelRequestError,
    ModelUnavailableError,
    Swarm,
    Task,
    client_tool,
    reducer,
    tool,
)
from deuz_workers.testing.script import call, calls


@tool(needs_approval=True)
def send(text: str) -> str:
    """Send a text."""
    return f"sent {text}"


@tool(needs_approval=Approval(people=("ann", "bob"), needed=2))
def pay(to: str, amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


ask = client_tool("ask", "Ask the user.", {"type": "object", "properties": {"what": {"type": "string"}}})


@tool
async def nap() -> str:
    """Sleep for a minute."""
    print("napping", file=sys.stderr, flush=True)
    await asyncio.sleep(60)
    return "rested"


@reducer
def joined(results: Mapping[str, Any]) -> str:
    """All results in one line."""
    return " ".join(str(results[name]) for name in sorted(results))


@reducer
def broken(results: Mapping[str, Any]) -> str:
    """Always fails."""
    raise ValueError("no result")


app = Deuz(
    [
        Agent("greeter", model=MockModel(["hello"])),
        Agent("sender", model=MockModel([calls(call("send", text="hi")), "done"]), tools=[send]),
        Agent("payer", model=MockModel([calls(call("pay", to="zoe", amount=5)), "done"]), tools=[pay]),
        Agent("asker", model=MockModel([calls(call("ask", what="name")), "done"]), tools=[ask]),
        Agent("sleeper", model=MockModel([calls(call("nap")), "done"]), tools=[nap]),
        Agent(
            "moved",
            model=MockModel([ModelUnavailableError("away", status=503)], model="large"),
            fallback_models=[MockModel(["hello"], model="small")],
            limits=Limits(max_retries=0),
        ),
        Agent(
            "triage",
            model=MockModel([calls(call("transfer_to_billing"))], model="large"),
            handoffs=[Agent("billing", model=MockModel(["never", "paid"], model="small"))],
        ),
        Agent("refused", model=MockModel([ModelRequestError("the request is wrong")])),
    ],
    reducers=[joined, broken],
)

pair = Swarm(
    "pair",
    [
        Task("a", agent="greeter", prompt="Say hello."),
        Task("b", agent="greeter", prompt="Say hello."),
        Task("both", reducer="joined", depends_on=["a", "b"]),
    ],
)


def half() -> Swarm:
    """A swarm that ends in part."""
    return Swarm("half", [Task("a", agent="greeter", prompt="Hello."), Task("b", reducer="broken", depends_on=["a"])])
