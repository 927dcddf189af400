"""Producers: what is written, what is refused, and what a second request for the same finds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo

import psycopg
import pytest

from deuz_workers import (
    Agent,
    Budget,
    ConfigurationError,
    MigrationMissingError,
    MockModel,
    RunExistsError,
    SchemaTooNewError,
    ScopeMismatchError,
    Settings,
    StoreUnavailableError,
    UnknownAgentError,
)
from deuz_workers.app.conversation import GivenMessage
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.order import FARTHEST, Moment
from deuz_workers.core.change import Bell
from deuz_workers.core.messages import Message, TextPart
from deuz_workers.core.names import run_scope_key
from tests.app.world import World


class Nowhere(tzinfo):
    """A zone that ends before any moment, as zones do near the years 1 and 9999."""

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        raise OverflowError

    def dst(self, dt: datetime | None) -> timedelta | None:
        raise OverflowError

    def tzname(self, dt: datetime | None) -> str | None:
        return None


class Listener:
    """Hears every bell."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def ring(self, bells: Sequence[Bell]) -> None:
        self.heard += [bell.run_id for bell in bells]


def agent(name: str = "x", **given: object) -> Agent:
    return Agent(name, model=MockModel.function(lambda request: "ok"), **given)  # pyright: ignore[reportArgumentType]


def listening(app: Deuz) -> Listener:
    listener = Listener()
    app.doorbell.add(listener)
    return listener


async def test_a_run_is_a_row_with_everything_that_was_asked_for(world: World) -> None:
    """Queue, priority, tags, times, limits and budget scopes stand in the row; one bell is rung for it."""
    app = world.process(agent(budget=Budget.of(tokens=1_000), queue="slow"))
    listener = listening(app)
    handle = await app.aio.enqueue(
        "x",
        "go",
        run_id="r",
        scope="acme",
        tags={"team": "a"},
        priority=7,
        deadline=timedelta(hours=1),
        start_before=timedelta(minutes=5),
    )
    head = await world.head("r", "acme")
    assert (head.queue, head.priority, head.status, head.has_work) == ("slow", 7, "queued", True)
    assert 0 < (head.start_before_in_ms or 0) <= 300_000 < (head.deadline_in_ms or 0) <= 3_600_000
    assert (await handle.envelope()).scopes == (run_scope_key(head.rid),)
    balance = await world.store.balance(run_scope_key(head.rid))
    assert balance is not None
    assert balance.limit == Budget(tokens=1_000)
    assert listener.heard == ["r"]
    assert (await handle.status(), handle.run_id, handle.scope) == ("queued", "r", "acme")


async def test_a_later_start_is_not_rung_for(world: World) -> None:
    """A moment with a zone or a time from now: the row is due then, whatever the machine's own zone is."""
    app = world.process(agent())
    listener = listening(app)
    soon = datetime.now(UTC) + timedelta(hours=2)
    await app.aio.enqueue("x", "go", run_id="a", start_at=soon)
    await app.aio.enqueue("x", "go", run_id="b", start_at=timedelta(hours=2))
    for run_id in "ab":
        head = await world.head(run_id)
        assert not head.has_work
        assert 7_100_000 < (head.due_in_ms or 0) <= 7_200_000
    assert listener.heard == []


async def test_asking_again_for_the_same_gives_the_run_that_is_there(world: World) -> None:
    """By key, and by run id; without a second row and without a second bell."""
    app = world.process(agent())
    listener = listening(app)
    first = await app.aio.enqueue("x", "go", idempotency_key="k")
    again = await app.aio.enqueue("x", "go", idempotency_key="k")
    by_id = await app.aio.enqueue("x", "go", run_id="r")
    assert (await app.aio.enqueue("x", "go", run_id="r")).run_id == by_id.run_id
    assert first.run_id == again.run_id
    assert listener.heard == [first.run_id, "r"]


@pytest.mark.parametrize("given", [{"run_id": "r"}, {"idempotency_key": "k"}])
async def test_asking_for_something_else_is_a_conflict_that_names_the_run(world: World, given: dict[str, str]) -> None:
    """Another input, agent or budget under the same id or key, whatever `on_conflict` says; the row stays as it was."""
    app = world.process(agent(), agent("y"))
    handle = await app.aio.enqueue("x", "go", **given)  # pyright: ignore[reportArgumentType]
    for name, prompt, options in (("x", "stop", {}), ("y", "go", {}), ("x", "go", {"budget": Budget.of(tokens=5)})):
        with pytest.raises(RunExistsError) as caught:
            await app.aio.enqueue(name, prompt, **given, **options)  # pyright: ignore[reportArgumentType]
        assert caught.value.fields["run_id"] == handle.run_id
        assert "asked for something else" in caught.value.message
    with pytest.raises(RunExistsError, match="take its handle"):
        await app.aio.enqueue("x", "go", **given, on_conflict="reject")  # pyright: ignore[reportArgumentType]
    assert (await world.loaded(handle.run_id)).messages[0].body.count("go") == 1


