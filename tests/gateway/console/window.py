"""A window of a browser in front of the console: what went wrong in it, what it asked for, and pictures of it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, Request, expect

from tests import browser
from tests.gateway.serving import Served

PATIENCE_MS = 40_000
WIDE, NARROW = (1180, 820), (390, 800)
PICTURES = "DEUZ_SCREENSHOTS"
"""A folder for pictures of the pages that tests pass by; those of the documents are made so."""

expect.set_options(PATIENCE_MS)


@dataclass
class Window:
    """Signed in as somebody. `complaints`: what its console said, and requests to anybody else."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list[str])

    async def look(self, path: str) -> None:
        await self.page.goto(self.url + path)

    async def check(self) -> None:
        """It is fit for everybody: axe finds nothing, it is as wide as the window, and nothing was complained about."""
        found = await Axe().run(self.page)
        problems = [
            (one["id"], one["impact"], [node["html"][:200] for node in one["nodes"]]) for one in found.response["violations"]
        ]
        assert problems == [], (self.page.url, problems)
        too_wide = await self.page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
        assert too_wide <= 0, (self.page.url, too_wide)
        assert self.complaints == []

    async def picture(self, name: str, *, whole: bool = False) -> None:
        """For a folder that somebody named."""
        folder = os.environ.get(PICTURES)
        if folder:
            await self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=whole, animations="disabled")


@asynccontextmanager
async def window(
    chromium: Path,
    gate: Served,
    *scopes: str,
    name: str = "ann",
    size: tuple[int, int] = WIDE,
    scheme: Literal["light", "dark"] = "light",
    scripts: bool = True,
) -> AsyncGenerator[Window]:
    """One that signed in with a new token, as a person does: typed, and Enter. `scripts` False: it runs none."""
    token = (await gate.token(name, *(scopes or ("default",))))["authorization"].removeprefix("Bearer ")
    async with signed_in(chromium, gate.url, token, size=size, scheme=scheme, scripts=scripts) as made:
        yield made


@asynccontextmanager
async def signed_in(
    chromium: Path,
    url: str,
    token: str,
    *,
    size: tuple[int, int] = WIDE,
    scheme: Literal["light", "dark"] = "light",
    scripts: bool = True,
) -> AsyncGenerator[Window]:
    """The same at any gateway, with a token that is there."""
    async with browser.opened(chromium) as opened, _page(opened, url, size, scheme, scripts) as made:
        await made.look("/console")
        await made.page.get_by_label("Access token").fill(token)
        await made.page.keyboard.press("Enter")
        await expect(made.page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
        yield made


@asynccontextmanager
async def _page(
    opened: Browser, url: str, size: tuple[int, int], scheme: Literal["light", "dark"], scripts: bool
) -> AsyncGenerator[Window]:
    context = await opened.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, locale="en-GB", java_script_enabled=scripts
    )
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    made = Window(page, url)

    def asked(request: Request) -> None:
        if not request.url.startswith(url):
            made.complaints.append(f"asked for {request.url}")

    page.on("request", asked)
    page.on("pageerror", lambda error: made.complaints.append(f"error {error}"))
    page.on("dialog", lambda dialog: made.complaints.append(f"dialog {dialog.message}"))
    page.on("console", lambda said: made.complaints.append(said.text) if said.type in ("error", "warning") else None)
    try:
        yield made
    finally:
        await context.close()
