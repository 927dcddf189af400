"""Fail-over between real wires: when it is too late for it, and what one provider is never sent of another."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from deuz_workers import Agent, Budget, Limits, MockModel, tool
from deuz_workers.core.messages import ReasoningPart
from deuz_workers.errors import ModelUnavailableError
from deuz_workers.providers.anthropic.model import AnthropicModel
from deuz_workers.providers.chat.model import ChatCompletionsModel
from deuz_workers.providers.prices import Price
from deuz_workers.providers.responses.model import ResponsesModel
from deuz_workers.providers.script import ScriptedReply, call, reply
from deuz_workers.store import open_store
from deuz_workers.testing.model_faults import Served, cut, refuse
from deuz_workers.testing.model_server import ModelServer, ReceivedRequest
from tests.app.world import World
from tests.providers.sent import sent
from tests.providers.wires import WIRES

ONE_TRY = Limits(max_retries=0)
CLAUDE = "Claude thinks of seven."
OPENAI = "The other one thinks of eight."
SIGNED = "c2lnbmVkIGJ5IENsYXVkZQ=="


@pytest.fixture
async def world() -> Any:
    made = World("sqlite://:memory:", open_store("sqlite://:memory:"))
    yield made
    await made.close()


@tool
async def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.spec("FOV-002")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_that_is_cut_behind_its_first_content_does_not_fail_over(world: World, wire: str) -> None:
    """Whatever that is: here a thought, which is shown to nobody. Before it, the fallback answers."""
    stream = WIRES[wire].short_stream
    thought = stream.index(b"\n\n", stream.index(b"Hm.")) + 2
    for at, asked in ((3, 1), (thought, 0), (thought + 5, 0)):
        fallback = MockModel(["done"], model="other")
        with ModelServer([cut(stream, at)]) as server:
            model = WIRES[wire].model(server, max_retries=0)
            agent = Agent("x", model=model, fallback_models=[fallback], tools=[], limits=ONE_TRY)
            result = await world.process(agent).aio.run_embedded("x", "go")
            await model.close()
        assert (result.status, len(fallback.requests)) == ("completed" if asked else "failed", asked)


def thinks(text: str, *more: Any, signature: str | None = None) -> ScriptedReply:
    meta = {} if signature is None else {"signature": signature}
    return reply("", call("look"), *more, reasoning=ReasoningPart(text, meta))


@pytest.mark.spec("FOV-014")
async def test_signed_thoughts_go_to_the_same_family_alone(world: World) -> None:
    """Claude to Claude: the block of the first is in the request of the second as it was served. Claude to another provider:
    neither text nor signature is anywhere in the body."""

    def answer(request: ReceivedRequest) -> Served | ScriptedReply:
        model = request.body["model"]
        if model == "claude-a":
            return thinks(CLAUDE, signature=SIGNED) if request.turn == 1 else refuse(503)
        return refuse(503) if model == "claude-b" else reply("done")

    with ModelServer(answer) as server:
        models = [
            AnthropicModel(name, f"{server.root}/v1", api_key="k", provider="anthropic", max_retries=0)
            for name in ("claude-a", "claude-b")
        ]
        other = ChatCompletionsModel("gpt", f"{server.root}/v1", provider="openai", replay_reasoning=True, max_retries=0)
        agent = Agent("x", model=models[0], fallback_models=[models[1], other], tools=[look], limits=ONE_TRY)
        result = await world.process(agent).aio.run_embedded("x", "go")
        for model in (*models, other):
            await model.close()
        assert result.text == "done"
        [first] = [request for request in server.requests if request.body["model"] == "claude-a" and request.turn == 2]
        [second] = [request for request in server.requests if request.body["model"] == "claude-b"]
        [third] = [request for request in server.requests if request.body["model"] == "gpt"]
    block = {"type": "thinking", "thinking": CLAUDE, "signature": SIGNED}
    assert sent(first).thoughts == sent(second).thoughts == [block]
    spelled = json.dumps(block, separators=(",", ":")).encode()
    assert spelled in first.raw.replace(b'": ', b'":').replace(b", ", b",")
    assert first.body["messages"] == second.body["messages"]
    assert not [word for word in (CLAUDE, SIGNED, "thinking") if word.encode() in third.raw]
    assert [text for _, text in sent(third).pairs] == ["seen"]


@pytest.mark.spec("FR-29")
async def test_from_one_provider_to_another_and_back(world: World) -> None:
    """Claude answers three turns with thoughts and tools and goes away; OpenAI answers the fourth with a thought of its own and
    goes away; another Claude ends the run. Each provider gets back its own thoughts only, under its own model's name, every
    call with its result; each turn is paid for at the price of the model that ran."""

    def answer(request: ReceivedRequest) -> Served | ScriptedReply:
        model = request.body["model"]
        if model == "claude-a":
            return thinks(f"{CLAUDE} {request.turn}", signature=SIGNED) if request.turn < 4 else refuse(503)
        if model == "gpt":
            return thinks(OPENAI) if request.turn == 4 else refuse(503)
        return reply("done")

    with ModelServer(answer) as server:
        claude = {
            name: AnthropicModel(name, f"{server.root}/v1", api_key="k", provider="anthropic", max_retries=0)
            for name in ("claude-a", "claude-b")
        }
        gpt = ResponsesModel("gpt", f"{server.root}/v1", api_key="k", provider="openai", max_retries=0)
        agent = Agent(
            "x",
            model=claude["claude-a"],
            fallback_models=[gpt, claude["claude-b"]],
            tools=[look],
            limits=ONE_TRY,
            budget=Budget.of(usd=500),
        )
        app = world.process(agent)
        prices = {"anthropic:claude-a": Price(1, 1), "openai:gpt": Price(100, 100), "anthropic:claude-b": Price(10_000, 10_000)}
        app.prices = type(app.prices)(prices)
        result = await app.aio.run_embedded("x", "go", run_id="r")
        for model in (*claude.values(), gpt):
            await model.close()
        requests = list(server.requests)
    assert (result.status, result.text, result.steps) == ("completed", "done", 5)
    models = (await app.aio.handle("r").envelope()).models
    assert models is not None
    assert [(each.failed.name, each.next.name, each.step) for each in models.failovers] == [
        ("anthropic:claude-a", "openai:gpt", 4),
        ("openai:gpt", "anthropic:claude-b", 5),
    ]
    assert [each.failed.protocol for each in models.failovers] == [claude["claude-a"].protocol, gpt.protocol]
    by_model = {name: [one for one in requests if one.body["model"] == name] for name in ("claude-a", "gpt", "claude-b")}
    assert {name: len(sent_to) for name, sent_to in by_model.items()} == {"claude-a": 4, "gpt": 2, "claude-b": 1}
    for request in by_model["gpt"]:
        assert not [word for word in (CLAUDE, SIGNED) if word.encode() in request.raw]
        assert len(sent(request).pairs) == request.turn - 1
    [last] = by_model["claude-b"]
    assert OPENAI.encode() not in last.raw
    assert [thought["thinking"] for thought in sent(last).thoughts] == [f"{CLAUDE} {turn}" for turn in (1, 2, 3)]
    assert [text for _, text in sent(last).pairs] == ["seen"] * 4
    tokens = result.usage.total_tokens // 5
    assert result.usage.cost_micros == tokens * (3 * 1 + 100 + 10_000)


def test_an_error_that_is_copied_still_says_that_content_had_come() -> None:
    """It passes through processes and tests by pickle."""
    assert copy.copy(ModelUnavailableError("cut", after_content=True)).after_content
    assert not copy.copy(ModelUnavailableError("cut")).after_content