async def test_a_key_belongs_to_its_scope_and_a_run_id_to_all(world: World) -> None:
    """Two tenants may use one key; an id that another has is refused without saying anything about its run."""
    app = world.process(agent())
    one = await app.aio.enqueue("x", "go", idempotency_key="k", scope="a")
    other = await app.aio.enqueue("x", "go", idempotency_key="k", scope="b")
    assert one.run_id != other.run_id
    await app.aio.enqueue("x", "go", run_id="r", scope="a")
    with pytest.raises(ScopeMismatchError, match=r"Native checkpoint version, identity, or scope mismatch\.") as caught:
        await app.aio.enqueue("x", "go", run_id="r", scope="b")
    assert "'a'" not in caught.value.message
    assert await world.store.head("b", "r") is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"run_id": ""}, "a run id"),
        ({"run_id": "a/b"}, "'/' stands between"),
        ({"run_id": "a\u0000"}, "printable"),
        ({"run_id": "x" * 513}, "512 printable"),
        ({"idempotency_key": 7}, "an idempotency key cannot be a int"),
        ({"scope": ""}, "a scope"),
        ({"queue": "a b"}, "a queue cannot be called 'a b'"),
        ({"priority": 101}, "-100 to 100"),
        ({"priority": "high"}, "-100 to 100"),
        ({"tags": {"a": 1}}, "tag 'a' is a int"),
        ({"tags": {"a": "x\0y"}}, "tag 'a' has a value with NUL"),
        ({"tags": {"a": "x\ud800y"}}, "tag 'a' has a value with NUL or half of a surrogate pair"),
        ({"tags": {"a\0": "x"}}, "the name of a tag"),
        ({"tags": {"\udfff": "x"}}, "the name of a tag"),
        ({"tags": {"a": "é" * 1_000}}, "tag 'a' takes more than 2000 bytes"),
        ({"tags": ["a"]}, "tags are a mapping"),
        ({"start_at": timedelta.max}, "start_at is 999999999 days away"),
        ({"deadline": timedelta.max}, "deadline is 999999999 days away"),
        ({"start_before": timedelta.min}, "start_before is -999999999 days away"),
        ({"deadline": datetime(2030, 1, 1, tzinfo=Nowhere())}, "deadline lies where its time zone has no moments"),
        ({"budget": Budget()}, "limits tokens, usd or both"),
        ({"budget": Budget(tokens=2**63)}, "limits tokens, usd or both"),
        ({"budget": Budget(usd_micros=-1)}, "limits tokens, usd or both"),
        ({"budget": 5}, "Budget.of"),
        ({"start_at": datetime(2030, 1, 1)}, "start_at has no time zone"),  # noqa: DTZ001
        ({"deadline": 5}, "deadline is a datetime"),
        ({"on_conflict": "ignore"}, "'return' or 'reject'"),
    ],
)
async def test_what_cannot_be_meant_is_refused_before_anything_is_written(
    memory: World, given: dict[str, object], words: str
) -> None:
    """A ConfigurationError that names the argument and what it may be."""
    app = memory.process(agent())
    with pytest.raises(ConfigurationError, match=words):
        await app.aio.enqueue("x", "go", **given)  # pyright: ignore[reportArgumentType]
    assert await memory.store.sweep(limit=10, ttl_ms=1_000) == ()


@pytest.mark.parametrize(
    "moment", [datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))), FARTHEST]
)
async def test_a_far_moment_is_kept(world: World, moment: Moment) -> None:
    """What a datetime or a century can say, every database can keep."""
    app = world.process(agent())
    await app.aio.enqueue("x", "go", run_id="r", start_at=moment, tags={"team": "\N{GRINNING FACE}" * 490})
    assert ((await world.head("r")).due_in_ms or 0) > 3_000_000_000_000


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Message("junk", (TextPart("x"),)), "message 0 cannot be understood: its role"),  # pyright: ignore[reportArgumentType]
        (Message("user", (TextPart(5),)), "text of part 0"),  # pyright: ignore[reportArgumentType]
        (Message("user", ("x",)), "part 0 is a str"),  # pyright: ignore[reportArgumentType]
        ({"role": "tool", "content": [{"type": "tool_result", "call_id": "a", "name": "b", "receipt_step": 1}]}, "receipt"),
    ],
)
async def test_a_message_that_nobody_could_read_back_is_refused(memory: World, given: GivenMessage, words: str) -> None:
    """A run whose stored record cannot be read would never begin and never end."""
    app = memory.process(agent())
    with pytest.raises(ConfigurationError, match=words):
        await app.aio.enqueue("x", messages=[given])
    assert await memory.store.sweep(limit=10, ttl_ms=1_000) == ()


