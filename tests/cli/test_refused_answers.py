"""What does not fit is refused by the surface that takes it: the client, the command line and the signed Celery door."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from deuz_workers import Agent, MockModel, ProducerKey, Settings, client_tool, sign_order, tool
from deuz_workers import Deuz as Application
from deuz_workers.core.pending_item import CallBinding
from deuz_workers.core.receipts import Receipt
from deuz_workers.core.reconciliation import effect_id
from deuz_workers.errors import DeuzError, as_record
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from deuz_workers.workers.answer_task import taken
from tests.cli.conftest import Deuz

SECRET = "a secret of thirty-two characters"
SURFACES = ("client", "cli", "celery")
KINDS = ("verdict", "result", "word")
PARTS = ("run", "scope", "step", "call", "arguments", "token")
ASKED: Mapping[str, object] = {"n": 2}
OTHER: Mapping[str, object] = {"n": 3}
NAMES = {"verdict": "pay", "result": "ask", "word": "send"}


@dataclass(frozen=True, slots=True)
class Wrong:
    """An answer to `run_id` in `scope` that is for something else."""

    run_id: str
    scope: str
    item: str
    token: str | None = None


class Office:
    """Runs that wait for a verdict, a client's result and a word, in their second turn, under the call id `c`."""

    def __init__(self, url: str) -> None:
        key = ProducerKey.model_validate(
            {"id": "office", "secret": SECRET, "scopes": ["*"], "agents": ["*"], "doors": ["answer", "reconcile"]}
        )
        self.settings = Settings(database_url=url, approval_secret="s" * 32, producer_keys=(key,), lease_ttl_ms=1_000)

    def app(self) -> Application:
        @tool(needs_approval=lambda arguments: arguments["n"] > 1)
        async def pay(n: int) -> str:
            return "paid"

        @tool
        async def send(n: int) -> str:
            if n > 1:
                raise ProcessDied
            return "sent"

        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        ask = client_tool("ask", "Ask.", schema)
        agents = [
            Agent(
                kind,
                model=MockModel([calls(call(name, n=1).with_id("c")), calls(call(name, n=2).with_id("c")), "done"]),
                tools=[made],
            )
            for (kind, name), made in zip(NAMES.items(), (pay, ask, send), strict=True)
        ]
        return Application(agents, settings=self.settings)

    async def prepare(self, kind: str, run_id: str, scope: str) -> None:
        """The run waits in its second turn."""
        app = self.app()
        try:
            result = await app.aio.run_embedded(kind, "go", run_id=run_id, scope=scope)
            if kind == "result":
                await app.aio.resume_embedded(run_id, scope=scope, client_tool_results={"c": 1})
            assert kind == "verdict" or result.status == "suspended"
        except ProcessDied:
            await asyncio.sleep(0)
            other = self.app()
            parked = await other.aio.resume_embedded(run_id, scope=scope)
            assert parked.reason == "tool-reconciliation-required"
            await other.aclose()
        await app.aclose()

    async def waits(self, kind: str, run_id: str, scope: str) -> Any:
        """What it waits for, as it is shown."""
        app = self.app()
        handle = app.aio.handle(run_id, scope)
        shown = {"verdict": handle.pending, "result": handle.pending_client_calls, "word": handle.unknown_effects}[kind]
        [waiting] = await shown()
        await app.aclose()
        return waiting

    async def stored(self, run_id: str, scope: str) -> Any:
        app = self.app()
        loaded = await app.store.load(scope, run_id)
        await app.aclose()
        assert loaded is not None
        return replace(loaded.head, deadline_in_ms=None, due_in_ms=None), loaded.items, loaded.notes, loaded.receipts


def id_of(kind: str, run_id: str, *, step: int = 2, call_id: str = "c", arguments: Mapping[str, object] = ASKED) -> str:
    """Of what such a call would wait under."""
    if kind == "word":
        return effect_id(run_id, Receipt(step, call_id, 0, "executing", "send"), arguments)
    return CallBinding(
        "approval" if kind == "verdict" else "client_tool", run_id, step, call_id, NAMES[kind], arguments
    ).item_id


