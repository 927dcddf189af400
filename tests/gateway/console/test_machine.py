"""Where tests of pages find their browser, and what they say where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import browser


def test_a_machine_without_a_browser_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed where there is no apt-get; one that is named or found is taken."""
    monkeypatch.delenv("DEUZ_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert browser.chromium() is None
    said = browser.provide()
    assert said is not None
    assert "apt-get install chromium" in said
    found = tmp_path / "chromium"
    found.write_text("#!/bin/sh\n")
    found.chmod(0o755)
    assert browser.chromium() == found
    assert browser.provide() is None
    monkeypatch.setenv("DEUZ_CHROMIUM", "/opt/other")
    assert browser.chromium() == Path("/opt/other")


@pytest.mark.parametrize(("apt", "word"), [("exit 1", "could not install"), ("exec sleep 60", "took more than")])
def test_a_browser_that_cannot_be_installed_costs_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apt: str, word: str
) -> None:
    """The tests go on, and the reason is said."""
    monkeypatch.delenv("DEUZ_CHROMIUM", raising=False)
    sleep = Path("/bin/sleep")
    tool = tmp_path / "apt-get"
    tool.write_text(f"#!/bin/sh\n{apt.replace('sleep', str(sleep))}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(browser.os, "geteuid", lambda: 0)
    monkeypatch.setattr(browser, "UPDATE_S", 1)
    said = browser.provide()
    assert said is not None
    assert word in said
