"""A browser, where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import browser


@pytest.fixture
def chromium() -> Path:
    """Where it is; the test is skipped on a machine without one."""
    found = browser.chromium()
    if found is None:
        pytest.skip(browser.MISSING)
    return found
