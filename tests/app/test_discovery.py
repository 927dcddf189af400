"""`module:attribute` to an application."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from deuz_workers import ConfigurationError
from deuz_workers.app.discovery import load_app

MODULE = """
from deuz_workers import Agent, Deuz, MockModel
app = Deuz([Agent("x", model=MockModel(["ok"]))])
class box:
    inner = app
other = 7
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """`my_agents_of_a_test` in the working directory, which Python does not search by itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_agents_of_a_test.py").write_text(MODULE)
    (tmp_path / "broken_agents_of_a_test.py").write_text("import no_such_library\n")
    (tmp_path / "empty_agents_of_a_test.py").write_text("")
    yield
    for name in [name for name in sys.modules if name.endswith("_agents_of_a_test")]:
        del sys.modules[name]


@pytest.mark.parametrize("place", ["my_agents_of_a_test:app", "my_agents_of_a_test", "my_agents_of_a_test:box.inner"])
def test_the_application_is_found_from_the_working_directory(place: str) -> None:
    """By attribute, by the default one, and inside of something."""
    assert "x" in load_app(place).agents


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("", "write package.module:attribute"),
        ("my agents:app", "write package.module:attribute"),
        ("./my_agents.py:app", "write package.module:attribute"),
        ("nosuch_of_a_test:app", "no module 'nosuch_of_a_test'"),
        ("my_agents_of_a_test.inner:app", "no module 'my_agents_of_a_test.inner'"),
        ("my_agents_of_a_test:ap", "the applications in 'my_agents_of_a_test' are my_agents_of_a_test:app"),
        ("my_agents_of_a_test:other", "is an int, not a Deuz; the applications in"),
        ("empty_agents_of_a_test:app", r"holds no application of that name; write `app = Deuz\(\[...\]\)`"),
    ],
)
def test_a_wrong_place_is_told_which_part_and_what_to_do(place: str, words: str) -> None:
    """A ConfigurationError; never a traceback of the import machinery."""
    with pytest.raises(ConfigurationError, match=words):
        load_app(place)


def test_a_mistake_in_the_module_is_its_authors() -> None:
    """What the module itself fails with comes out as it is."""
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        load_app("broken_agents_of_a_test:app")
