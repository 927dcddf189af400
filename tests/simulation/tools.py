"""Tools whose effects are written down outside of every process. Made once: reading a signature is what a tool costs."""

from __future__ import annotations

import asyncio

from deuz_workers.ports.tool import ToolContext
from deuz_workers.testing.virtual.process import VirtualProcess
from deuz_workers.tools.decorator import tool


def value_of(name: str, amount: int) -> object:
    """What a tool returns, whoever calls it and however often."""
    return {"paid": amount} if name in ("pay", "wire") else f"{name} {amount}" if name in ("put", "stall") else amount


async def _begin(name: str, amount: int, ctx: ToolContext, *, idempotent: bool) -> object:
    process: VirtualProcess = ctx.deps
    value = process.world.effects.start(ctx, value_of(name, amount), idempotent=idempotent)
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
    process.world.effects.start(ctx, value_of("stall", amount), idempotent=True)
    for _ in range(20):
        ctx.signal.raise_if_set()
        await process.world.clock.sleep_ms(100)
    return value_of("stall", amount)


@tool(replay="idempotent")
async def poison(amount: int, ctx: ToolContext) -> object:
    """Ends the process that calls it, every time."""
    process: VirtualProcess = ctx.deps
    process.world.effects.start(ctx, amount, idempotent=True)
    process.die("poison")
    await asyncio.get_running_loop().create_future()
    return amount


TOOLS = {made.name: made for made in (pay, put, show, fail, wire, ask, stall, poison)}
NEEDS_A_PERSON = {"wire", "ask"}
