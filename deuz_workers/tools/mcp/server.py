"""An MCP server as an agent names it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.mcp import McpClient
from deuz_workers.tools.options import MAX_RESULT_BYTES

Replay = Literal["idempotent"] | Mapping[str, Literal["idempotent"]]

NOTHING: Mapping[str, str] = MappingProxyType({})
EXTRA = "MCP servers need a client library: pip install 'deuz-workers[mcp]'"

_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,32}")


@dataclass(frozen=True, slots=True)
class McpReconnect:
    """How often a connection that was there is made again before a call or a list gives up, and after which waits."""

    attempts: int = 5
    first_ms: int = 500
    """Twice as long each time."""
    most_ms: int = 30_000

    def __post_init__(self) -> None:
        for name in ("attempts", "first_ms", "most_ms"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigurationError(f"{name} of McpReconnect is a whole number from 1, not {value!r}")

    def wait_ms(self, attempt: int) -> int:
        """Before attempt number `attempt`, from 1."""
        return min(self.first_ms * 2 ** min(attempt - 1, 32), self.most_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """A server whose tools an agent has: exactly one of `url`, `command` and `client`.

    Raises `ConfigurationError` for what cannot be meant, and where the extra `mcp` is not installed.
    """

    url: str | None = None
    """Of a streamable HTTP endpoint."""
    headers: Mapping[str, str] = field(default_factory=lambda: NOTHING, repr=False)
    auth: Any = field(default=None, repr=False)
    """An `httpx2.Auth`, for example one of the OAuth providers of the `mcp` package."""
    command: str | None = None
    """Program that is started by every worker process that needs it, and speaks over its standard input and output."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: NOTHING, repr=False)
    """Beside PATH, HOME and a few more; the worker's own environment is not handed on."""
    cwd: str | None = None
    client: McpClient | None = None
    """A connection of yours. It is borrowed: never closed here."""
    namespace: str | None = None
    """Tools are called `<namespace>_<tool>`."""
    replay: Replay | None = None
    """`idempotent`: calls of all its tools, or of those named as the server spells them, may be repeated after an interruption
    without asking anybody. Whoever changes it raises the agent's `binding_id`."""
    needs_approval: bool | Collection[str] = False
    """Calls of all its tools, or of those named as the server spells them, wait for a person."""
    timeout_ms: int | None = None
    """Of each call; None: the run's `tool_timeout_ms`."""
    connect_timeout_ms: int = 10_000
    """Of connecting, and of each list of its tools."""
    max_result_bytes: int = MAX_RESULT_BYTES
    reconnect: McpReconnect | None = None
    """None: one attempt. Waiting is part of a call, and of its time limit."""
    keep_alive_ms: int | None = None
    """The server is asked this often whether it is there; one that does not answer for as long is not, and the connection is
    closed. None: only calls find out."""
    protocol: Literal["auto", "legacy"] = "auto"
    """`legacy`: the handshake of protocol versions before 2026-07-28 only, for servers that mishandle the newer one."""
    elicitation: Any = field(default=None, repr=False)
    """A function that answers questions, as the `mcp` package has it; None: the server is not told that it may ask."""
    sampling: Any = field(default=None, repr=False)
    """An `McpSampling`: the server may ask a model; without one it is not told that it may."""
    roots: Any = field(default=None, repr=False)
    """A function that lists roots, as the `mcp` package has it."""

    def __post_init__(self) -> None:
        given = [name for name in ("url", "command", "client") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigurationError(f"an MCP server has a url, a command or a client, exactly one; given: {given or 'none'}")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigurationError(f"the url of an MCP server begins with http:// or https://, not {self.url!r}")
        if self.namespace is not None and not _NAMESPACE.fullmatch(self.namespace):
            raise ConfigurationError(
                f"a namespace is 1 to 32 letters, digits, '_' and '-', not {self.namespace!r}; it stands before the tool's name"
            )
        _check_replay(self.replay)
        if self.sampling is not None and not callable(getattr(self.sampling, "answer", None)):
            raise ConfigurationError(f"sampling of an MCP server is an McpSampling, not a {type(self.sampling).__name__}")
        if isinstance(self.needs_approval, str):
            raise ConfigurationError("needs_approval of an MCP server is True, False or a collection of names of its tools")
        for name in ("timeout_ms", "connect_timeout_ms", "max_result_bytes", "keep_alive_ms"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigurationError(f"{name} of an MCP server is a whole number from 1, not {value!r}")
        object.__setattr__(self, "args", tuple(self.args))
        if self.client is None and importlib.util.find_spec("mcp") is None:
            raise ConfigurationError(EXTRA)

    @property
    def label(self) -> str:
        """For people: says which server, and nothing that is secret."""
        if self.namespace is not None:
            return self.namespace
        if self.client is not None:
            return self.client.name or "client"
        return self.command or re.sub(r"//[^/?#]*@|[?#].*", lambda found: "//" if found[0][0] == "/" else "", self.url or "")

    @property
    def pool_key(self) -> tuple[object, ...]:
        """Entries with the same share a connection: all that it is made of, functions and `auth` by identity. What is only
        said about its tools (namespace, replay, approvals, limits) is no part of it."""
        if self.client is not None:
            return ("client", id(self.client))
        handlers = (id(self.auth), id(self.elicitation), id(self.sampling), id(self.roots), self.protocol, self.keep_alive_ms)
        if self.url is not None:
            return ("url", self.url, tuple(sorted(self.headers.items())), *handlers)
        return ("command", self.command, self.args, tuple(sorted(self.env.items())), self.cwd, *handlers)

    def replay_of(self, tool: str) -> Literal["idempotent"] | None:
        """`tool` as the server spells it."""
        return self.replay if self.replay is None or isinstance(self.replay, str) else self.replay.get(tool)

    def asks_for(self, tool: str) -> bool:
        """`tool` as the server spells it."""
        return self.needs_approval if isinstance(self.needs_approval, bool) else tool in self.needs_approval


def _check_replay(given: object) -> None:
    values = list(given.values()) if isinstance(given, Mapping) else [given]
    wrong = next((value for value in values if value not in (None, "idempotent")), None)
    if wrong is not None:
        raise ConfigurationError(f"replay of an MCP server is 'idempotent', or that by name of tool, not {wrong!r}")
