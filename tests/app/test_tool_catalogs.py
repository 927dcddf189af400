"""Catalogs of tool servers: what a run records, and what becomes of it when they change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from deuz_workers import (
    Agent,
    ExecutionPolicy,
    McpPool,
    McpServer,
    MockModel,
    ModelRequestError,
    StepInfo,
    fingerprint_tools,
    tool,
)
from deuz_workers.core.change import Change, Outcome
from deuz_workers.core.codec import encode
from deuz_workers.core.envelope import decode_body
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from deuz_workers.testing.mcp_client import MemoryMcpClient, MemoryMcpServer
from tests.app.test_record_versions import rewrite
from tests.app.tool_servers import agent, catalog, connects, offered, shop, streamed, warnings_in
from tests.app.world import World

KEPT = "the run's resume binding now records the new catalog."


@tool(needs_approval=True)
async def pay() -> str:
    """Waits for a person."""
    return "paid"


def waits(server: MemoryMcpServer, *, accept: bool = False, **given: Any) -> Agent:
    """Calls a gated tool of its own, then ends."""
    on_change: Any = "accept" if accept else "stop"
    script = [calls(call("pay")), "done"]
    return agent(script, server.client(), tools=[pay], on_catalog_change=on_change, **given)


async def suspended(world: World, made: Agent) -> dict[str, bool]:
    """The run waits; returns the verdicts that it needs."""
    waiting = await world.process(made).aio.run_embedded("x", "go", run_id="r")
    assert waiting.status == "suspended"
    return {item.approval_id: True for item in waiting.pending_approvals}


# -- what is recorded ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("MCB-001", "BND-004")
async def test_a_run_records_the_merged_set(memory: World) -> None:
    """Names with their namespaces, without those that a local tool stands before; a run without servers records nothing."""
    one, other = shop("charge", "pay", name="a"), shop("charge", name="b")
    entries = McpServer(client=one.client()), McpServer(client=other.client(), namespace="b")
    made = agent(["done"], *entries, tools=[pay])
    await memory.process(made).aio.run_embedded("x", "go", run_id="r")
    specs = [spec for spec in _model(made).requests[0].tools if spec.name != "pay"]
    assert await catalog(memory) == fingerprint_tools(specs)
    assert sorted(await catalog(memory) or ()) == ["a_charge", "a_pay", "b_charge"]
    await memory.process(Agent("y", model=MockModel(["done"]))).aio.run_embedded("y", "go", run_id="plain")
    assert await catalog(memory, "plain") is None


def _model(made: Agent) -> MockModel:
    assert isinstance(made.model, MockModel)
    return made.model


@pytest.mark.spec("MCB-008", "ENV-012")
async def test_a_run_without_a_catalog_records_the_one_it_is_taken_up_with(world: World) -> None:
    """It is not refused, and the first save has it."""
    verdicts = await suspended(world, Agent("x", model=MockModel([calls(call("pay")), "done"]), tools=[pay]))
    assert await catalog(world) is None
    server, seen = shop("refund"), []

    async def look(request: Any) -> str:
        seen.append(await catalog(world))
        return "done"

    made = agent([calls(call("pay")), look], server.client(), tools=[pay])
    result = await world.process(made).aio.resume_embedded("r", approvals=verdicts)
    assert (result.status, result.warnings, offered(made.model)) == ("completed", (), ["pay", "refund"])
    assert [sorted(one or ()) for one in seen] == [["refund"]]


# -- taken up again ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("MCB-002", "MCB-003", "MCB-005")
@pytest.mark.parametrize(
    ("change", "groups"),
    [
        ("add", "added: refund"),
        ("remove", "removed: charge"),
        ("describe", "changed: charge"),
        ("all", "added: refund, repay; removed: charge; changed: lookup"),
    ],
)
async def test_a_resume_that_meets_other_tools_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, change: str, groups: str
) -> None:
    """The sentence names the groups, nothing is written, and the old ones let it go on."""
    server = shop("charge", "lookup")
    verdicts = await suspended(world, waits(server))
    before, kept = await world.loaded("r"), dict(server.definitions)
    if change in ("add", "all"):
        server.add("refund", lambda: "")
    if change in ("remove", "all"):
        server.remove("charge")
    if change == "describe":
        server.add("charge", lambda: "", description="Other.")
    if change == "all":
        server.add("lookup", lambda: "", description="Other.")
        server.add("repay", lambda: "")
    server.order.clear()
    answer_items = world.store.answer_items

    async def noted(*given: Any) -> Any:
        server.note("write")
        return await answer_items(*given)

    monkeypatch.setattr(world.store, "answer_items", noted)
    made = waits(server)
    refused = await world.process(made).aio.resume_embedded("r", approvals=verdicts)
    assert (refused.error or {})["message"] == f"MCP tool catalog changed across resume ({groups})."
    assert await world.loaded("r") == before
    assert (_model(made).requests, "write" in server.order) == ((), False)
    server.definitions = kept
    server.order.clear()
    result = await world.process(waits(server)).aio.resume_embedded("r", approvals=verdicts)
    assert (result.status, [what for what in server.order if what in ("connect", "list", "write")][:3]) == (
        "completed",
        ["connect", "list", "write"],
    )


@pytest.mark.spec("MCB-004", "MCM-004")
@pytest.mark.parametrize("on_change", ["stop", "accept"])
async def test_leaving_the_servers_out_removes_all_their_tools(world: World, on_change: Any) -> None:
    """Every recorded tool is named, nothing else, and that cannot be accepted."""
    server = shop("charge", "lookup")
    verdicts = await suspended(world, waits(server))
    before = await world.loaded("r")
    bare = Agent("x", model=MockModel([calls(call("pay")), "done"]), tools=[pay], on_catalog_change=on_change)
    refused = await world.process(bare).aio.resume_embedded("r", approvals=verdicts)
    assert (refused.error or {})["message"] == "MCP tool catalog changed across resume (removed: charge, lookup)."
    assert await world.loaded("r") == before


@pytest.mark.spec("MCB-006")
@pytest.mark.parametrize("end", ["completed", "stopped", "failed"])
async def test_a_run_that_has_ended_is_read_without_connecting(world: World, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """The servers may be gone."""
    server = shop("charge")
    [entry] = connects(monkeypatch, server)
    scripts: dict[str, Any] = {
        "completed": ["done"],
        "stopped": [calls(call("charge", n=1))],
        "failed": [ModelRequestError("no")],
    }

    def is_second(info: StepInfo) -> bool:
        return info.step > 1

    given: Any = {"stop_when": is_second} if end == "stopped" else {}
    made = agent(scripts[end], entry, **given)
    result = await world.process(made).aio.run_embedded("x", "go", run_id="r")
    assert result.status == end
    server.counts.clear()
    server.is_away = True
    read = await world.process(made).aio.resume_embedded("r")
    assert (read.status, server.counts["connect"]) == (end, 0)


@pytest.mark.spec("MCM-002", "MCB-005")
async def test_an_accepted_catalog_is_stored_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first save of the resume, ahead of the model call, with its warning."""
    server = shop("charge")
    verdicts = await suspended(world, waits(server))
    server.add("refund", lambda: "")
    seen: list[Any] = []

    async def look(request: Any) -> str:
        seen.append(await catalog(world))
        return "done"

    made = agent([calls(call("pay")), look], server.client(), tools=[pay], on_catalog_change="accept")
    revision = (await world.head("r")).revision
    stored: list[tuple[int, bool]] = []
    commit = world.store.commit

    async def noted(change: Change) -> Outcome:
        outcome = await commit(change)
        stored.append((change.expected, "refund" in (await catalog(world) or {})))
        return outcome

    monkeypatch.setattr(world.store, "commit", noted)
    result = await world.process(made).aio.resume_embedded("r", approvals=verdicts)
    assert (result.status, sorted(seen[0])) == ("completed", ["charge", "refund"])
    assert stored[0] == (revision, True)
    [warning] = result.warnings
    assert (warning.setting, warning.message) == ("mcp", f"MCP tool catalog changed across resume (added: refund); {KEPT}")


