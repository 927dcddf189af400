"""Tools of MCP servers in runs: the path of their calls, connections, names, results."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deuz_workers import (
    Agent,
    ConfigurationError,
    Deuz,
    ExecutionPolicy,
    Guardrails,
    McpConnectionLost,
    McpPool,
    McpServer,
    MockModel,
    ModelRequestError,
    Rewrite,
    ToolError,
    ToolOutput,
    tool,
)
from deuz_workers.app.servers import check_namespaces
from deuz_workers.engine.binding import binding_of
from deuz_workers.errors import RunNotFoundError
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from deuz_workers.testing.mcp_client import MemoryMcpServer
from tests.app.tool_servers import agent, connects, offered, shop, streamed, warnings_in
from tests.app.world import World

DOCS = Path(__file__).parents[2] / "docs"


# -- calls and their receipts --------------------------------------------------------------------------------------------


@pytest.mark.spec("MCR-001")
async def test_a_call_has_a_receipt_and_an_event(memory: World) -> None:
    """Stage `completed` under turn and call id, and one `tool-output` event with the value."""
    server = shop("charge")
    made = agent([calls(call("charge", n=1).with_id("c1")), "done"], server.client())
    events, _ = await streamed(made, memory)
    seen = [event for event in events if isinstance(event, ToolOutput)]
    receipts = await memory.receipts("r")
    [(place, receipt)] = receipts.items()
    assert (place[0], receipt.tool, receipt.stage, receipt.value) == (1, "charge", "completed", "charge done")
    assert [(event.tool_call_id, event.tool_name, event.raw_result) for event in seen] == [(place[1], "charge", "charge done")]
    assert server.calls == {"charge": 1}


@pytest.mark.spec("MCR-002")
async def test_a_crash_during_a_call_leaves_an_unknown_effect(world: World) -> None:
    """`executing` is stored before the server hears of it: the resume stops for reconciliation, and repeats it if allowed."""
    server, dies = shop(), [True]
    stages: list[str] = []

    async def charge() -> str:
        stages.extend(receipt.stage for receipt in (await world.receipts("r")).values())
        if dies:
            dies.clear()
            raise ProcessDied
        return "charged"

    server.add("charge", charge)
    script = [calls(call("charge")), "done"]
    with pytest.raises(ProcessDied):
        await world.process(agent(script, server.client())).aio.run_embedded("x", "go", run_id="r")
    stopped = await world.process(agent(script, server.client())).aio.resume_embedded("r")
    assert (stopped.status, stopped.reason, server.calls["charge"]) == ("stopped", "tool-reconciliation-required", 1)
    again = [effect.tool_call_id for effect in stopped.unknown_effects]
    result = await world.process(agent(script, server.client())).aio.resume_embedded("r", retry_tool_call_ids=again)
    assert (result.status, server.calls["charge"], stages) == ("completed", 2, ["executing", "executing"])


@pytest.mark.spec("MCR-003")
async def test_an_error_of_the_server_is_recorded_and_repeated_from_there(world: World) -> None:
    """A `failed` receipt with its text; a process that takes over answers the model with it and asks nobody."""
    server, dies = shop(), [True]
    server.add("charge", lambda: {"content": [{"type": "text", "text": "no such order"}], "isError": True})

    async def other() -> str:
        while dies:
            found = {receipt.tool: (receipt.stage, receipt.error) for receipt in (await world.receipts("r")).values()}
            if found["charge"] == ("failed", "no such order"):
                dies.clear()
                raise ProcessDied
            await asyncio.sleep(0)
        return "fine"

    server.add("other", other)

    def made() -> Agent:
        entry = McpServer(client=server.client(), replay={"other": "idempotent"})
        return agent([calls(call("charge"), call("other")), "done"], entry)

    with pytest.raises(ProcessDied):
        await world.process(made()).aio.run_embedded("x", "go", run_id="r")
    result = await world.process(made()).aio.resume_embedded("r")
    texts = [part.text for message in result.messages for part in message.tool_results if part.name == "charge"]
    assert (result.status, texts, server.calls["charge"]) == ("completed", ["no such order"], 1)


@pytest.mark.spec("MCR-004", "MCO-001", "TSC-001")
async def test_a_result_is_kept_as_the_client_returned_it(memory: World) -> None:
    """Structured content with whatever is in it, also where it misses the output schema that the server declared."""
    value = {"price": "three", "note": None, "list": [1, {"a": 2.5}]}
    server = shop()
    schema = {"type": "object", "properties": {"price": {"type": "integer"}}, "required": ["price"]}
    server.add("lookup", lambda: value, outputSchema=schema)
    made = agent([calls(call("lookup")), "done"], server.client())
    events, result = await streamed(made, memory)
    seen = [event.raw_result for event in events if isinstance(event, ToolOutput)]
    [receipt] = (await memory.receipts("r")).values()
    assert (result.status, receipt.stage, receipt.value, seen) == ("completed", "completed", value, [value])


@pytest.mark.spec("MCR-005")
async def test_calls_pass_policy_guardrails_and_approval(memory: World) -> None:
    """A gated one suspends and runs when it is approved; a guardrail rewrites its arguments; the policy ends the run."""
    server = shop()
    server.add("charge", "charged {n}".format)
    script = [calls(call("charge", n=1)), "done"]

    def doubled(arguments: Mapping[str, Any], context: Any) -> Rewrite:
        return Rewrite({"n": 2 * arguments["n"]})

    entry = McpServer(client=server.client(), needs_approval=["charge"])
    made = agent(script, entry, guardrails=Guardrails(on_tool_call=[doubled]))
    waiting = await memory.process(made).aio.run_embedded("x", "go", run_id="r")
    assert (waiting.status, server.calls["charge"]) == ("suspended", 0)
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    result = await memory.process(made).aio.resume_embedded("r", approvals=verdicts)
    [receipt] = (await memory.receipts("r")).values()
    assert (result.status, server.calls["charge"], receipt.value) == ("completed", 1, "charged 2")
    policy = ExecutionPolicy(required_approvals=["charge"])
    gated = await memory.process(agent(script, server.client(), policy=policy)).aio.run_embedded("x", "go")
    assert gated.status == "suspended"
    closed = agent(script, server.client(), policy=ExecutionPolicy(allowed_tools=["other"]))
    refused = await memory.process(closed).aio.run_embedded("x", "go")
    assert ((refused.error or {})["code"], server.calls["charge"]) == ("tool_not_allowed", 1)


@pytest.mark.spec("MCI-001")
@pytest.mark.parametrize("replay", ["idempotent", {"lookup_order": "idempotent"}])
async def test_a_declared_tool_is_repeated_without_asking(world: World, replay: Any) -> None:
    """By name as the server spells it, before the namespace; what is not declared stops for reconciliation."""
    server, dies = shop(), [True]

    def dying(name: str) -> Any:
        def act() -> str:
            if dies:
                dies.clear()
                raise ProcessDied
            return name

        return act

    for name in ("lookup_order", "refund"):
        server.add(name, dying(name))

    def made(tool_name: str) -> Agent:
        entry = McpServer(client=server.client(), namespace="orders", replay=replay)
        return agent([calls(call(tool_name)), "done"], entry)

    for name in ("lookup_order", "refund"):
        dies[:] = [True]
        with pytest.raises(ProcessDied):
            await world.process(made(f"orders_{name}")).aio.run_embedded("x", "go", run_id=name)
        result = await world.process(made(f"orders_{name}")).aio.resume_embedded(name)
        if name == "lookup_order" or replay == "idempotent":
            assert (result.status, server.calls[name]) == ("completed", 2)
        else:
            assert (result.reason, server.calls[name]) == ("tool-reconciliation-required", 1)


@pytest.mark.spec("MCI-003", "BND-006")
def test_the_page_asks_for_a_new_binding_id() -> None:
    """Where a declaration changes; it is compared by nothing."""
    assert "raise the agent's `binding_id`" in " ".join((DOCS / "mcp.md").read_text().split())
    entry = McpServer(url="http://127.0.0.1:1/mcp")
    one, other = (agent([], replace(entry, replay=replay)).definition for replay in (None, "idempotent"))
    assert binding_of(one) == binding_of(other)


async def test_what_the_client_refuses_is_a_failed_call(memory: World) -> None:
    """Its words are the model's answer."""
    server = shop()

    def broken() -> str:
        raise ToolError("the result cannot be used: price is missing")

    server.add("lookup", broken)
    result = await memory.process(agent([calls(call("lookup")), "done"], server.client())).aio.run_embedded(
        "x", "go", run_id="r"
    )
    [receipt] = (await memory.receipts("r")).values()
    assert (result.status, receipt.stage, receipt.error) == (
        "completed",
        "failed",
        "the result cannot be used: price is missing",
    )


