"""`deuz run`: start a run of an agent and wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer
from rich.markup import escape

from deuz_workers.app.commands import answer_commands, ways_out
from deuz_workers.cli.amounts import cost, counted, duration
from deuz_workers.cli.exits import Exit, exit_of_status
from deuz_workers.cli.output import Output, report_warning
from deuz_workers.cli.run_views import arguments_line, coloured, event_line
from deuz_workers.cli.session import AppOption, JsonOption, ScopeOption, application, needed_application, on_app, pairs
from deuz_workers.errors import ConfigurationError, DeuzError

if TYPE_CHECKING:
    from deuz_workers.app.async_handle import AsyncHandle
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.app.results import AgentResult
    from deuz_workers.core.usage import Budget

Tokens = Annotated[int | None, typer.Option("--budget-tokens", min=1, help="What the run may use, in tokens.")]
Usd = Annotated[float | None, typer.Option("--budget-usd", min=0.000001, help="What the run may cost, in US dollars.")]
Timeout = Annotated[float | None, typer.Option(min=0.0, help="Seconds to wait; the run goes on afterwards (exit code 3).")]

SILENCE_MS = 5_000
"""Longer than a worker that listens and is free takes to begin, by far."""
PARKED = ("tool-reconciliation-required", "quarantine")
"""Reasons of runs that go on when somebody says so."""


def run(
    agent: Annotated[str, typer.Argument(help="Name of the agent.")],
    prompt: Annotated[str, typer.Argument(help="What it is asked; - reads it from stdin.")],
    place: AppOption = None,
    scope: ScopeOption = "default",
    run_id: Annotated[str | None, typer.Option(help="Id of the run, unique over all tenants; made if not given.")] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: asking again under it gives the run that is there.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Label of the run; may be repeated.")] = None,
    queue: Annotated[str | None, typer.Option(help="Queue of the workers; the agent's if not given.")] = None,
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Higher first.")] = 0,
    budget_tokens: Tokens = None,
    budget_usd: Usd = None,
    in_process: Annotated[bool, typer.Option("--in-process", help="Execute it here, without workers.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for what it reports, or only start it.")] = True,
    timeout: Timeout = None,
    json: JsonOption = False,
) -> None:
    """Start a run and show its events until it reports: its end, or a call that waits for a person."""
    output = Output(json)
    if prompt == "-":
        prompt = sys.stdin.read()
    asked: dict[str, Any] = {
        "run_id": run_id,
        "idempotency_key": key,
        "scope": scope,
        "tags": pairs(tag or [], "--tag"),
        "budget": budget_of(budget_tokens, budget_usd),
    }
    if in_process:
        if queue is not None or priority or not wait:
            raise ConfigurationError("--in-process leaves no run for workers; leave out --queue, --priority and --no-wait")
        if key is None:
            asked["run_id"] = run_id or str(uuid4())
        deuz = needed_application(place)
        deuz.registry.check_agent(agent)
        _check_price(deuz, agent, budget_usd)
        asked["on_conflict"] = "return"  # the same command again goes on with the run
        with interruption_told(asked, output, in_process=True):
            result = on_app(deuz, lambda app: asyncio.wait_for(app.aio.run_embedded(agent, prompt, **asked), timeout))
    else:
        asked |= {"queue": queue, "priority": priority}
        deuz = application(place)
        _check_price(deuz, agent, budget_usd)
        with interruption_told(asked, output, in_process=False):
            result = on_app(deuz, lambda app: _enqueued(app, agent, prompt, asked, output, timeout, wait=wait))
    if result is not None:
        show_result(result, output)
        raise typer.Exit(exit_of_status(result.status))


async def _enqueued(
    deuz: Deuz, agent: str, prompt: str, asked: dict[str, Any], output: Output, timeout: float | None, *, wait: bool
) -> AgentResult[Any] | None:
    handle = await deuz.aio.enqueue(agent, prompt, **asked)
    asked["run_id"] = handle.run_id
    if not wait:
        output.document({"run_id": handle.run_id, "scope": handle.scope, "status": await handle.status()})
        output.show(f"started [bold]{escape(handle.run_id)}[/]; follow it with: deuz runs watch {escape(handle.run_id)}")
        return None
    output.show(f"run [bold]{escape(handle.run_id)}[/]; Ctrl-C ends the waiting, not the run")
    async with events_shown(handle, output), silence_told(deuz, handle):
        return await handle.result(timeout)


@contextlib.contextmanager
def interruption_told(asked: Mapping[str, Any], output: Output, *, in_process: bool) -> Generator[None]:
    """Ctrl-C says which run it leaves behind, and how to go on with it; the exit code stays that of Ctrl-C."""
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        run_id, key = asked["run_id"], asked["idempotency_key"]
        if run_id is None and key is None:
            raise  # nothing was started
        if in_process:
            way = "the same command again" if key is not None else f"the same command with --run-id {run_id}"
        else:
            way = f"deuz runs watch {run_id}" if run_id is not None else "the same command again"
        output.document({"run_id": run_id, "scope": asked["scope"], "interrupted": True, "go_on": way})
        output.show(escape(f"interrupted; {f'run {run_id}' if run_id else f'the run under key {key}'} goes on with: {way}"))
        raise typer.Exit(Exit.INTERRUPTED) from None


def _check_price(deuz: Deuz, agent: str, budget_usd: float | None) -> None:
    """Raises `ConfigurationError` for a budget in USD where this process knows the model and no price of it."""
    from deuz_workers.core.usage import Usage

    known = deuz.agents.get(agent)
    if budget_usd is None or known is None:
        return
    model = known.definition.model.name
    if deuz.prices.cost_micros(model, Usage(input_tokens=1, output_tokens=1)) is None:
        raise ConfigurationError(
            f"no price is known for model {model!r}, so that --budget-usd would stop the run at its first call; "
            f"use --budget-tokens, or Deuz(..., prices={{{model!r}: Price(...)}})"
        )


@contextlib.asynccontextmanager
async def events_shown(handle: AsyncHandle, output: Output) -> AsyncGenerator[None]:
    """While it is open, events of the run are written as they come; at its end all that there are have been written."""
    seen = start_ms = 0

    async def follow(*, on: bool) -> None:
        nonlocal seen, start_ms
        async for event in handle.events(seen, follow=on):
            seen, start_ms = event.seq, start_ms or event.at_ms
            output.show(event_line(event.seq, event.type, event.data, event.at_ms - start_ms))

    following = asyncio.create_task(follow(on=True))
    try:
        yield
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
    await follow(on=False)


@contextlib.asynccontextmanager
async def silence_told(deuz: Deuz, handle: AsyncHandle) -> AsyncGenerator[None]:
    """While it is open: a run that nobody has begun after `SILENCE_MS` is told once, on stderr, and waited for as before."""

    async def listen() -> None:
        await deuz.clock.sleep_ms(SILENCE_MS)
        with contextlib.suppress(DeuzError):  # whoever waits for the result is told of a store that is away
            head = await deuz.access.head(handle.scope, handle.run_id)
            if head.listed_status == "queued":
                report_warning(
                    "not_begun",
                    f"no worker has begun run {head.run_id} within {duration(SILENCE_MS)}: none serves queue {head.queue!r}, "
                    f"or all are busy, or a brake holds it; deuz worker -Q {head.queue} starts one, deuz doctor looks",
                )

    listening = asyncio.create_task(listen())
    try:
        yield
    finally:
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening


def budget_of(budget_tokens: int | None, usd: float | None) -> Budget | None:
    """None when nothing is limited."""
    from deuz_workers.core.usage import Budget

    return None if budget_tokens is None and usd is None else Budget.of(tokens=budget_tokens, usd=usd)


def result_record(result: AgentResult[Any]) -> dict[str, object]:
    """The result for JSON: everything but the messages."""
    return {
        "run_id": result.run_id,
        "scope": result.scope,
        "agent": result.agent,
        "status": result.status,
        "output": result.value,
        "reason": result.reason,
        "stop_details": result.stop_details,
        "error": result.error,
        "usage": result.usage.to_record(),
        "turns": result.steps,
        "pending": [asdict(call) for call in result.pending_approvals],
        "pending_client_calls": [asdict(call) for call in result.pending_client_calls],
        "unknown_effects": [asdict(effect) for effect in result.unknown_effects],
    }


def show_result(result: AgentResult[Any], output: Output) -> None:
    """How it stands, what it used, its output or what to do next."""
    output.document(result_record(result))
    usage = result.usage
    used = f"{counted(result.steps, 'turn')}, {counted(usage.total_tokens, 'token')}, {cost(usage.cost_micros)}"
    reason = f" ({escape(result.reason)})" if result.reason else ""
    output.show(f"{coloured(result.status)}{reason}  [dim]{used}[/]")
    if result.status == "completed":
        output.show(escape(result.value if isinstance(result.value, str) else repr(result.value)))
    if result.error is not None:
        output.show(f"[red]{escape(str(result.error.get('name')))}[/]: {escape(str(result.error.get('message')))}")
    for call in result.pending_approvals:
        output.show(f"waits for {escape(call.tool_name)} {escape(arguments_line(call.arguments))}")
        for way in answer_commands(result.run_id, result.scope, asdict(call)):
            output.show(escape(f"  {way}"))
    for client_call in result.pending_client_calls:
        output.show(f"waits for a client: {escape(client_call.tool_name)} {escape(arguments_line(client_call.arguments))}")
        for way in answer_commands(result.run_id, result.scope, asdict(client_call)):
            output.show(escape(f"  {way}"))
    for effect in result.unknown_effects:
        shown = f"{effect.tool_name} (call {effect.tool_call_id}) {arguments_line(effect.arguments)}"
        output.show(f"nobody knows whether it had its effect: {escape(shown)}")
    if result.status == "stopped" and result.reason in PARKED:
        for way in ways_out(result.run_id, result.scope, result.reason, [asdict(effect) for effect in result.unknown_effects]):
            output.show(escape(f"  {way}"))
