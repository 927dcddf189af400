"""Addresses of servers as they may be shown: without account, password and options."""

from __future__ import annotations

import re

HIDDEN = "..."
_HARMLESS = re.compile(r"[\w.,:/+\[\]%~ -]*")


def without_account(url: str) -> str:
    """`url` without what stands before `@` and after `?`; of text that is no URL only what cannot hold a password.

    Where nobody can say how far an account reaches, the whole rest is left out.
    """
    scheme, slashes, rest = url.rpartition("://") if url.count("://") == 1 else ("", "", url)
    place = re.split("[?#]", rest, maxsplit=1)[0]
    if "@" in place:
        place = place.rpartition("@")[2]
    elif "@" in rest:  # in a password with a question mark, or in the options
        place = HIDDEN
    if "@" in scheme:
        return HIDDEN
    if not slashes and ("=" in url or not _HARMLESS.fullmatch(place)):
        return HIDDEN
    return f"{scheme}{slashes}{place}"