def wrong_answer(kind: str, part: str, waiting: Any, elsewhere: Any) -> Wrong:
    right = id_of(kind, "r")
    token = getattr(waiting, "token", None)
    match part:
        case "run":
            return Wrong("r", "office", id_of(kind, "other"), getattr(elsewhere, "token", None))
        case "scope":
            return Wrong("r", "acme", right, token)
        case "step":
            return Wrong("r", "office", id_of(kind, "r", step=1), token)
        case "call":
            return Wrong("r", "office", id_of(kind, "r", call_id="d"), token)
        case "arguments":
            return Wrong("r", "office", id_of(kind, "r", arguments=OTHER), token)
        case _:
            return Wrong("r", "office", right, getattr(elsewhere, "token", None))


async def say(office: Office, kind: str, wrong: Wrong) -> Mapping[str, object] | None:
    """Through the client; what refused it, None: nothing did."""
    app = office.app()
    handle = app.aio.handle(wrong.run_id, wrong.scope)
    try:
        if kind == "verdict":
            await handle.approve(wrong.item, token=wrong.token)
        elif kind == "result":
            await handle.answer(wrong.item, 7)
        else:
            await handle.reconcile({wrong.item: 7})
    except DeuzError as error:
        return as_record(error)
    finally:
        await app.aclose()
    return None


async def send(office: Office, kind: str, wrong: Wrong) -> Mapping[str, object] | None:
    """Through the Celery door, in a message that a known producer signed."""
    name = "deuz.reconcile" if kind == "word" else "deuz.answer"
    order: dict[str, Any] = {"run_id": wrong.run_id, "scope": wrong.scope}
    if kind == "word":
        order["calls"] = [{"effect": wrong.item, "output": 7}]
    else:
        order |= {"item": wrong.item, **({"approved": True, "token": wrong.token} if kind == "verdict" else {"output": 7})}
    signed = sign_order(order, task=name, task_id="k", key_id="office", secret=SECRET, issued_at=int(time.time()))
    app = office.app()
    try:
        await taken(app, name, "k", (), signed)
    except DeuzError as error:
        return as_record(error)
    finally:
        await app.aclose()
    return None


def type_in(deuz: Deuz, kind: str, wrong: Wrong) -> Mapping[str, object] | None:
    """On the command line."""
    place = ("--scope", wrong.scope, "--json")
    if kind == "verdict":
        said = deuz("runs", "approve", wrong.run_id, wrong.item, *(("--token", wrong.token) if wrong.token else ()), *place)
    elif kind == "result":
        said = deuz("runs", "answer", wrong.run_id, wrong.item, "--output", "7", *place)
    else:
        said = deuz("runs", "reconcile", wrong.run_id, "--call", wrong.item, "--output", "7", *place)
    return None if said.code == 0 else said.document["error"]


