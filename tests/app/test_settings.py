"""Settings: where they come from, what wins, and what a mistake is told."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from deuz_workers.app.setting_mistakes import mistyped_variables
from deuz_workers.app.settings import Settings
from deuz_workers.core.addresses import without_account
from deuz_workers.errors import ConfigurationError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file and no variable of the developer's has a say."""
    monkeypatch.chdir(tmp_path)
    for name in Settings.model_fields:
        monkeypatch.delenv(f"DEUZ_{name.upper()}", raising=False)
    monkeypatch.delenv("DEUZ_CONFIG", raising=False)


def test_arguments_win_over_the_environment_and_that_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One name in three places, and an order between them."""
    file = tmp_path / "deuz.toml"
    file.write_text('concurrency = 2\npool = "solo"\nsweep_batch = 3\n')
    monkeypatch.setenv("DEUZ_CONFIG", str(file))
    monkeypatch.setenv("DEUZ_CONCURRENCY", "5")
    monkeypatch.setenv("DEUZ_POOL", "prefork")
    settings = Settings(concurrency=7)
    assert (settings.concurrency, settings.pool, settings.sweep_batch, settings.step_turns) == (7, "prefork", 3, 1)


def test_the_sample_file_lists_every_setting_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it changes nothing; what it leaves out is a secret."""
    plain = Settings()
    sample = ROOT / "config/deuz.toml"
    monkeypatch.setenv("DEUZ_CONFIG", str(sample))
    assert Settings().model_dump() == plain.model_dump()
    assert set(Settings.model_fields) - set(tomllib.loads(sample.read_text())) == {
        "secret",
        "approval_secret",
        "gateway_secret",
        "webhook_secret",
        "webhook_secret_before",
        "producer_keys",
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"concurency": 3}, ["no setting 'concurency'", "given in Python", "config/deuz.toml"]),
        ({"concurrency": 0}, ["'concurrency'", "greater than or equal to 1"]),
        ({"pool": "gevent"}, ["'pool'", "'threads', 'prefork' or 'solo'"]),
        ({"database_url": 7}, ["'database_url'", "string"]),
        ({"lease_ttl_ms": 5}, ["'lease_ttl_ms'", "1000"]),
        ({"database_url": "sqlite://:memory:", "broker_url": "redis://x"}, ["in memory", "no worker can see"]),
    ],
)
def test_a_mistake_names_the_setting_its_origin_and_the_way_out(given: dict[str, object], words: list[str]) -> None:
    """Everything wrong with settings is a ConfigurationError in one sentence."""
    with pytest.raises(ConfigurationError) as caught:
        Settings(**given)
    assert all(word in caught.value.message for word in words), caught.value.message


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SWEEP_BATCH", "lots", ["DEUZ_SWEEP_BATCH", "integer", "not 'lots'"]),
        ("POOL", "gevent", ["DEUZ_POOL", "'threads', 'prefork' or 'solo'", "not 'gevent'"]),
        ("REDIS_URL", "localhost", ["DEUZ_REDIS_URL", "'localhost' is no URL", "redis://host:6379/0"]),
        ("LEASES_URL", "foo", ["DEUZ_LEASES_URL", "'foo' is no URL", "sqlite:///"]),
        ("BROKER_URL", "localhost:6379", ["DEUZ_BROKER_URL", "'localhost:6379' is no URL", "amqp://"]),
        ("DATABASE_URL", "mysql://ann:hunter2@db/x", ["DEUZ_DATABASE_URL", "'mysql://db/x'", "postgresql://"]),
        ("DATABASE_URL", "sqlite://deuz.db", ["DEUZ_DATABASE_URL", "names no file"]),
        ("DATABASE_URL", "postgresql://...", ["DEUZ_DATABASE_URL", "'postgresql://...' names no host", "user@host:5432"]),
        ("DATABASE_URL", "postgresql://ann:hunter2@one,..two/x", ["names no host"]),
        ("REDIS_URL", "redis://.../0", ["DEUZ_REDIS_URL", "names no host", "redis://host:6379/0"]),
        ("REDIS_URL", "redis//:hunter2@host", ["DEUZ_REDIS_URL", "'host' is no URL"]),
        ("DATABASE_URL", "host=db password=hunter2", ["DEUZ_DATABASE_URL", "'...' is no URL"]),
        ("PRODUCER_KEYS", "hunter2", ["producer_keys", "JSON"]),
        ("PRODUCER_KEYS", '[{"id": "a", "secret": "hunter2"}]', ["DEUZ_PRODUCER_KEYS"]),
    ],
)
def test_a_mistake_in_the_environment_repeats_what_can_be_no_secret(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: list[str]
) -> None:
    """The variable, what it may be, and the value without account."""
    monkeypatch.setenv(f"DEUZ_{name}", value)
    with pytest.raises(ConfigurationError) as caught:
        Settings()
    assert all(word in caught.value.message for word in words), caught.value.message
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(
    "name", [name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation) and name != "secret"]
)
def test_a_secret_that_is_too_short_is_not_repeated(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Every setting that is a secret, also the next one: what it should be is said, what it is is not."""
    monkeypatch.setenv(f"DEUZ_{name.upper()}", "hunter2")
    with pytest.raises(ConfigurationError) as caught:
        Settings()
    assert f"(environment variable DEUZ_{name.upper()}): it should have at least 32 characters" in caught.value.message
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("broker_url", "amqp://a:b@one//;amqp://c:d@two//"),
        ("broker_url", "redis+socket:///tmp/r.sock?virtual_host=0"),
        ("broker_url", "kafka://host"),
        ("leases_url", "memory://"),
        ("redis_url", "unix:///tmp/r.sock?db=0"),
        ("database_url", "postgresql:///x?host=/tmp"),
        ("database_url", "postgresql://a:b..c@one.x.,two:7,[::ffff:1.2.3.4]/x"),
        ("redis_url", "unix:///a/../b.sock"),
        ("database_url", "sqlite:////tmp/x.db?synchronous=full"),
    ],
)
def test_urls_of_known_schemes_are_taken_as_they_are(name: str, url: str) -> None:
    """What Celery, libpq, redis-py and SQLite understand."""
    assert getattr(Settings(**{name: url}), name) == url


def test_only_variables_that_look_like_a_setting_are_mistyped() -> None:
    """Those of ours that are no settings are known, and what is far from all is somebody else's."""
    environment = {
        "DEUZ_DATABASE_UR": "x",
        "DEUZ_CONCURENCY": "3",
        "DEUZ_APP": "x",
        "DEUZ_POSTGRES_BIN_DIR": "x",
        "DEUZ_COMPANION_OF": "7",
        "DEUZ_DB_PREPARE": "off",
        "DEUZ_SHOP_OPENED": "x",
        "PATH": "x",
    }
    assert mistyped_variables(Settings.model_fields, environment) == {
        "DEUZ_CONCURENCY": "DEUZ_CONCURRENCY",
        "DEUZ_DATABASE_UR": "DEUZ_DATABASE_URL",
    }


def test_every_variable_of_ours_is_a_setting_or_known_as_none() -> None:
    """What the package spells out in its code is never taken for a typing mistake."""
    text = "".join(path.read_text() for path in (ROOT / "deuz_workers").rglob("*.py"))
    named = set(re.findall(r"\bDEUZ_[A-Z_]*[A-Z]\b", text))
    assert mistyped_variables(Settings.model_fields, dict.fromkeys(named, "x")) == {}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:hunter2@db/x?password=hunter3", "postgresql://db/x"),
        ("redis://:hun/ter?2@host/0", "redis://..."),
        ("redis://:hun/ter2@host/0", "redis://host/0"),
        ("postgresql:///x?user=a@b&password=hunter2", "postgresql://..."),
        ("ann:hunter2@redis://host", "..."),
        ("sqlite:////tmp/my deuz.db", "sqlite:////tmp/my deuz.db"),
    ],
)
def test_an_address_is_shown_without_account(url: str, shown: str) -> None:
    """However a password is spelled, none of it is left."""
    assert without_account(url) == shown


