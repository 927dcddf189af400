"""Settings: one name each, in Python, in the TOML file and, as `DEUZ_<NAME>`, in the environment.

Arguments win over the environment, the environment over the file, the file over the defaults. The file is the one that
`DEUZ_CONFIG` names, else `config/deuz.toml` where there is one. `config/deuz.toml` of the source tree lists every setting with
the reason for its default.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from deuz_workers.app.producer_key import ProducerKey
from deuz_workers.app.setting_mistakes import explain
from deuz_workers.app.setting_urls import check_url
from deuz_workers.core.addresses import without_account
from deuz_workers.core.egress import egress_of
from deuz_workers.embedded.urls import broker_url as celery_spelling
from deuz_workers.engine.settings import EngineSettings
from deuz_workers.errors import ConfigurationError

DEFAULT_FILE = Path("config/deuz.toml")

Ms = Annotated[int, Field(ge=1)]


class Settings(BaseSettings):
    """Frozen. Raises `ConfigurationError` that names the setting, where it was set and what it may be; never a secret."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="DEUZ_", extra="forbid", frozen=True, hide_input_in_errors=True, env_ignore_empty=True
    )

    database_url: str = Field("sqlite:///deuz.db", repr=False)
    """`postgresql://...` or `sqlite:///path`."""
    db_pool_size: int = Field(4, ge=1)
    """Connections to Postgres per process and event loop."""
    db_prepare: bool = True
    """Prepared statements; off for poolers that do not pass them on."""
    sqlite_synchronous: Literal["normal", "full"] = "normal"
    """`full` keeps the last commits through a power cut; `normal` may lose them then, and corrupts nothing."""

    redis_url: str | None = Field(None, repr=False)
    leases_url: str | None = Field(None, repr=False)
    """None: `redis_url`; without Redis the store's Postgres, a file beside SQLite, or memory beside a database in memory."""
    broker_url: str | None = Field(None, repr=False)
    """Celery's spelling. None: `redis_url`; without either no doorbell is rung and workers find runs by the sweep."""
    live_url: str | None = Field(None, repr=False)
    """Where what runs are writing is shown to readers in other processes. None: `redis_url`; without either nobody is shown."""
    secret: SecretStr | None = None
    """Signs the revisions that leases and doorbells carry. Without it a run whose database lost commits is noticed only by the
    process that made them."""
    approval_secret: SecretStr | None = Field(None, min_length=32)
    """Signs the tokens that approvals have to bring back. None: approvals need no token."""

    pool: Literal["threads", "prefork", "solo"] = "threads"
    concurrency: int = Field(64, ge=1)
    """Steps at a time per worker process; on prefork, processes."""
    queues: Annotated[tuple[str, ...], NoDecode] = Field(("default",), min_length=1)
    """What a worker takes from; in the environment with commas between."""
    lease_ttl_ms: int = Field(30_000, ge=1_000)
    step_turns: int = Field(1, ge=1)
    step_limit_ms: Ms = 1_800_000
    drain_grace_ms: int = Field(120_000, ge=0)
    sweep_interval_ms: Ms = 1_000
    sweep_batch: int = Field(500, ge=1)
    """Most doorbells that a window grows to."""
    window: int = Field(0, ge=0)
    """Doorbells that a queue holds at most while more runs wait; 0: `concurrency`, and more while they are taken fast."""
    silence_ms: int = Field(30_000, ge=1_000)
    """A worker with free slots that heard nothing for so long sends itself a message; if it does not hear that for as long, it
    connects again, and then leaves with the exit code 75."""
    concurrency_limits: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict[str, int])
    """Runs at a time of each concurrency key, for keys whose limit is not stored; of a key that is not listed, one. In the
    environment as JSON."""
    prices_file: Path | None = None
    """TOML with prices that go before the tables, see docs/budgets.md."""
    unknown_prices: Literal["refuse", "allow"] = "refuse"
    """What becomes of a call of a model without a price under a limit in dollars. `allow`: its money is not counted."""
    budget_warn_percent: int = Field(0, ge=0, le=100)
    """Of every limit that has no threshold of its own: a call that lifts what is used to it or above is told, once per run. 0:
    only where the budget says it itself."""
    enqueue: Literal["shut", "signed", "unsigned"] = "signed"
    """Which messages `deuz.enqueue` workers accept: none, those signed with one of `producer_keys`, or any, in which case
    whoever can write to the broker can start runs."""
    producer_keys: tuple[ProducerKey, ...] = ()
    """In the environment as a JSON list."""
    enqueue_max_age_s: int = Field(86_400, ge=1)
    """Older signatures are refused; shorter than ended runs are kept, whose rows are what makes a message that comes again
    harmless."""
    gateway_secret: SecretStr | None = Field(None, min_length=32)
    """Signs tickets for streams and sessions of the console, the same in all processes of a gateway. None: both are good in
    the process that made them."""
    gateway_origins: Annotated[tuple[str, ...], NoDecode] = ()
    """Sites whose pages may use the gateway from a browser; in the environment with commas between. Empty: none but its own."""
    gateway_console: bool = True
    """The gateway serves pages for people, below `/console`."""
    gateway_max_body_bytes: int = Field(1_000_000, ge=1_000)
    """Longest request body that the gateway reads."""
    webhook_secret: SecretStr | None = Field(None, min_length=32)
    """What secrets of webhooks are made from, the same for all workers. None: nobody is told anything."""
    webhook_secret_before: SecretStr | None = Field(None, min_length=32)
    """The one before: requests are signed with both, until all receivers have the new secrets."""
    egress_allow: Annotated[tuple[str, ...], NoDecode] = ()
    """Hosts, addresses and networks that URLs which come from data may lead to although they are private; in the environment
    with commas between."""
    telemetry: Literal["off", "on", "content"] = "off"
    """Spans and metrics of runs by OpenTelemetry (extra `otel`); `content`: spans hold what was said, too."""
    remote_control: Literal["inspect", "off"] = "inspect"
    events: bool = True
    """Celery events, which Flower shows."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigurationError(explain(error, values, settings_file())) from None
        except SettingsError as error:  # a list in the environment that is no JSON; its text names the field alone
            raise ConfigurationError(f"{error}: write it as JSON, see config/deuz.toml") from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = settings_file()
        if path is None:
            return init_settings, env_settings
        return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=read_file(path))

    @field_validator("queues", "gateway_origins", "egress_allow", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value

    @field_validator("producer_keys")
    @classmethod
    def _name_one_key(cls, keys: tuple[ProducerKey, ...]) -> tuple[ProducerKey, ...]:
        twice = sorted({key.id for key in keys if sum(other.id == key.id for other in keys) > 1})
        if twice:
            raise ValueError(f"there is more than one producer key with the id {', '.join(twice)}")
        return keys

    @field_validator("egress_allow")
    @classmethod
    def _is_egress(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            egress_of(value)
        except ConfigurationError as error:
            raise ValueError(error.message) from None
        return value

    @field_validator("redis_url", "leases_url", "broker_url", "live_url", "prices_file", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("database_url", "redis_url", "leases_url", "broker_url", "live_url")
    @classmethod
    def _is_url(cls, value: str | None, info: ValidationInfo) -> str | None:
        return None if value is None else check_url(str(info.field_name), value)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.is_embedded and self.database_url.endswith(":memory:") and self.broker_url is not None:
            raise ValueError("database_url is a database in memory, which no worker can see; use a file or Postgres")
        return self

    @property
    def is_embedded(self) -> bool:
        """The database is SQLite: one machine, no server needed."""
        return self.database_url.startswith("sqlite:")

    @property
    def broker(self) -> str | None:
        """URL of the broker as Celery spells it; None: nobody is rung."""
        given = self.broker_url or self.redis_url
        return None if given is None else celery_spelling(given)

    @property
    def live(self) -> str | None:
        """URL of the server that carries live streams; None: they stay within one process."""
        return self.live_url or self.redis_url

    @property
    def leases(self) -> str:
        """URL of the lease provider."""
        given = self.leases_url or self.redis_url
        if given is not None:
            return given
        if not self.is_embedded:
            return self.database_url
        if self.database_url.endswith(":memory:"):
            return "memory://"
        return f"{self.database_url.partition('?')[0]}.leases"

    @property
    def says_leases(self) -> bool:
        """A provider is named; else it follows from where runs are stored."""
        return (self.leases_url or self.redis_url) is not None

    @property
    def least_window(self) -> int:
        """Doorbells that a queue holds before others are left to the sweep."""
        return self.window or self.concurrency

    @property
    def most_window(self) -> int:
        """Up to so many where they are taken fast."""
        return self.window or max(self.concurrency, self.sweep_batch)

    @property
    def engine(self) -> EngineSettings:
        return EngineSettings(
            lease_ttl_ms=self.lease_ttl_ms,
            step_limit_ms=self.step_limit_ms,
            step_turns=self.step_turns,
            concurrency_limits=self.concurrency_limits,
            budget_warn_percent=self.budget_warn_percent or None,
            unknown_prices=self.unknown_prices,
        )

    def masked(self) -> Mapping[str, object]:
        """Every setting, with accounts and passwords of URLs left out: for logs and `deuz doctor`."""
        shown = self.model_dump()
        for name in ("database_url", "redis_url", "leases_url", "broker_url", "live_url"):
            if shown[name] is not None:
                shown[name] = without_account(shown[name])
        return shown


def read_file(path: Path) -> dict[str, Any]:
    """What the TOML file says. Raises `ConfigurationError` that names it."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(
            f"the settings file {str(path)!r} cannot be read ({error.strerror}); correct DEUZ_CONFIG or unset it"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the settings file {str(path)!r} is no TOML: {error}") from None


def settings_file() -> Path | None:
    """The file that settings are read from: what `DEUZ_CONFIG` names, whether it is there or not, or the default one."""
    named = os.environ.get("DEUZ_CONFIG")
    if named:
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None