async def test_arguments_are_checked_against_the_servers_schema(memory: World) -> None:
    """Wrong ones come back to the model, and the server hears nothing."""
    server = shop("charge")
    result = await memory.process(agent([calls(call("charge", n="one")), "done"], server.client())).aio.run_embedded(
        "x", "go", run_id="r"
    )
    [receipt] = (await memory.receipts("r")).values()
    assert (result.status, receipt.outcome, server.calls["charge"]) == ("completed", "invalid-arguments", 0)


@pytest.mark.spec("FR-30")
@pytest.mark.parametrize(("replay", "begun", "told"), [(None, 1, "not known"), ("idempotent", 2, "charged")])
async def test_a_connection_that_is_lost_during_a_call(memory: World, replay: Any, begun: int, told: str) -> None:
    """Nobody knows whether there was an effect, and the model is told so; only a call that may be repeated is."""
    server, cut = shop(), [True]

    def charge() -> str:
        if cut:
            cut.clear()
            server.restart()
            raise McpConnectionLost("cut")
        return "charged"

    server.add("charge", charge)
    made = agent(
        [calls(call("charge")), "done"], McpServer(url="http://127.0.0.1:1/", replay=replay), mcp_pool=McpPool(server.connect)
    )
    result = await memory.process(made).aio.run_embedded("x", "go")
    [text] = [part.text for message in result.messages for part in message.tool_results]
    assert (result.status, told in text, server.calls["charge"], server.counts["connect"]) == ("completed", True, begun, 2)


