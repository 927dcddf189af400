"""The stores of the application tests, and no settings of the developer's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.conftest import memory, store_url, world

__all__ = ["memory", "store_url", "world"]


@pytest.fixture(autouse=True)
def _no_settings_of_the_developer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a file in the working directory nor a variable has a say."""
    monkeypatch.chdir(tmp_path)
    for name in ("CONFIG", "DATABASE_URL", "REDIS_URL", "BROKER_URL", "LEASES_URL", "GATEWAY_SECRET"):
        monkeypatch.delenv(f"DEUZ_{name}", raising=False)
