"""A gateway behind a real socket, and what its responses say."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp

from deuz_workers import Deuz
from deuz_workers.app.access_tokens import AccessTokens
from deuz_workers.app.embedded import driver
from deuz_workers.app.ui_reading import UiFrame, UiReader
from deuz_workers.gateway import gateway

WAIT_S = 30.0


@asynccontextmanager
async def serving(asgi: ASGIApp) -> AsyncGenerator[str]:
    """The base address of `asgi`, served by uvicorn on the running loop."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(asgi, log_config=None, access_log=False, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started:
                assert not task.done(), task
                await asyncio.sleep(0.005)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@dataclass
class Served:
    """A gateway over an application, and a client with a token."""

    app: Deuz
    url: str
    http: httpx.AsyncClient

    async def token(self, principal: str, *scopes: str) -> dict[str, str]:
        """The header of a new token."""
        made = await AccessTokens(self.app.store, self.app.ids).create(principal, scopes)
        return {"authorization": f"Bearer {made.token}"}

    async def start(self, agent: str, prompt: str = "go", **body: Any) -> str:
        """The id of a new run."""
        answer = await self.http.post("/v1/runs", json={"agent": agent, "prompt": prompt, **body})
        assert answer.status_code == 202, answer.text
        return answer.json()["run_id"]

    async def report(self, run_id: str) -> dict[str, Any]:
        """How the run stands once it has something to report."""
        answer = await self.http.get(f"/v1/runs/{run_id}", params={"wait_ms": 30_000})
        assert answer.status_code == 200, answer.text
        assert answer.json()["has_report"], answer.json()
        return answer.json()

    async def frames(self, run_id: str, after: int | None = None, **given: Any) -> list[UiFrame]:
        """The stream of the run to its end."""
        return list(reading(await self.raw(run_id, after, **given)))

    async def raw(self, run_id: str, after: int | str | None = None, **given: Any) -> bytes:
        headers = {} if after is None else {"last-event-id": str(after)}
        answer = await self.http.get(f"/v1/runs/{run_id}/stream", headers=headers, **given)
        assert answer.status_code == 200, answer.text
        return answer.content


@asynccontextmanager
async def served(app: Deuz, *, drives: bool = True, **given: Any) -> AsyncGenerator[Served]:
    """`drives`: its runs are executed on the same loop."""
    asgi = gateway(app, **given)
    async with serving(asgi) as url, httpx.AsyncClient(base_url=url, timeout=WAIT_S) as client:
        made = Served(app, url, client)
        client.headers.update(await made.token("ann", "default"))
        if drives:
            async with driver(app, queues=None) as driving:
                stop = asyncio.Event()
                work = asyncio.create_task(driving.serve(stop))
                try:
                    yield made
                finally:
                    stop.set()
                    await work
        else:
            yield made


def reading(raw: bytes) -> Iterable[UiFrame]:
    reader = UiReader()
    return reader.feed(raw)


def data_of(frames: Iterable[UiFrame]) -> list[Mapping[str, Any]]:
    """Of the `data-agent` frames."""
    return [frame.part["data"] for frame in frames if frame.part is not None and frame.part["type"] == "data-agent"]


def text_of(frames: Iterable[UiFrame]) -> dict[int, str]:
    """What a reader has before them of each turn, who drops what they are told to drop."""
    texts: dict[int, str] = {}
    for frame in frames:
        match frame.part:
            case {"type": "text-delta", "id": block, "delta": delta}:
                step = int(block.split("-")[1])
                texts[step] = texts.get(step, "") + delta
            case {"type": "data-agent", "data": {"kind": "discard", "step": step}}:
                texts[step] = ""
            case _:
                pass
    return {step: text for step, text in texts.items() if text}
