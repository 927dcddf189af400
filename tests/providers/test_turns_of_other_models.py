"""A conversation that goes on with another model, as after a fail-over: what a wire is sent of a turn from another."""

from __future__ import annotations

import itertools
import json

import pytest

from deuz_workers import Agent, Limits, run_agent, tool
from deuz_workers.core.codec import decode, encode
from deuz_workers.core.evolve import identify_calls
from deuz_workers.core.messages import Message, ReasoningPart, ToolResultPart, message_from_record, message_to_record, user
from deuz_workers.ports.model import ModelRequest, ToolSpec
from deuz_workers.providers.anthropic.model import AnthropicModel
from deuz_workers.providers.gemini.request import FOREIGN_SIGNATURE
from deuz_workers.providers.script import ScriptedReply, call, reply
from deuz_workers.testing.model_faults import refuse
from deuz_workers.testing.model_server import ModelServer
from tests.providers.sent import sent
from tests.providers.wires import WIRES


@tool(name="pay")
async def look(amount: int) -> str:
    """Pays."""
    return "paid"


SECRET = "what only its author may read again"
PAY = ToolSpec("pay", "Pays.", {"type": "object"})
TURN = reply("Paying.", call("pay", amount=1).with_id("x"), call("pay", amount=2).with_id("a.b:c"), reasoning=SECRET)


async def first_turn(wire: str, scripted: ScriptedReply) -> tuple[Message, ...]:
    """The question, the turn of a model of that wire as it comes back from the store, and the results of its calls."""
    with ModelServer([scripted]) as server:
        model = WIRES[wire].model(server)
        answered = await model.call(ModelRequest("r1", (user("go"),), (PAY,), timeout_ms=20_000))
        await model.close()
    turn = message_from_record(decode(encode(message_to_record(identify_calls(answered.message, 1)))))
    results = (ToolResultPart(use.call_id, use.name, f"paid {place}") for place, use in enumerate(turn.tool_uses, start=1))
    return user("go"), turn, Message("tool", tuple(results))


@pytest.mark.spec("FOV-014")
@pytest.mark.parametrize(("author", "reader"), list(itertools.permutations(WIRES, 2)))
async def test_another_wire_reads_the_turn_without_what_is_private(author: str, reader: str) -> None:
    """Text, calls and their results arrive, each result under its call; no thought, no signature, and no id that the other
    would refuse. Only where one is wanted, the documented stand-in. A gateway may even call both models alike, as here."""
    history = await first_turn(author, TURN)
    with ModelServer(["unused", "done"]) as server:
        model = WIRES[reader].model(server)
        got = await model.call(ModelRequest("r2", history, (PAY,), timeout_ms=20_000))
        await model.close()
        request = server.requests[-1]
    there = sent(request)
    assert got.message.text == "done"
    assert [answer for _, answer in there.pairs] == ["paid 1", "paid 2"]
    assert SECRET not in json.dumps(request.body)
    assert "Paying." in json.dumps(there.history)
    signatures = [part.get("thoughtSignature") for part in there.thoughts]
    assert signatures == ([FOREIGN_SIGNATURE] if reader == "gemini" else [])
    if reader == "anthropic":
        assert all(call_id.replace("_", "").isalnum() for call_id, _ in there.pairs)


@pytest.mark.parametrize("author", ["responses", "anthropic", "gemini"])
async def test_its_author_reads_all_of_it(author: str) -> None:
    """The same turn goes back to the model that wrote it with its thought and signature."""
    history = await first_turn(author, TURN)
    with ModelServer(["unused", "done"]) as server:
        model = WIRES[author].model(server)
        await model.call(ModelRequest("r2", history, (PAY,), timeout_ms=20_000))
        await model.close()
        there = sent(server.requests[-1])
    assert SECRET in json.dumps(there.thoughts)
    assert [answer for _, answer in there.pairs] == ["paid 1", "paid 2"]


@pytest.mark.spec("FOV-014")
@pytest.mark.parametrize("provider", ["anthropic", "compatible"])
async def test_signed_thoughts_stay_in_their_family(provider: str) -> None:
    """From one Claude model to another they go byte for byte, in their place; from a model of a server that nobody knows they
    go to no other."""
    thoughts = ReasoningPart("Hm.\u2028", {"signature": "Sig+/=="}), ReasoningPart("", {"redacted": "Zm9v+/=="})
    expected = [
        {"type": "thinking", "thinking": "Hm.\u2028", "signature": "Sig+/=="},
        {"type": "redacted_thinking", "data": "Zm9v+/=="},
    ]
    for thought, block in zip(thoughts, expected, strict=True):
        scripted = reply("", call("pay", amount=1), reasoning=thought)
        with ModelServer([scripted, refuse(529)]) as away, ModelServer(["unused", "done"]) as there:
            claude, other = (
                AnthropicModel(name, server.base_url, provider=provider, max_retries=0)
                for name, server in (("claude-opus-5-5", away), ("claude-haiku-5-5", there))
            )
            agent = Agent("x", model=claude, fallback_models=[other], tools=[look], limits=Limits(max_retries=0))
            result = await run_agent(agent, "go")
            await claude.close()
            await other.close()
        assert result.output == "done"
        content = sent(there.requests[0]).history[1]["content"]
        assert [one for one in content if one["type"] != "tool_use"] == ([block] if provider == "anthropic" else [])
        assert content[-1]["type"] == "tool_use"


@pytest.mark.spec("FOV-004")
@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(WIRES, 2)))
async def test_a_run_goes_on_over_another_wire(first: str, second: str) -> None:
    """The first model asks for two calls and is overloaded when their results are there; the second reads them and answers.

    Each call runs once, only what the two counted is spent, and what the one that broke off may have cost stays on hold.
    """
    paid: list[int] = []

    @tool
    async def pay(amount: int) -> str:
        """Pays."""
        paid.append(amount)
        return f"paid {amount}"

    with ModelServer([TURN, refuse(529)]) as away, ModelServer(["unused", "done"]) as there:
        models = [WIRES[wire].model(server, model=wire, max_retries=0) for wire, server in ((first, away), (second, there))]
        agent = Agent("x", model=models[0], fallback_models=models[1:], tools=[pay], limits=Limits(max_retries=0))
        result = await run_agent(agent, "go")
        for model in models:
            await model.close()
    assert (result.status, result.output, sorted(paid)) == ("completed", "done", [1, 2])
    assert (away.received, there.received) == (2, 1)
    assert [answer for _, answer in sent(there.requests[0]).pairs] == ["paid 1", "paid 2"]
    assert SECRET not in json.dumps(there.requests[0].body)
    assert (result.accounting.spent.tokens, result.accounting.reserved.tokens) == (30, 0)
    assert result.accounting.unknown.tokens > 0
