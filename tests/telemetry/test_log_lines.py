"""Log lines: the documented events with their fields, run, turn and attempt, and nothing that libraries quote."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pydantic
import pytest

from deuz_workers import Agent, MockModel, tool
from deuz_workers.app.log_lines import JsonLines, TextLines, without_quotes
from deuz_workers.engine.log_place import at_run, log_place
from deuz_workers.providers.script import call, calls
from deuz_workers.store import open_store
from tests.app.world import World

PACKAGE = Path(__file__).parents[2] / "deuz_workers"
PAGE = (PACKAGE.parent / "docs/observability.md").read_text("utf-8")
MARKER = "xyzzy-secret-17"
COMPOSED = {
    "%s run=%s agent=%s": {"step_without_agent", "binding_changed"},
    "%s_waiting id=%s error=%s": {"enqueue_waiting", "answer_waiting", "reconcile_waiting"},
    "%s pid=%d steps=%d": {"worker_draining", "worker_hurrying"},
}
"""Templates whose event is an argument."""


class Written:
    """What a logger wrote through a formatter."""

    def __init__(self, form: logging.Formatter) -> None:
        self.out = io.StringIO()
        self.handler = logging.StreamHandler(self.out)
        self.handler.setFormatter(form)

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture(params=[JsonLines, TextLines])
def written(request: pytest.FixtureRequest) -> Generator[Written]:
    """All that is logged, at every level."""
    yield from _attached(Written(request.param()))


@pytest.fixture
def as_json() -> Generator[Written]:
    """The same as objects."""
    yield from _attached(Written(JsonLines()))


def _attached(made: Written) -> Generator[Written]:
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(made.handler)
    root.setLevel(logging.DEBUG)
    yield made
    root.removeHandler(made.handler)
    root.setLevel(level)


def events_in_code() -> dict[str, set[str]]:
    """Names and fields of all events that the package can write."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(
                        value=ast.Name(id="log" | "logger" | "_log"), attr="debug" | "info" | "warning" | "error"
                    ),
                    args=[ast.Constant(value=str(template)), *_],
                ):
                    names = COMPOSED.get(template) or {template.partition(" ")[0]}
                    for name in names:
                        assert re.fullmatch(r"[a-z0-9_]+", name), f"{path}: {template}"
                        found.setdefault(name, set()).update(re.findall(r"(\w+)=", template))
                case _:
                    pass
    return found


def test_the_page_lists_every_event_with_its_fields() -> None:
    """What the code can write is what docs/observability.md lists, in the order of the alphabet."""
    rows = re.findall(r"^\| `([a-z0-9_]+)` \|([^|]*)\| .+ \|$", PAGE.split("| event |")[1], re.MULTILINE)
    listed = {name: set(re.findall(r"`(\w+)`", fields)) for name, fields in rows}
    code = events_in_code()
    assert [name for name, _ in rows] == sorted(code)
    assert {name: fields - listed[name] for name, fields in code.items() if fields - listed[name]} == {}


async def test_lines_of_a_step_say_run_turn_and_attempt(as_json: Written) -> None:
    """Also those of tools and libraries; outside of steps nothing is said."""
    inner = logging.getLogger("somebody.else")

    @tool
    def look(place: str) -> str:
        "Look."
        inner.warning("looking at %s", "things")
        return place

    world = World("sqlite://:memory:", open_store("sqlite://:memory:"))
    agent = Agent("x", model=MockModel([calls(call("look", place="a")), calls(call("look", place="b")), "done"]), tools=[look])
    await world.process(agent).aio.run_embedded("x", "go", run_id="r", scope="s")
    await world.close()
    inner.warning("outside")
    said = [line for line in as_json.objects if line["logger"] == "somebody.else"]
    assert [(line.get("run"), line.get("scope"), line.get("turn"), line.get("attempt")) for line in said] == [
        ("r", "s", 1, 1),
        ("r", "s", 2, 1),
        (None, None, None, None),
    ]
    assert log_place() is None