async def test_an_unknown_agent_is_named_with_the_nearest_one(memory: World) -> None:
    """An app that has agents knows that a name is wrong; one without any is a client and may name all."""
    app = memory.process(agent("reviewer"))
    with pytest.raises(UnknownAgentError, match="did you mean 'reviewer'"):
        await app.aio.enqueue("reviwer", "go")
    assert (await memory.process().aio.enqueue("reviwer", "go", run_id="r")).run_id == "r"


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_run_can_be_part_of_the_callers_transaction(migrated_postgres_dsn: str, kind: str) -> None:
    """Rolled back, there is no run; committed, there is one. Nothing is rung before the caller says so."""
    app = Deuz([agent()], settings=Settings(database_url=migrated_postgres_dsn, leases_url="memory://"))
    listener = listening(app)
    if kind == "sync":
        with psycopg.connect(migrated_postgres_dsn) as connection:
            await app.aio.enqueue("x", "go", run_id="r", connection=connection)
            connection.rollback()
            assert await app.store.head("default", "r") is None
            handle = await app.aio.enqueue("x", "go", run_id="r", connection=connection)
            assert await app.store.head("default", "r") is None
    else:
        async with await psycopg.AsyncConnection.connect(migrated_postgres_dsn) as connection:
            await app.aio.enqueue("x", "go", run_id="r", connection=connection)
            await connection.rollback()
            assert await app.store.head("default", "r") is None
            handle = await app.aio.enqueue("x", "go", run_id="r", connection=connection)
    assert listener.heard == []
    await handle.ring()
    assert listener.heard == ["r"]
    assert await handle.status() == "queued"
    await app.aclose()


async def test_only_postgres_takes_a_connection(memory: World) -> None:
    """SQLite has no transaction of the caller's to join, and says so."""
    with pytest.raises(ConfigurationError, match="leave `connection` out"):
        await memory.process(agent()).aio.enqueue("x", "go", connection=object())


async def test_a_database_without_the_schema_is_told_what_to_run(postgres_dsn: str) -> None:
    """And one with a newer schema, what to upgrade; nothing was written in either case."""
    app = Deuz([agent()], settings=Settings(database_url=postgres_dsn, leases_url="memory://"))
    with pytest.raises(MigrationMissingError, match="deuz db migrate"):
        await app.aio.enqueue("x", "go")
    result = await app.aio.run_embedded("x", "go")
    assert (result.status, result.error and result.error["code"]) == ("failed", "migration_missing")
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("create table deuz_schema (version integer, name text)")
        connection.execute("insert into deuz_schema values (9999, 'later')")
    result = await app.aio.run_embedded("x", "go")
    assert (result.status, result.error and result.error["code"]) == ("failed", SchemaTooNewError.code)
    await app.aclose()


async def test_an_unreachable_database_is_said_in_words(memory: World) -> None:
    """Enqueueing raises, running in process fails, and neither names the password."""
    url = "postgresql://ann:hunter2@127.0.0.1:1/none"
    app = Deuz([agent()], settings=Settings(database_url=url, leases_url="memory://"))
    app.store.patience_ms = 0  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(StoreUnavailableError) as caught:
        await app.aio.enqueue("x", "go")
    assert "hunter2" not in caught.value.message
    result = await app.aio.run_embedded("x", "go", run_id="r")
    assert (result.status, result.run_id, result.steps) == ("failed", "r", 0)
    assert (result.error or {})["code"] == "store_unavailable"
    await app.aclose()


async def test_a_concurrency_key_lets_as_many_run_as_it_has_slots(world: World) -> None:
    """The agent's or the run's own; a stored limit counts; what waits is served when another run has ended."""
    app = world.process(agent(concurrency_key="crm"))
    await app.aio.limit_key("crm", 0)
    handles = [await app.aio.enqueue("x", "go", run_id=f"r{number}") for number in range(3)]
    await app.aio.enqueue("x", "go", run_id="other", concurrency_key="mail")
    heads = [await world.head(run_id) for run_id in ("r0", "r1", "r2", "other")]
    assert [head.slot_key for head in heads] == ["crm", "crm", "crm", "mail"]
    for head in heads[:3]:
        assert await app.store.take_slot(head.rid, 0, 9) == "waiting"
    await app.aio.limit_key("crm", 2)
    assert [(await world.head(handle.run_id)).slot for handle in handles] == ["held", "held", "waiting"]
    with pytest.raises(ConfigurationError, match="0 to"):
        await app.aio.limit_key("crm", -1)
    with pytest.raises(ConfigurationError, match="concurrency key"):
        await app.aio.enqueue("x", "go", concurrency_key="")