@pytest.mark.spec("FR-30")
async def test_a_server_that_was_restarted_between_calls_is_connected_to_again(memory: World) -> None:
    """A call that certainly never began is made once, on a new connection."""
    server = shop("charge")

    def restart(request: Any) -> Any:
        server.restart()
        return calls(call("charge", n=1))

    entry = McpServer(url="http://127.0.0.1:1/")
    made = agent([restart, restart, "done"], entry, mcp_pool=McpPool(server.connect))
    result = await memory.process(made).aio.run_embedded("x", "go")
    assert (result.status, server.calls["charge"], server.counts["connect"]) == ("completed", 2, 3)
    server.is_away = True
    server.restart()
    away = agent([calls(call("charge", n=1)), "done"], entry, mcp_pool=McpPool(server.connect))
    assert (await memory.process(away).aio.run_embedded("x", "go")).status == "failed"


# -- connections ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("MCC-001")
@pytest.mark.parametrize("end", ["success", "failure", "cancel"])
async def test_connections_of_a_run_end_with_it(memory: World, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """One that its entry opened, whatever becomes of the run."""
    server = shop("charge")

    [entry] = connects(monkeypatch, server)
    script: list[Any] = {
        "success": ["done"],
        "failure": [ModelRequestError("no")],
        "cancel": [calls(call("charge", n=1)), "done"],
    }[end]
    app = memory.process(agent(script, entry))
    if end == "cancel":

        async def charge(**given: Any) -> str:
            await app.aio.handle("r").cancel("enough")
            return ""

        server.add("charge", charge)
    result = await app.aio.run_embedded("x", "go", run_id="r")
    assert result.status == {"success": "completed", "failure": "failed", "cancel": "stopped"}[end]
    assert (server.counts["connect"], server.counts["close"]) == (1, 1)


@pytest.mark.spec("MCC-002")
@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_live_client_is_borrowed(memory: World, wrapped: bool) -> None:
    """It is not closed; the subscription to its changes is given up."""
    server = shop("charge")
    client = server.client()
    entry = McpServer(client=client, namespace="pay") if wrapped else client
    made = agent([calls(call("pay_charge" if wrapped else "charge", n=1)), "done"], entry)
    assert (await memory.process(made).aio.run_embedded("x", "go")).status == "completed"
    assert client.is_open
    assert (server.counts["subscribe"], server.counts["unsubscribe"], server.counts["close"]) == (1, 1, 0)


@pytest.mark.spec("MCC-003")
async def test_a_pool_owns_its_connections(memory: World) -> None:
    """Two runs share one, and the end of a run does not close it."""
    server = shop("charge")
    pool = McpPool(server.connect)
    made = agent([calls(call("charge", n=1)), "done"], McpServer(url="http://127.0.0.1:1/"), mcp_pool=pool)
    for _ in range(2):
        assert (await memory.process(made).aio.run_embedded("x", "go")).status == "completed"
    assert (server.counts["connect"], server.counts["close"], pool.open_connections) == (1, 0, 1)
    await pool.close()
    assert server.counts["close"] == 1


@pytest.mark.spec("MCB-007", "MCC-006")
async def test_an_unreachable_server_fails_the_run_before_anything_is_written(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two: no row, no model call, and the connection to the first is closed."""
    first, second = shop("charge", name="first"), shop("refund", name="second")
    second.is_away = True
    made = agent(["done"], *connects(monkeypatch, first, second))
    app = memory.process(made)
    result = await app.aio.run_embedded("x", "go", run_id="r")
    assert (result.status, (result.error or {})["code"]) == ("failed", "mcp_unavailable")
    assert isinstance(made.model, MockModel)
    assert (made.model.requests, first.counts["connect"], first.counts["close"]) == ((), 1, 1)
    with pytest.raises(RunNotFoundError):
        await app.aio.handle("r").envelope()


@pytest.mark.parametrize("wrong", [[object()], "http://x", McpServer(url="http://127.0.0.1:1/")])
def test_what_is_no_list_of_servers_is_refused(wrong: Any) -> None:
    """With the way out."""
    with pytest.raises(ConfigurationError):
        Agent("x", model=MockModel([]), mcp=wrong)
    with pytest.raises(ConfigurationError, match="on_catalog_change"):
        Agent("x", model=MockModel([]), on_catalog_change="ignore")  # pyright: ignore[reportArgumentType]


# -- names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("MCN-001", "MCN-002", "RES-020", "STR-009", "STR-012")
async def test_a_local_tool_goes_before_a_servers(memory: World) -> None:
    """It runs, and the clash is one warning of the result and one part, with type and setting."""
    server = shop("charge", "refund")

    @tool
    async def charge() -> str:
        """Charges here."""
        return "charged here"

    made = agent([calls(call("charge")), "done"], server.client(), tools=[charge])
    events, result = await streamed(made, memory)
    [text] = [part.text for message in result.messages for part in message.tool_results]
    assert (text, server.calls["charge"], offered(made.model, 0)) == ("charged here", 0, ["charge", "refund"])
    [warning] = result.warnings
    assert (warning.type, warning.setting, "'charge'" in warning.message) == ("unsupported-tool", "mcp", True)
    [part] = warnings_in(events)
    assert (part.type, part.setting, part.message) == ("unsupported-tool", "mcp", warning.message)


@pytest.mark.spec("MCN-001", "MCN-002")
async def test_of_two_servers_the_later_entry_goes_first(memory: World) -> None:
    """Under the same name, which is said once."""
    first, second = shop("charge", name="a"), shop("charge", name="b")
    entries = [McpServer(client=server.client(), namespace="pay") for server in (first, second)]
    result = await memory.process(agent([calls(call("pay_charge", n=1)), "done"], *entries)).aio.run_embedded("x", "go")
    assert (result.status, first.calls["charge"], second.calls["charge"]) == ("completed", 0, 1)
    assert [(warning.type, warning.setting) for warning in result.warnings] == [("unsupported-tool", "mcp")]


async def test_servers_without_namespaces_are_told_apart_by_their_names(memory: World) -> None:
    """Or their places, where they have none."""
    made = agent(["done"], shop("charge", name="my shop").client(), shop("charge", name=None).client())
    assert (await memory.process(made).aio.run_embedded("x", "go")).status == "completed"
    assert offered(made.model) == ["mcp1_charge", "my_shop_charge"]


@pytest.mark.spec("MCN-004")
def test_workers_refuse_several_servers_without_namespaces() -> None:
    """Two without one, or with one: an error that names agent and server. One server needs none."""
    one, other = McpServer(url="http://127.0.0.1:1/"), McpServer(url="http://127.0.0.1:2/", namespace="b")
    for entries in ((one, replace(one, url="http://127.0.0.1:3/")), (one, other)):
        with pytest.raises(
            ConfigurationError, match=r"agent 'x' has 2 MCP servers; workers need .* 'http://127.0.0.1:1/' has none"
        ):
            check_namespaces([agent([], *entries).definition])
    check_namespaces([agent([], one).definition, agent([], replace(one, namespace="a"), other).definition])


async def test_a_tool_whose_schema_is_none_is_left_out(memory: World) -> None:
    """The others are offered, and the run says which is not; so it is with one that is nested too deeply to be recorded, and
    with one without a name."""
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}}
    server = shop("charge")
    server.add("odd", lambda: "", schema={"type": "object", "properties": 7})
    server.add("deep", lambda: "", schema=deep)
    server.definitions["nameless"] = {"description": "Of a client that is none of ours."}
    made = agent(["done"], server.client())
    result = await memory.process(made).aio.run_embedded("x", "go")
    assert (result.status, offered(made.model)) == ("completed", ["charge"])
    assert [warning.type for warning in result.warnings] == ["unsupported-tool"] * 3
    assert "'deep'" in result.warnings[1].message
    assert len(result.warnings[1].message) < 200


async def test_an_agent_without_servers_has_none_of_it(memory: World) -> None:
    """Neither a connection nor a key in its record."""
    app: Deuz = memory.process(Agent("x", model=MockModel(["done"])))
    await app.aio.run_embedded("x", "go", run_id="r")
    assert '"mcp"' not in (await memory.head("r")).body
    assert MemoryMcpServer().counts == {}


async def test_servers_belong_to_the_agent_that_began_the_run(memory: World) -> None:
    """Whoever it is handed to has tools of its own, and the recorded catalog stays; back again, the servers' are offered."""
    server = shop("charge")
    to_other, back = call("transfer_to_other"), call("transfer_to_x")
    other = Agent("other", model=MockModel.function(lambda request: calls(back), model="other"))
    made = agent([calls(to_other), "-", calls(call("charge", n=1)), "done"], server.client(), handoffs=[other])
    result = await memory.process(made, other).aio.run_embedded("x", "go", run_id="r")
    assert (result.status, server.calls["charge"]) == ("completed", 1)
    assert (offered(made.model), offered(other.model)) == (["charge", "transfer_to_other"], ["transfer_to_x"])