def test_an_event_is_an_object_with_its_fields(as_json: Written) -> None:
    """Numbers stay numbers, texts in the template and `extra` fields are fields, and what is told twice is the event's."""
    log = logging.getLogger("deuz_workers.test")
    with at_run("s", "here"):
        log.warning("run_taken_over run=%s revision=%d attempts=%d", "other", 7, 2)
        log.info("gateway_open url=http://%s:%d", "127.0.0.1", 80)
        log.error("worker_deaf silent_ms=%d then=leave", 5)
        log.warning("enqueue_refused id=%s error=%s%s", "k", "door_shut", ": the door is shut")
        log.info("model_call_retried", extra={"model": "m:x", "wait_ms": 5})
        log.info("worker_open pid=%d pool=none %s", 9, "database=memory")
        log.info("%s steps=%d", "worker_draining", 3)
        log.info("%s_waiting id=%s", "enqueue", "k")
    fields = [{k: v for k, v in line.items() if k not in ("at", "level", "logger", "pid", "scope")} for line in as_json.objects]
    assert fields == [
        {"event": "run_taken_over", "run": "other", "revision": 7, "attempts": 2},
        {"event": "gateway_open", "url": "http://127.0.0.1:80", "run": "here"},
        {"event": "worker_deaf", "silent_ms": 5, "then": "leave", "run": "here"},
        {"event": "enqueue_refused", "id": "k", "error": "door_shut: the door is shut", "run": "here"},
        {"event": "model_call_retried", "model": "m:x", "wait_ms": 5, "run": "here"},
        {"event": "worker_open", "pool": "none", "text": "database=memory", "run": "here"},
        {"event": "worker_draining", "steps": 3, "run": "here"},
        {"event": "enqueue_waiting", "id": "k", "run": "here"},
    ]


class _Age(pydantic.BaseModel):
    age: int


def _pydantic() -> None:
    _Age.model_validate({"age": MARKER})


def _caused() -> None:
    try:
        _pydantic()
    except pydantic.ValidationError as error:
        raise RuntimeError(f"cannot use {MARKER}") from error


@pytest.mark.parametrize("raises", [_pydantic, _caused])
def test_of_an_exception_only_classes_and_places_are_written(written: Written, raises: Any) -> None:
    """Errors of pydantic and texts of whatever else stay out, with the traceback, of our loggers and of others'."""
    for name in ("deuz_workers.test", "celery.app"):
        try:
            raises()
        except Exception:
            logging.getLogger(name).exception("it failed")
    text = written.out.getvalue()
    assert MARKER not in text
    assert text.count(raises.__name__) == 2
    assert "test_log_lines.py:" in text


def test_what_libraries_quote_is_left_out(written: Written, postgres_dsn: str) -> None:
    """An error of pydantic and one of Postgres with a DETAIL, as text of a line; addresses of httpx at DEBUG."""
    other = logging.getLogger("somebody.else")
    try:
        _pydantic()
    except pydantic.ValidationError as error:
        other.error("bad input: %s", error)
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("CREATE TEMP TABLE t (k text PRIMARY KEY)")
        connection.execute("INSERT INTO t VALUES (%s)", (MARKER,))
        with pytest.raises(psycopg.errors.UniqueViolation, match=MARKER) as raised:
            connection.execute("INSERT INTO t VALUES (%s)", (MARKER,))
        other.error("statement failed: %s", raised.value)
    transport = httpx.MockTransport(lambda request: httpx.Response(200))
    with httpx.Client(transport=transport) as client:
        client.get(f"https://ann:{MARKER}@host.example/path?key={MARKER}", headers={"Authorization": f"Bearer {MARKER}"})
    other.warning("token=%s", MARKER)
    text = written.out.getvalue()
    assert "host.example/path" in text
    assert "statement failed" in text
    assert "bad input" in text
    assert MARKER not in text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("see https://a:b@h/p?q=1#f now", "see https://h/p now"),
        ("no address", "no address"),
        ("x" * 9_000, "x" * 4_000),
    ],
)
def test_a_sentence_keeps_what_is_no_value(text: str, left: str) -> None:
    """Addresses lose account, query and fragment; a sentence has an end."""
    assert without_quotes(text) == left
