"""The list of ways to break the package is current: `python -m tests.simulation.mutants` can apply all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import deuz_workers
from tests.simulation.edits import Mutant
from tests.simulation.mutants import ROOT
from tests.simulation.mutations import MUTANTS

PACKAGE = Path(deuz_workers.__file__).parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_changes_is_there_once(mutant: Mutant) -> None:
    """Each text stands in its file exactly once, becomes another one that can be read, and the tests that are named exist."""
    for edit in mutant.edits:
        text = (PACKAGE / edit.file).read_text()
        assert text.count(edit.old) == 1, edit.file
        assert edit.old != edit.new
        if edit.file.endswith(".py"):
            compile(text.replace(edit.old, edit.new), edit.file, "exec")
    assert all((ROOT / name.partition("::")[0]).exists() for name in mutant.tests if name.startswith("tests/"))
