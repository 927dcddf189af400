"""The application of workers whose agents have tool servers: one over standard input and output, one over HTTP.

`SHOP` names the folder of the server; over HTTP its port stands there before a worker starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deuz_workers import Agent, Deuz, MockModel, Settings
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.script import Entry, call, calls
from tests.mcp.shop import Shop

SHOP = "TEST_SHOP"


def application(settings: Settings, folder: Path) -> Deuz:
    return Deuz([*agents(folder, "stdio"), *(agents(folder, "http") if (folder / "port").exists() else [])], settings=settings)


def agents(folder: Path, how: Any) -> list[Agent]:
    """`<how>-say` calls a tool twice, `<how>-wait` one that waits, `<how>-learn` one that changes what is offered."""
    shop = Shop(folder, how)
    scripts: dict[str, list[Entry | Callable[[ModelRequest], Entry]]] = {
        "say": [calls(call("say", text="one")), calls(call("say", text="two")), "done"],
        "wait": [calls(call("wait")), "done"],
        "again": [calls(call("wait")), "done"],
        "learn": [calls(call("learn")), "done"],
        "accept": [calls(call("learn")), calls(call("refund")), "done"],
    }
    return [
        Agent(
            f"{how}-{name}",
            model=MockModel(script),
            mcp=[shop.server(connect_timeout_ms=60_000, replay="idempotent" if name == "again" else None)],
            on_catalog_change="accept" if name == "accept" else "stop",
        )
        for name, script in scripts.items()
    ]


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    made = globals()["app"] = application(Settings(), Path(os.environ[SHOP]))
    return made
