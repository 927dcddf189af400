"""What tools of servers are called in an agent: by the server's name for them, behind a namespace."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

LONGEST = 64
"""What providers accept as the name of a tool."""
DIGITS = 8
"""Of a digest, at the end of a name that was cut."""

_REFUSED = re.compile(r"[^A-Za-z0-9_-]")


def namespaces(given: Sequence[str | None], servers: Sequence[str | None]) -> list[str | None]:
    """Of each entry: the one that it names. One entry alone needs none; among several it is the server's own name, or
    `mcp` and the entry's place, from 0, where a server has none."""
    if len(given) == 1:
        return list(given)
    return [
        named if named is not None else sanitized(server) if server else f"mcp{place}"
        for place, (named, server) in enumerate(zip(given, servers, strict=True))
    ]


def tool_name(namespace: str | None, tool: str) -> str:
    """`<namespace>_<tool>` in the characters that providers accept; of a name that is too long the end is a digest."""
    whole = tool if namespace is None else f"{namespace}_{tool}"
    made = sanitized(whole)
    if len(made) <= LONGEST:
        return made
    return f"{made[: LONGEST - DIGITS - 1]}_{hashlib.sha256(whole.encode()).hexdigest()[:DIGITS]}"


def sanitized(name: str) -> str:
    """Every other character is `_`."""
    return _REFUSED.sub("_", name) or "_"