@pytest.mark.spec("REC-007")
@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_fit_is_refused_by_every_surface_before_any_write(
    sqlite_url: str, deuz: Deuz, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the wrong run, scope, step, call, arguments or token: refused, the message says which, and nothing is stored."""
    monkeypatch.setenv("DEUZ_APPROVAL_SECRET", "s" * 32)
    office = Office(sqlite_url)
    for run_id in ("r", "other"):
        asyncio.run(office.prepare(kind, run_id, "office"))
    waiting, elsewhere = (asyncio.run(office.waits(kind, run_id, "office")) for run_id in ("r", "other"))
    before = asyncio.run(office.stored("r", "office"))
    for part in PARTS if kind == "verdict" else PARTS[:-1]:
        wrong = wrong_answer(kind, part, waiting, elsewhere)
        for surface in SURFACES:
            if surface == "client":
                error = asyncio.run(say(office, kind, wrong))
            elif surface == "celery":
                error = asyncio.run(send(office, kind, wrong))
            else:
                error = type_in(deuz, kind, wrong)
            assert error is not None, (surface, part)
            message = str(error["message"])
            if part == "scope":
                assert (error["code"], "'acme'" in message) == ("run_not_found", True), (surface, error)
            elif part == "run":  # an id says it together with the arguments that it seals
                assert (error["part"], "another run" in message) == ("arguments", True), (surface, error)
            else:
                assert error["part"] == part, (surface, error)
            assert asyncio.run(office.stored("r", "office")) == before, (surface, part)
    right = Wrong("r", "office", id_of(kind, "r"), getattr(waiting, "token", None))
    assert asyncio.run(send(office, kind, right)) is None
    assert asyncio.run(office.stored("r", "office")) != before


@pytest.mark.parametrize("part", ["run", "scope", "step", "call", "tool", "arguments"])
@pytest.mark.parametrize("kind", ["verdict", "result"])
def test_what_an_answer_was_shown_is_compared(sqlite_url: str, kind: str, part: str) -> None:
    """A client hands back what it was shown, and a message may say it: each difference is named."""
    office = Office(sqlite_url)
    asyncio.run(office.prepare(kind, "r", "office"))
    waiting = asyncio.run(office.waits(kind, "r", "office"))
    before = asyncio.run(office.stored("r", "office"))
    changes: dict[str, dict[str, Any]] = {
        "run": {"run_id": "other"},
        "scope": {"scope": "acme"},
        "step": {"step": 1},
        "call": {"tool_call_id": "d"},
        "tool": {"tool_name": "other"},
        "arguments": {"arguments": OTHER},
    }

    async def hand_back() -> Mapping[str, object]:
        app = office.app()
        handle = app.aio.handle("r", "office")
        given = replace(waiting, **changes[part])
        try:
            await (handle.approve(given) if kind == "verdict" else handle.answer(given, 7))
        except DeuzError as error:
            return as_record(error)
        finally:
            await app.aclose()
        raise AssertionError("it was taken")

    assert asyncio.run(hand_back())["part"] == part
    if part not in ("run", "scope"):
        said = {"step": {"step": 1}, "call": {"call": "d"}, "tool": {"tool": "other"}, "arguments": {"asked": dict(OTHER)}}[
            part
        ]
        answer = {"approved": True} if kind == "verdict" else {"output": 7}
        order = {"run_id": "r", "scope": "office", "item": waiting.item_id, **answer, **said}
        signed = sign_order(order, task="deuz.answer", task_id="k", key_id="office", secret=SECRET, issued_at=int(time.time()))

        async def deliver() -> Mapping[str, object]:
            app = office.app()
            try:
                await taken(app, "deuz.answer", "k", (), signed)
            except DeuzError as error:
                return as_record(error)
            finally:
                await app.aclose()
            raise AssertionError("it was taken")

        assert asyncio.run(deliver())["part"] == part
    assert asyncio.run(office.stored("r", "office")) == before


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"task": "deuz.enqueue"}, "signature"),
        ({"task": "deuz.reconcile"}, "signature"),
        ({"task_id": "other"}, "signature"),
        ({"secret": SECRET + "!"}, "signature"),
        ({"issued_at": 1}, "signature_age"),
        ({"key_id": "starter", "secret": SECRET + "2"}, "not_allowed"),
        ({"key_id": "elsewhere", "secret": SECRET + "3"}, "not_allowed"),
    ],
)
def test_who_may_not_answer_is_not_heard(sqlite_url: str, changed: dict[str, Any], code: str) -> None:
    """Signed for another task or id, with another secret, too old, with a key for another door or for another agent."""
    office = Office(sqlite_url)
    asyncio.run(office.prepare("verdict", "r", "office"))
    waiting = asyncio.run(office.waits("verdict", "r", "office"))
    more = [
        {"id": "starter", "secret": SECRET + "2", "scopes": ["*"], "agents": ["*"]},
        {"id": "elsewhere", "secret": SECRET + "3", "scopes": ["*"], "agents": ["other"], "doors": ["answer"]},
    ]
    keys = (*office.settings.producer_keys, *map(ProducerKey.model_validate, more))
    office.settings = Settings(**{**json.loads(json.dumps({"database_url": sqlite_url})), "producer_keys": keys})
    order = {"run_id": "r", "scope": "office", "item": waiting.item_id, "approved": False}
    how: dict[str, Any] = {
        "task": "deuz.answer",
        "task_id": "k",
        "key_id": "office",
        "secret": SECRET,
        "issued_at": int(time.time()),
    }

    async def deliver(signed: Mapping[str, Any]) -> str | None:
        app = office.app()
        try:
            await taken(app, "deuz.answer", "k", (), signed)
        except DeuzError as error:
            return error.code
        finally:
            await app.aclose()
        return None

    before = asyncio.run(office.stored("r", "office"))
    assert asyncio.run(deliver(sign_order(order, **{**how, **changed}))) == code
    assert asyncio.run(deliver({**sign_order(order, **how), "approved": True})) == "signature"
    assert asyncio.run(deliver(order)) == "unsigned"
    assert asyncio.run(office.stored("r", "office")) == before
    assert asyncio.run(deliver(sign_order(order, **how))) is None
