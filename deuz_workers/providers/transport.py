"""An imitated network: a function that answers requests, for tests and examples of a whole provider without one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SentRequest:
    """What a server would have got. `headers` have lower-case names, and the key among them."""

    url: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """What a server would have said."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


Transport = Callable[[SentRequest], Awaitable[Answered]]
"""May raise an `OSError`, such as `ConnectionResetError`: the connection broke."""
