"""Models, tools and functions of a simulation, which die and freeze with the process that calls them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from deuz_workers.ports.definition import AgentDefinition, ReducerDefinition
from deuz_workers.ports.model import Model, ModelReply, ModelRequest, OnText
from deuz_workers.ports.tool import Tool, ToolContext

if TYPE_CHECKING:
    from deuz_workers.testing.virtual.process import VirtualProcess

T = TypeVar("T")


class MortalRegistry:
    """The `Registry` of one process. Tools find the process in `ToolContext.deps`."""

    def __init__(
        self, process: VirtualProcess, agents: Mapping[str, AgentDefinition], reducers: Mapping[str, ReducerDefinition]
    ) -> None:
        self._reducers = reducers
        self._agents = {name: _mortal(process, agent) for name, agent in agents.items()}

    def agent(self, name: str) -> AgentDefinition | None:
        return self._agents.get(name)

    def reducer(self, name: str) -> ReducerDefinition | None:
        return self._reducers.get(name)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._agents) | frozenset(self._reducers)


def _mortal(process: VirtualProcess, agent: AgentDefinition) -> AgentDefinition:
    return replace(
        agent,
        model=_MortalModel(process, agent.model),
        fallback_models=tuple(_MortalModel(process, model) for model in agent.fallback_models),
        tools={key: cast(Tool, _MortalTool(process, tool)) for key, tool in agent.tools.items()},
        transfers={to: cast(Tool, _MortalTool(process, tool)) for to, tool in agent.transfers.items()},
        team={name: _mortal(process, member) for name, member in agent.team.items()},
        deps=process,
    )


class _MortalModel:
    """Takes some time; every request that leaves is known to the world."""

    def __init__(self, process: VirtualProcess, inner: Model) -> None:
        self._process = process
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        process = self._process
        await process.point("before model")
        process.world.asked(process, request, self.name)
        await process.world.work("model")
        reply = await self._inner.call(request, on_text)
        await process.point("after model")
        return reply

    async def close(self) -> None:
        await self._inner.close()


class _MortalTool:
    def __init__(self, process: VirtualProcess, inner: Tool) -> None:
        self._process = process
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def run(self, arguments: Mapping[str, object], context: ToolContext) -> object:
        await self._process.point("before effect")
        value = await self._inner.run(arguments, context)
        await self._process.point("after effect")
        return value


class VirtualThreads:
    """Implements `Threads`: a function runs in a lane of its own, after a while. Cancelling leaves it running."""

    def __init__(self, process: VirtualProcess) -> None:
        self._process = process
        self._running: Counter[str] = Counter()

    def running(self) -> Mapping[str, int]:
        return {label: count for label, count in self._running.items() if count}

    async def call(self, label: str, function: Callable[[], T]) -> T:
        process = self._process
        outcome: asyncio.Future[Callable[[], T]] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            await process.point("before thread")
            await process.world.work("thread")
            given = _outcome_of(function)
            self._running[label] -= 1
            await process.point("after thread")
            if not outcome.done():
                outcome.set_result(given)

        self._running[label] += 1
        process.start_thread(label, run)
        return (await outcome)()


def _outcome_of(function: Callable[[], T]) -> Callable[[], T]:
    try:
        value = function()
    except BaseException as error:  # noqa: BLE001 - raised where the call is awaited
        return partial(_fail, error)
    return lambda: value


def _fail(error: BaseException) -> NoReturn:
    raise error
