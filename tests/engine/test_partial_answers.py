"""A suspended run that is woken while some of its items are open goes on waiting for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deuz_workers.core.codec import encode
from deuz_workers.core.messages import message_to_record, user
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.tools.decorator import tool_from_schema

SCHEMA: dict[str, object] = {"type": "object", "properties": {"amount": {"type": "integer"}}}


async def test_a_message_between_two_answers_takes_none_of_them_up() -> None:
    """Nothing begins before the last answer; then each call has its own verdict, and the message follows the results."""
    paid: list[object] = []

    async def pay(arguments: Mapping[str, Any], context: object) -> str:
        paid.append(arguments["amount"])
        return "ok"

    gated = tool_from_schema("pay", "Pays.", SCHEMA, pay, needs_approval=True)
    script = MockModel([calls(call("pay", amount=1), call("pay", amount=2)), "done"])
    simulation = Simulation({"a": AgentDefinition("a", script, tools={"pay": gated})})
    await simulation.enqueue("a", "r")
    engine = Process(simulation).engine
    while (await engine.step(SCOPE, "r")).end != "suspended":
        pass
    first, second = await simulation.store.open_items(SCOPE, "r")
    await simulation.store.answer_item(SCOPE, "r", first.item_id, encode({"approval_id": first.item_id, "approved": True}))
    letter = encode({"message": message_to_record(user("by the way"))})
    await simulation.store.add_note(SCOPE, "r", "message", letter)
    assert (await engine.step(SCOPE, "r")).end == "suspended"
    run = await simulation.load("r")
    assert (run.envelope.status, [message.text for message in run.envelope.held], paid) == ("suspended", ["by the way"], [])
    await simulation.store.answer_item(SCOPE, "r", second.item_id, encode({"approval_id": second.item_id, "approved": True}))
    run = await simulation.run("r")
    assert (run.envelope.output, sorted(map(str, paid))) == ("done", ["1", "2"])
    assert [message.role for message in run.history] == ["user", "assistant", "tool", "user", "assistant"]
