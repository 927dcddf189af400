"""Habits of this repository that a tool can watch. Lists of exceptions carry a reason each and only ever get shorter."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "deuz_workers"
TESTS = ROOT / "tests"

LONGEST_FILE_LINES = 500
LONG_FILES = {
    "deuz_workers/errors.py": "the tree of errors is drawn at its top and read as one; a class takes three lines",
    "deuz_workers/__init__.py": "each public name stands there three times: for type checkers, in __all__, with its home",
}
"""File: why it is one noun although it is longer."""

SPEC_ROW = re.compile(r"^\|\s*([A-Z][A-Z0-9]{1,4}-[A-Z]?\d{2,3})\s*\|(.*)$", re.MULTILINE)
FIELD_REPORTS = {f"FR-{number:02}" for number in range(1, 43)}

COMPANIONS = {"anyio", "httpx2", "kombu", "mcp-types", "pydantic-core", "referencing", "typing-extensions"}
"""Libraries that come with a dependency, in the one version that fits it."""
NEWER_STANDARD_LIBRARY = {"annotationlib"}
"""Modules of a later Python than the oldest that we support; imported behind a check of the version."""


@cache
def files() -> list[Path]:
    """Every file that is, or would be, under version control: not ignored, not in a virtual environment."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # an unpacked source archive, or no git
        return sorted(
            path for path in ROOT.rglob("*") if path.is_file() and not any(part.startswith(".v") for part in path.parts)
        )
    paths = (ROOT / name.decode() for name in done.stdout.split(b"\0") if name)
    return sorted(path for path in paths if path.is_file())


def python_files(folder: Path) -> Iterator[tuple[str, str]]:
    for path in files():
        if path.suffix == ".py" and path.is_relative_to(folder):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def each_test(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def marked_rows(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "spec":
            for argument in node.args:
                if isinstance(argument, ast.Constant):
                    yield node.lineno, str(argument.value)


def test_files_have_one_noun() -> None:
    """No file of the package is longer than 500 lines without a reason, and the list of reasons is current."""
    long = {name for name, source in python_files(PACKAGE) if source.count("\n") > LONGEST_FILE_LINES}
    assert long == set(LONG_FILES)


def test_modules_and_tests_say_what_they_are() -> None:
    """Every module of the package and every test has a docstring."""
    bare = [name for name, source in python_files(PACKAGE) if not (ast.get_docstring(ast.parse(source)) or "").strip()]
    bare += [
        f"{name}:{test.lineno} {test.name}"
        for folder in (TESTS, PACKAGE / "testing")
        for name, source in python_files(folder)
        for test in each_test(source)
        if not ast.get_docstring(test)
    ]
    assert bare == []


def test_marked_rows_exist() -> None:
    """Every requirement that a test claims is a row of tests/spec that applies to this project, or a field report."""
    rows = {row: text for path in (TESTS / "spec").glob("*.md") for row, text in SPEC_ROW.findall(path.read_text())}
    assert len(rows) > 1000
    applicable = {row for row, text in rows.items() if "[n/a" not in text} | FIELD_REPORTS
    unknown = [
        f"{name}:{line} {row}"
        for folder in (TESTS, PACKAGE / "testing")
        for name, source in python_files(folder)
        for line, row in marked_rows(source)
        if row not in applicable
    ]
    assert unknown == []


def test_nothing_is_left_open() -> None:
    """No test is skipped or expected to fail for good, and no code waits to be written."""
    marks = re.compile(
        r"\b(TO" r"DO|FIX" r"ME|XX" r"X|NotImplemented" r"Error|pytest\.mark\.sk" r"ip\b|pytest\.mark\.xf" r"ail)"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files()
        if path.suffix in {".py", ".sql", ".lua", ".toml"}
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []


def test_nothing_names_the_machine_it_was_written_on() -> None:
    """No file names a home directory, or a package index of somebody's own."""
    machine = re.compile(
        r"(?<![\w.])/(?:ho[m]e/(?!me/)|ro[o]t/|Us[e]rs/|wo[r]k/|fa[r]m/)|(?:extra-)?inde[x]-url|PIP_(?:EXTRA_)?INDEX_UR[L]"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in files()
        if path.suffix in {".py", ".md", ".toml", ".sql", ".lua", ".yml", ".yaml", ".json", ""} and path.name != "LICENSE"
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if (match := machine.search(line))
    ]
    assert found == []


def imported_libraries(source: str) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
    ours_or_pythons = {"deuz_workers", "tests", *sys.stdlib_module_names, *NEWER_STANDARD_LIBRARY}
    return {module.split(".")[0] for module in modules} - ours_or_pythons


def normalised(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]).lower()


def test_what_is_imported_is_declared() -> None:
    """Every library that the package imports is a dependency or in an extra; what only tests import is in the extra `test`."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    tested = {normalised(it) for it in [*project["dependencies"], *(it for extra in extras.values() for it in extra)]}
    tested |= COMPANIONS
    shipped = tested - {normalised(it) for it in extras["test"]}
    distributions = packages_distributions()
    undeclared = [
        f"{name} imports {library}"
        for folder in (PACKAGE, TESTS)
        for name, source in python_files(folder)
        for library in imported_libraries(source)
        if {normalised(it) for it in distributions.get(library, [])}.isdisjoint(
            tested if name.startswith(("tests/", "deuz_workers/testing/")) else shipped
        )
    ]
    assert undeclared == []


def second_block(readme: str) -> str:
    blocks = re.findall(r"^```(?:sh|bash|shell|console)\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    return blocks[1].strip()


def test_ci_runs_what_the_readme_says() -> None:
    """The second shell block of the README is one command, and CI runs it word for word."""
    command = second_block((ROOT / "README.md").read_text())
    assert "\n" not in command
    assert command in [line.strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]


def test_links_in_documents_lead_somewhere() -> None:
    """Every relative link of a Markdown file names a file of the repository."""
    broken = [
        f"{path.relative_to(ROOT)} -> {target}"
        for path in files()
        if path.suffix == ".md"
        for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", path.read_text())
        if not (path.parent / target).exists()
    ]
    assert broken == []


@pytest.mark.parametrize("name", ["CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"])
def test_archives_are_complete(name: str) -> None:
    """What a source archive must contain is there."""
    assert (ROOT / name).stat().st_size > 0
