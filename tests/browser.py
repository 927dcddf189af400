"""The browser of this machine, for tests of pages: Chromium, which `python -m tests` installs where it may.

Tests that need it are skipped where there is none, with what to install. `DEUZ_CHROMIUM` names another one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGES = ("chromium", "fonts-dejavu-core")
UPDATE_S, INSTALL_S = 60, 240
"""What looking for packages, and installing them, may take; the tests are more important than the browser."""
MISSING = f"no Chromium on this machine: apt-get install {' '.join(PACKAGES)}, or name one with DEUZ_CHROMIUM"


def chromium() -> Path | None:
    """Where it is; None: nowhere."""
    named = os.environ.get("DEUZ_CHROMIUM")
    if named:
        return Path(named)
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return None if found is None else Path(found)


def provide() -> str | None:
    """Install it where that is simple: as root on Debian, within a few minutes. What is to be said, None for nothing."""
    if chromium() is not None:
        return None
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"{MISSING}; tests in a browser are skipped"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments, seconds in (
        (["update"], UPDATE_S),
        (["install", "--yes", "--no-install-recommends", *PACKAGES], INSTALL_S),
    ):
        command = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=30", *arguments]
        try:
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"apt-get {arguments[0]} took more than {seconds} s; tests in a browser are skipped"
        if done.returncode != 0 and arguments[0] == "install":
            return f"apt-get could not install {' '.join(PACKAGES)}; tests in a browser are skipped"
    return "installed chromium for the tests of pages"


@contextlib.asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[Browser]:
    """A headless one, closed at the end."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            await browser.close()
