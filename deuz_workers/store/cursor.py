"""Where the next page of a listing begins: time and id of the last row, as one opaque string."""

from __future__ import annotations

from uuid import UUID

from deuz_workers.errors import ConfigurationError


def write_cursor(status_at_us: int, rid: UUID) -> str:
    return f"{status_at_us:x}.{rid.hex}"


def read_cursor(cursor: str | None) -> tuple[int | None, UUID | None]:
    """Raises `ConfigurationError` for text that no listing handed out."""
    if cursor is None:
        return None, None
    try:
        at, rid = cursor.split(".")
        return int(at, 16), UUID(rid)
    except ValueError:
        raise ConfigurationError(f"'{cursor[:80]}' is no cursor of a listing; begin without one") from None
