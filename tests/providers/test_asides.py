"""Thoughts and arguments as they come, from the streams of all wires over a real socket."""

from __future__ import annotations

import json

import pytest

from deuz_workers.core.messages import user
from deuz_workers.ports.asides import Aside
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.beside import Beside
from deuz_workers.testing.model_faults import Served
from deuz_workers.testing.model_server import ModelServer
from tests.providers.wires import WIRES


class Listener:
    """What the `on_text` of a call is told."""

    def __init__(self) -> None:
        self.told: list[Aside | str] = []

    def __call__(self, text: str) -> None:
        self.told.append(text)

    def aside(self, aside: Aside) -> None:
        self.told.append(aside)

    def of(self, kind: str, place: int = 0) -> str:
        asides = [told for told in self.told if isinstance(told, Aside)]
        return "".join(aside.text for aside in asides if aside.kind == kind and aside.place == place)


@pytest.mark.parametrize("wire", WIRES)
async def test_thoughts_and_arguments_are_told_as_they_come(wire: str) -> None:
    """In order with the text; by the place of their call, with its tool, and together what the reply has."""
    listener = Listener()
    with ModelServer([Served(WIRES[wire].short_stream, content_type="text/event-stream")]) as server:
        model = WIRES[wire].model(server, api_key="k")
        reply = await model.call(ModelRequest("r", (user("go"),)), listener)
        await model.close()
    assert "".join(text for text in listener.told if isinstance(text, str)) == "Paying." == reply.message.text
    assert listener.of("reasoning") == "Hm."
    assert [json.loads(listener.of("arguments", place)) for place in (0, 1)] == [
        call.arguments for call in reply.message.tool_uses
    ]
    asides = [told for told in listener.told if isinstance(told, Aside)]
    assert {aside.tool for aside in asides if aside.kind == "arguments"} == {"pay"}
    assert isinstance(listener.told[0], Aside)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_listener_of_text_alone_is_told_text_alone(wire: str) -> None:
    """A plain function is all that a reader of text needs."""
    texts: list[str] = []
    with ModelServer([Served(WIRES[wire].short_stream, content_type="text/event-stream")]) as server:
        model = WIRES[wire].model(server, api_key="k")
        await model.call(ModelRequest("r", (user("go"),)), texts.append)
        await model.close()
    assert "".join(texts) == "Paying."


def test_a_fragment_holds_no_half_of_a_pair() -> None:
    """It waits for the other half, of each call and of the thought on its own."""
    beside = Beside()
    beside.think("\ud83d")
    beside.ask("b", "pay", "\ud83d")
    assert beside.taken() == []
    beside.ask("b", "pay", "\ude00")
    beside.think("\ude00")
    beside.ask("a", "pay", "1")
    emoji = "\U0001f600"
    assert beside.taken() == [
        Aside("arguments", emoji, 0, "pay"),
        Aside("reasoning", emoji),
        Aside("arguments", "1", 1, "pay"),
    ]
    assert beside.taken() == []