@pytest.mark.spec("MCM-003")
@pytest.mark.parametrize("state", ["executing", "waiting", "not started"])
@pytest.mark.parametrize("whose", ["server", "local"])
async def test_an_open_call_of_the_old_catalog_keeps_it(world: World, state: str, whose: str) -> None:
    """Of a server's tool: the resume fails, nothing is written, the server is not called. One of a local tool does not."""
    server, dies = shop("other"), [True] if state == "executing" else []

    def act() -> str:
        if dies:
            dies.clear()
            raise ProcessDied
        return "did it"

    @tool(needs_approval=state == "waiting")
    async def local() -> str:
        """Acts here."""
        return act()

    server.add("act", act)
    name = "act" if whose == "server" else "local"
    wanted = [call(name), *([call("pay")] if state == "not started" else [])]
    given: Any = {"policy": ExecutionPolicy(required_approvals=["act"])} if state == "waiting" else {}

    def made(*, accept: bool) -> Agent:
        on_change: Any = "accept" if accept else "stop"
        script = [calls(*wanted), "done"]
        return agent(script, server.client(), tools=[pay, local], on_catalog_change=on_change, **given)

    if state == "executing":
        with pytest.raises(ProcessDied):
            await world.process(made(accept=False)).aio.run_embedded("x", "go", run_id="r")
        stopped = await world.process(made(accept=False)).aio.resume_embedded("r")
        answers: Any = {"retry_tool_call_ids": [effect.tool_call_id for effect in stopped.unknown_effects]}
    else:
        answers = {"approvals": await suspended(world, made(accept=False))}
    begun, before = server.calls["act"], await world.loaded("r")
    assert [receipt.stage for receipt in before.receipts] == (["executing"] if state == "executing" else [])
    server.add("refund", lambda: "")
    result = await world.process(made(accept=True)).aio.resume_embedded("r", **answers)
    if whose == "local":
        assert (result.status, "refund" in (await catalog(world) or {})) == ("completed", True)
        return
    assert str((result.error or {})["message"]).startswith("MCP tool catalog changed across resume (added: refund).")
    assert (await world.loaded("r"), server.calls["act"]) == (before, begun)


