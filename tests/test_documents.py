"""Code in documents runs, so that it cannot be wrong for long; what a page shows of a server is marked `notest`."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/answers.md",
    "docs/chat.md",
    "docs/memory.md",
    "docs/mcp.md",
    "docs/models.md",
    "docs/producers.md",
    "docs/streams.md",
    "docs/subagents.md",
    "docs/swarms.md",
    "docs/webhooks.md",
)


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is looked up and no connection is made."""

    def refuse(*given: object) -> None:
        raise AssertionError(f"an example wants the network: {given}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)


@pytest.mark.spec("DEP-002", "DEP-004")
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_the_page_runs(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each block is a program that ends without an error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    found = blocks(page)
    assert found
    for number, block in enumerate(found):
        module = ModuleType(f"page_{number}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(block, page, "exec", dont_inherit=True), module.__dict__)


@pytest.mark.spec("DEP-002")
def test_the_readme_prints_what_it_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first example's comment is its output; running code stands within 25 lines and needs no key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    readme = (ROOT / "README.md").read_text()
    assert "```python" in readme.split("\n\n## ")[0]
    assert readme[: readme.index("# Take a coat.")].count("\n") < 25
    exec(compile(blocks("README.md")[0], "README.md", "exec", dont_inherit=True), {"__name__": "readme"})
    assert capsys.readouterr().out == "Take a coat.\n"


@pytest.mark.spec("WIR-005")
def test_the_page_on_models_says_what_nothing_here_proves() -> None:
    """The wires rest on documents and on tests without a network; nobody is left to think that they met the live services."""
    page = (ROOT / "docs/models.md").read_text("utf-8").replace("\n", " ")
    assert "The wires follow the vendors' documents" in page
    assert "Nothing is verified against the live services." in page
