"""Replies of vendors' servers, byte for byte.

`*_every_event.sse` hold every kind of event, delta and part that the vendor documents, in its own spelling, and one that nobody
knows. They were put together 2026-11 from recorded examples of the vendors' documentation and the types of their own packages.
"""

from __future__ import annotations

from pathlib import Path


def recorded(name: str) -> bytes:
    return Path(__file__).with_name(name).read_bytes()