@pytest.mark.spec("MCM-005")
async def test_a_resume_that_writes_nothing_reports_nothing(world: World) -> None:
    """Without the verdict: no warning, and the old catalog. With it: both are new."""
    server = shop("charge")
    verdicts = await suspended(world, waits(server))
    server.add("refund", lambda: "")
    waiting = await world.process(waits(server, accept=True)).aio.resume_embedded("r")
    assert (waiting.status, waiting.warnings, sorted(await catalog(world) or ())) == ("suspended", (), ["charge"])
    result = await world.process(waits(server, accept=True)).aio.resume_embedded("r", approvals=verdicts)
    assert (len(result.warnings), sorted(await catalog(world) or ())) == (1, ["charge", "refund"])


async def test_a_server_that_is_away_refuses_a_resume(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written, and the run goes on when it is there again."""
    server = shop("charge")
    [entry] = connects(monkeypatch, server)
    made = agent([calls(call("pay")), "done"], entry, tools=[pay])
    verdicts = await suspended(world, made)
    before = await world.loaded("r")
    server.is_away = True
    refused = await world.process(made).aio.resume_embedded("r", approvals=verdicts)
    assert ((refused.error or {})["code"], await world.loaded("r")) == ("mcp_unavailable", before)
    server.is_away = False
    assert (await world.process(made).aio.resume_embedded("r", approvals=verdicts)).status == "completed"


# -- changed while it goes on --------------------------------------------------------------------------------------------


def learns(server: MemoryMcpServer, change: str = "add") -> None:
    """Its tool `learn` changes what it offers, and says so."""

    def learn() -> str:
        if change == "add":
            server.add("refund", lambda: "paid back")
        elif change == "describe":
            server.add("learn", lambda: "learned", description="Other.")
        server.announce()
        return "learned"

    server.add("learn", learn)


@pytest.mark.spec("MCH-001", "MCH-002", "MCH-004", "STR-009")
async def test_a_change_stops_the_run_before_its_next_call(world: World) -> None:
    """No further model call, no further turn, the old catalog, one part about it."""
    server = shop("charge")
    learns(server)
    made = agent([calls(call("learn")), "done"], server.client())
    events, result = await streamed(made, world)
    parts = warnings_in(events)
    assert (result.status, result.reason, result.steps) == ("stopped", "mcp-catalog-changed", 1)
    assert result.stop_details == {"added": ["refund"]}
    assert (len(_model(made).requests), sorted(await catalog(world) or ())) == (1, ["charge", "learn"])
    [part] = parts
    assert (part.setting, part.message.startswith("MCP tool catalog changed mid-run (added: refund)")) == ("mcp", True)
    assert [warning.message for warning in result.warnings] == [part.message]


@pytest.mark.spec("MCH-001", "MCH-003", "MCH-004", "STR-012")
async def test_an_accepted_change_is_stored_before_it_is_offered(world: World) -> None:
    """The stored binding has it when the model is asked; calls of the new tool have receipts; the part says what happened."""
    server, seen = shop("charge"), []
    learns(server)

    async def look(request: Any) -> Any:
        seen.append((sorted(await catalog(world) or ()), sorted(spec.name for spec in request.tools)))
        return calls(call("refund"))

    made = agent([calls(call("learn")), look, "done"], server.client(), on_catalog_change="accept")
    events, result = await streamed(made, world)
    parts = warnings_in(events)
    assert (result.status, server.calls["refund"]) == ("completed", 1)
    assert seen == [(["charge", "learn", "refund"], ["charge", "learn", "refund"])]
    assert [receipt.stage for (_, _), receipt in sorted((await world.receipts("r")).items())][-1] == "completed"
    text = f"MCP tool catalog changed mid-run (added: refund); {KEPT}"
    assert [(part.setting, part.message) for part in parts] == [("mcp", text)]
    assert [warning.message for warning in result.warnings] == [text]


@pytest.mark.spec("PTH-011")
async def test_a_refreshed_tool_is_gated_like_any_other(memory: World) -> None:
    """It is not in the allowlist: `tool_not_allowed`, and the server is not called."""
    server = shop()
    learns(server)
    policy = ExecutionPolicy(allowed_tools=["learn"])
    made = agent([calls(call("learn")), calls(call("refund"))], server.client(), on_catalog_change="accept", policy=policy)
    result = await memory.process(made).aio.run_embedded("x", "go")
    assert ((result.error or {})["code"], server.calls["refund"]) == ("tool_not_allowed", 0)


@pytest.mark.spec("MCH-005")
@pytest.mark.parametrize("on_change", ["stop", "accept"])
async def test_a_notice_without_a_change_does_nothing(memory: World, on_change: Any) -> None:
    """It is listed again, and that is all."""
    server = shop("charge")
    learns(server, "nothing")
    made = agent([calls(call("learn")), "done"], server.client(), on_catalog_change=on_change)
    result = await memory.process(made).aio.run_embedded("x", "go", run_id="r")
    assert (result.status, result.warnings, server.counts["list"]) == ("completed", (), 2)


@pytest.mark.spec("MCH-006")
async def test_another_description_is_a_change(memory: World) -> None:
    """Of a tool of the same name and schema."""
    server = shop()
    learns(server, "describe")
    result = await memory.process(agent([calls(call("learn")), "done"], server.client())).aio.run_embedded("x", "go")
    assert (result.reason, result.stop_details) == ("mcp-catalog-changed", {"changed": ["learn"]})


@pytest.mark.spec("MCH-008")
async def test_a_list_that_fails_keeps_the_catalog_until_the_next_call(memory: World) -> None:
    """The run goes on with what it has, and the change is found at the next boundary."""
    server = shop()
    learns(server)
    server.add("noop", lambda: "nothing")

    def failing(request: Any) -> Any:
        return calls(call("noop"))

    def learn_and_fail() -> str:
        server.add("refund", lambda: "")
        server.announce()
        server.failing_lists = 1
        return "learned"

    server.add("learn", learn_and_fail)
    made = agent([calls(call("learn")), failing, "done"], server.client(), on_catalog_change="accept")
    result = await memory.process(made).aio.run_embedded("x", "go")
    told = [sorted(spec.name for spec in request.tools) for request in _model(made).requests]
    assert (result.status, told) == (
        "completed",
        [["learn", "noop"], ["learn", "noop"], ["learn", "noop", "refund"]],
    )


async def test_a_list_that_never_comes_is_one_that_fails(memory: World) -> None:
    """At the start of a run: it fails and says so. Later the old list is in use, and nobody waits for ever."""
    server = shop()
    silent = asyncio.Event()

    class Client(MemoryMcpClient):
        async def list_tools(self) -> Sequence[Mapping[str, Any]]:
            if silent.is_set():
                await asyncio.Event().wait()
            return await super().list_tools()

    def fall_silent() -> str:
        silent.set()
        return "silent"

    server.add("hush", fall_silent)
    server.tells_changes = False
    entry = McpServer(client=Client(server), connect_timeout_ms=50)
    result = await memory.process(agent([calls(call("hush")), "done"], entry)).aio.run_embedded("x", "go", run_id="r")
    assert (result.text, server.calls["hush"]) == ("done", 1)
    result = await memory.process(agent(["done"], entry)).aio.run_embedded("x", "go", run_id="later")
    assert (result.status, (result.error or {})["code"]) == ("failed", "mcp_unavailable")
    assert "50 ms" in str((result.error or {})["message"])


async def test_a_server_that_tells_of_no_changes_is_listed_before_every_call(memory: World) -> None:
    """One that does is listed once."""
    for tells, lists in ((False, 3), (True, 1)):
        server = shop("charge", tells_changes=tells)
        entry = McpServer(url="http://127.0.0.1:1/")
        script = [calls(call("charge", n=1)), calls(call("charge", n=2)), "done"]
        made = agent(script, entry, mcp_pool=McpPool(server.connect))
        assert (await memory.process(made).aio.run_embedded("x", "go")).status == "completed"
        # once before the run is written, once at the start of its step where nobody would tell
        assert server.counts["list"] == (lists if tells else lists + 1)


@pytest.mark.spec("MCM-001")
@pytest.mark.parametrize("when", ["down", "unsaved"])
async def test_a_change_that_was_not_saved_is_refused(world: World, when: str) -> None:
    """The server changed while nobody looked, or the process died before it saved what it had accepted."""
    server = shop("charge")
    script = [calls(call("charge", n=1)), "done"]
    if when == "down":
        verdicts: Any = await suspended(world, waits(server))
        server.add("refund", lambda: "")
        before = await world.loaded("r")
        result = await world.process(waits(server)).aio.resume_embedded("r", approvals=verdicts)
    else:
        learns(server)
        script = [calls(call("learn")), "done"]
        accepting = agent(script, server.client(), on_catalog_change="accept")
        # admission, reply with the receipt, results; the next commit would save the catalog with the second call's admission
        with pytest.raises(ProcessDied):
            await world.dying(accepting, at=4).aio.run_embedded("x", "go", run_id="r")
        before = await world.loaded("r")
        assert "refund" not in (await catalog(world) or {})
        result = await world.process(agent(script, server.client())).aio.resume_embedded("r")
    assert (result.error or {})["message"] == "MCP tool catalog changed across resume (added: refund)."
    after = await world.loaded("r")
    assert replace(after, head=replace(after.head, due_in_ms=0)) == replace(before, head=replace(before.head, due_in_ms=0))


@pytest.mark.spec("ENV-012")
async def test_a_catalog_that_is_none_of_ours_matches_nothing(memory: World) -> None:
    """The key is known, its value is not: refused as any other part of a binding."""
    verdicts = await suspended(memory, Agent("x", model=MockModel([calls(call("pay")), "done"]), tools=[pay]))
    body = dict(decode_body((await memory.head("r")).body))
    await rewrite(memory, body=encode({**body, "binding": {**cast(Any, body["binding"]), "mcp": ["charge"]}}))
    before = await memory.loaded("r")
    result = await memory.process(waits(shop("charge"))).aio.resume_embedded("r", approvals=verdicts)
    assert str((result.error or {})["message"]).startswith("Native agent binding changed across resume.")
    assert await memory.loaded("r") == before