@pytest.mark.parametrize(
    ("text", "words"), [(None, "cannot be read"), ("pool = ", "no TOML"), ("poool = 1", "no setting 'poool'")]
)
def test_a_file_that_cannot_be_read_is_named(
    text: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing, broken or with a key that is none: the message says which file."""
    file = tmp_path / "mine.toml"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("DEUZ_CONFIG", str(file))
    with pytest.raises(ConfigurationError, match=words) as caught:
        Settings()
    assert "mine.toml" in caught.value.message


def test_accounts_in_urls_are_shown_nowhere() -> None:
    """Neither the representation nor what `doctor` prints has them."""
    settings = Settings(
        database_url="postgresql://ann:hunter2@db/x?password=hunter3",
        redis_url="redis://:hunter4@r:6379/0",
        secret="hunter5",
    )
    shown = repr(settings) + str(settings.masked())
    assert "hunter" not in shown
    assert "postgresql://db/x" in shown


@pytest.mark.spec("DST-012")
def test_leases_follow_redis_then_the_database() -> None:
    """Redis where there is one, else the Postgres of the store, a file beside an SQLite file, memory beside memory.

    Without any setting both are SQLite files.
    """
    assert (Settings().database_url, Settings().leases) == ("sqlite:///deuz.db", "sqlite:///deuz.db.leases")
    assert Settings(redis_url="redis://r/0").leases == "redis://r/0"
    assert Settings(database_url="sqlite:///a.db").leases == "sqlite:///a.db.leases"
    assert Settings(database_url="sqlite://:memory:").leases == "memory://"
    assert Settings(database_url="postgresql://db/x").leases == "postgresql://db/x"
    assert Settings(database_url="postgresql://db/x", redis_url="redis://r/0").leases == "redis://r/0"
    assert Settings(redis_url="redis://r/0", leases_url="postgresql://db/leases").leases == "postgresql://db/leases"


def test_queues_come_from_the_environment_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one setting that is a list."""
    monkeypatch.setenv("DEUZ_QUEUES", "fast, slow")
    assert Settings().queues == ("fast", "slow")
