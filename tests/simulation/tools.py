"""Tools whose effects are written down outside of every process. Made once: reading a signature is what a tool costs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from deuz_workers.core.approval import Approval
from deuz_workers.ports.tool import Tool, ToolContext
from deuz_workers.testing.virtual.process import VirtualProcess
from deuz_workers.tools.client import client_tool
from deuz_workers.tools.decorator import tool

PAYING = ("pay", "wire", "both", "edit", "soon")
TELLING = ("put", "stall", "stray", "tally")


def value_of(name: str, amount: int) -> object:
    """What a tool returns, whoever calls it and however often."""
    return {"paid": amount} if name in PAYING else f"{name} {amount}" if name in TELLING else amount


def begin(name: str, amount: int, ctx: ToolContext, *, idempotent: bool) -> object:
    """The effect begins outside; returns its value."""
    process: VirtualProcess = ctx.deps
    return process.world.begins(ctx, value_of(name, amount), amount=amount, idempotent=idempotent)


async def _begin(name: str, amount: int, ctx: ToolContext, *, idempotent: bool) -> object:
    process: VirtualProcess = ctx.deps
    value = begin(name, amount, ctx, idempotent=idempotent)
    await process.world.work("tool")
    return value


@tool
async def pay(amount: int, ctx: ToolContext) -> object:
    """Happens at most once."""
    return await _begin("pay", amount, ctx, idempotent=False)


@tool(replay="idempotent")
async def put(amount: int, ctx: ToolContext) -> object:
    """May happen again under the same key."""
    return await _begin("put", amount, ctx, idempotent=True)


@tool(to_model_output=lambda value: f"shown: {value}")
async def show(amount: int, ctx: ToolContext) -> object:
    """Happens at most once, and its result is projected by code of the user's."""
    return await _begin("show", amount, ctx, idempotent=False)


@tool
async def fail(amount: int, ctx: ToolContext) -> object:
    """Raises after its effect."""
    await _begin("fail", amount, ctx, idempotent=False)
    raise ValueError(f"no {amount}")


@tool(needs_approval=True)
async def wire(amount: int, ctx: ToolContext) -> object:
    """Happens at most once, and only if a person agrees."""
    return await _begin("wire", amount, ctx, idempotent=False)


@tool(needs_approval=lambda arguments: arguments["amount"] % 2 == 1)
async def ask(amount: int, ctx: ToolContext) -> object:
    """A function of the user's says whether a person must agree."""
    return await _begin("ask", amount, ctx, idempotent=False)


@tool(replay="idempotent")
async def stall(amount: int, ctx: ToolContext) -> object:
    """Waits until it is told to end, or for a long time."""
    process: VirtualProcess = ctx.deps
    begin("stall", amount, ctx, idempotent=True)
    for _ in range(20):
        ctx.signal.raise_if_set()
        await process.world.clock.sleep_ms(100)
    return value_of("stall", amount)


@tool(replay="idempotent")
async def poison(amount: int, ctx: ToolContext) -> object:
    """Ends the process that calls it, every time."""
    process: VirtualProcess = ctx.deps
    begin("poison", amount, ctx, idempotent=True)
    process.die("poison")
    await asyncio.get_running_loop().create_future()
    return amount


@tool(needs_approval=Approval(people=("ann", "bob", "cy"), needed=2))
async def both(amount: int, ctx: ToolContext) -> object:
    """Happens at most once, and only if two of three agree."""
    return await _begin("both", amount, ctx, idempotent=False)


@tool(needs_approval=True, replay="idempotent")
async def edit(amount: int, ctx: ToolContext) -> object:
    """May happen again, with the arguments that somebody gave instead of the model's."""
    return await _begin("edit", amount, ctx, idempotent=True)


@tool(needs_approval=Approval(expires_in_ms=1_200))
async def soon(amount: int, ctx: ToolContext) -> object:
    """Nobody answers in time, so that it never happens."""
    return await _begin("soon", amount, ctx, idempotent=False)


@tool(replay="idempotent", output_schema=int)
async def stray(amount: int, ctx: ToolContext) -> object:
    """Returns what its own schema refuses."""
    return await _begin("stray", amount, ctx, idempotent=True)


def _unshown(value: object) -> str:
    raise ValueError("no words for it")


@tool(to_model_output=_unshown)
async def unshown(amount: int, ctx: ToolContext) -> object:
    """Happens at most once, and its result cannot be shown."""
    return await _begin("unshown", amount, ctx, idempotent=False)


@tool
async def tally(amount: int, ctx: ToolContext) -> object:
    """Happens at most once, in a thread, which goes on when the call is cancelled."""
    process: VirtualProcess = ctx.deps
    return await process.gear.threads.call("tally", lambda: begin("tally", amount, ctx, idempotent=False))


AMOUNT = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
look = client_tool("look", "Executed by a client.", AMOUNT)
peek = client_tool("peek", "Executed by a client, if a person agrees.", AMOUNT, needs_approval=True)

TOOLS: Mapping[str, Tool] = {
    made.name: made
    for made in (
        *(pay, put, show, fail, wire, ask, stall, poison),
        *(both, edit, soon, stray, unshown, tally, look, peek),
    )
}
