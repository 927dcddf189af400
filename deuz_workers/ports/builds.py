"""Builds that are at work: who can run what this process cannot."""

from __future__ import annotations

from typing import Protocol


class Builds(Protocol):
    async def find(self, queue: str, member: str) -> str | None:
        """A queue of the build whose living worker announced that it takes from `queue` and can run `member`.

        None: nobody did, or nobody knows. Never raises: what is found only saves time.
        """
        ...


class NoBuilds:
    """Nobody announces anything."""

    async def find(self, queue: str, member: str) -> str | None:
        return None
