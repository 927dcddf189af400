"""Which URLs the settings take. Only the spelling is looked at; nothing is connected and no driver imported."""

from __future__ import annotations

import re

from deuz_workers.core.addresses import without_account

_REDIS = ("redis", "rediss", "unix", "redis+socket")
_POSTGRES = ("postgresql", "postgres")
_BROKERS = (*_REDIS, "sentinel", "amqp", "amqps", "pyamqp", "sqs", "memory", "filesystem")

SCHEMES = {
    "database_url": (*_POSTGRES, "sqlite"),
    "redis_url": _REDIS,
    "leases_url": (*_REDIS, *_POSTGRES, "sqlite", "memory"),
    "broker_url": _BROKERS,
    "live_url": _REDIS,
}
EXAMPLES = {
    "database_url": "postgresql://user@host:5432/name, sqlite:///relative.db or sqlite:////absolute.db",
    "redis_url": "redis://host:6379/0, rediss://host:6379/0 or unix:///path/redis.sock?db=0",
    "leases_url": "redis://host:6379/0, unix:///path/redis.sock?db=0, sqlite:///relative.db or memory://",
    "live_url": "redis://host:6379/0, rediss://host:6379/0 or unix:///path/redis.sock?db=0",
    "broker_url": "redis://host:6379/0, redis+socket:///path/redis.sock or amqp://host:5672/",
}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://.*", re.DOTALL)
_NO_HOST = re.compile(r"(?:^|,)\.|\.\.")
"""Where hosts are named: a name with an empty part, at which Python raises `UnicodeError`. `...` of a text is one."""


def check_url(name: str, url: str) -> str:
    """The URL. Raises `ValueError` that says what the setting `name` may look like and shows the value without account."""
    if name == "broker_url" and ";" in url:  # Celery takes several, for failover
        for one in url.split(";"):
            check_url(name, one)
        return url
    match = _URL.fullmatch(url)
    known = SCHEMES[name]
    if match is None or not (match[1].lower() in known or (name == "broker_url" and _is_transport(match[1]))):
        raise ValueError(f"{without_account(url)!r} is no URL of a scheme that is known here; write {EXAMPLES[name]}")
    if match[1] == "sqlite" and url != "sqlite://:memory:" and not url.startswith("sqlite:///"):
        raise ValueError(f"{without_account(url)!r} names no file; write sqlite:///relative.db or sqlite:////absolute.db")
    if match[1] == "sqlite" and not url.partition("?")[0].removeprefix("sqlite:///"):
        raise ValueError("it names no file; write sqlite:///relative.db or sqlite:////absolute.db")
    if match[1] != "sqlite" and _NO_HOST.search(re.split("[/?#]", url.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]):
        raise ValueError(f"{without_account(url)!r} names no host; write {EXAMPLES[name]}")
    return url


def _is_transport(scheme: str) -> bool:
    from kombu.transport import TRANSPORT_ALIASES

    return scheme.partition("+")[0] in TRANSPORT_ALIASES
