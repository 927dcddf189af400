"""What the demo's agents count, choose and merge, without any process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deuz_workers import ConfigurationError
from deuz_workers.examples.code_review.application import review_swarm
from deuz_workers.examples.code_review.assignment import Assignment
from deuz_workers.examples.code_review.measuring import measure_python, measure_text, remarks
from deuz_workers.examples.code_review.report import markdown, merged
from deuz_workers.examples.code_review.selection import select
from tests.cli.demo_process import PYTHON


def test_python_is_counted() -> None:
    """Functions, classes and branches; methods are functions, and a conditional expression is a branch."""
    found = measure_python(PYTHON)
    assert {name: found[name] for name in ("functions", "classes", "branches")} == {
        "functions": 2,
        "classes": 1,
        "branches": 2,
    }
    assert found["longest_function"] == {"name": "two", "lines": 3, "at": 6}
    assert found["docstring_percent"] == 25


@pytest.mark.parametrize(
    ("source", "branches"),
    [
        ("", 0),
        ("if a: pass\nelif b: pass\nelse: pass", 2),
        ("x = a and b and c", 2),
        ("[i for i in x if i]", 1),
        ("try: pass\nexcept A: pass\nexcept B: pass", 2),
        ("match a:\n case 1: pass\n case _: pass", 2),
    ],
)
def test_every_fork_in_the_way_is_a_branch(source: str, branches: int) -> None:
    """Conditions, loops, handlers, cases, comprehensions, and each further operand of and and or."""
    assert measure_python(source)["branches"] == branches


def test_any_text_is_measured() -> None:
    """Lines, blank lines, the longest line in characters and the size in bytes."""
    assert measure_text("one\n\nthree ü\n") == {"lines": 3, "blank_lines": 1, "longest_line": 7, "bytes": 14}
    assert measure_text("")["longest_line"] == 0


def test_what_stands_out_is_remarked() -> None:
    """Nothing is said of a small, described file; long lines, long functions and missing docstrings are."""
    assert not list(remarks({**measure_text("x = 1"), **measure_python('"""A."""')}))
    source = "def long(x):\n" + "    x += 1\n" * 60
    said = " ".join(remarks({"longest_line": 200, **measure_python(source)}))
    assert "`long` (line 1) is 61 lines long" in said
    assert "0 % of what is public" in said
    assert "200 characters" in said


def test_the_largest_texts_are_chosen(tmp_path: Path) -> None:
    """Largest first, up to the limit; hidden, generated, empty and binary files are left out, a file named twice is one."""
    for name, content in {"a.py": b"x" * 10, "b.txt": b"y" * 20, "c.bin": b"\0" * 99, ".hidden": b"z" * 99, "e": b""}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "d.py").write_text("w" * 99)
    chosen = select([tmp_path, tmp_path / "a.py"], limit=5)
    assert [path.name for path in chosen] == ["b.txt", "a.py"]
    assert len(select([tmp_path], limit=1)) == 1


def test_nothing_to_review_is_refused(tmp_path: Path) -> None:
    """The error names what was given."""
    with pytest.raises(ConfigurationError, match="no text file to review"):
        select([tmp_path], limit=5)
    with pytest.raises(ConfigurationError, match="there is no"):
        select([tmp_path / "missing"], limit=5)


def test_agents_reach_only_what_is_under_review(tmp_path: Path) -> None:
    """A path that the model makes up is refused, also one that exists."""
    assignment = Assignment((tmp_path / "a.py",))
    assert assignment.file(str(tmp_path / "a.py")) == tmp_path / "a.py"
    with pytest.raises(ConfigurationError, match="not one of the 1 files"):
        assignment.file("/etc/passwd")


def test_an_assignment_reaches_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `environment` says is what `from_environment` reads, odd names included."""
    given = Assignment((tmp_path / "a:b c.py",), tmp_path / "out.md", "openai:x", "http://localhost/v1", 7)
    for name, value in given.environment().items():
        monkeypatch.setenv(name, value)
    assert Assignment.from_environment() == given


def test_reviews_are_merged_in_any_order() -> None:
    """Totals and table do not depend on the order; prose instead of JSON keeps its words and has no numbers."""
    answer = json.dumps({"path": "/x/a.py", "numbers": {"lines": 1000, **measure_python(PYTHON)}, "remark": "R."})
    answers = {"01-a": answer, "02-b": "```json\n" + answer + "\n```", "03-c": "I could not do it."}
    result = merged(answers)
    assert result == merged(dict(reversed(answers.items())))
    assert result["totals"] == {"files": 3, "lines": 2000, "functions": 4, "classes": 2, "branches": 4}
    assert result["remarks"][-1] == "`03-c`: I could not do it."
    assert "| `x/a.py` | 1,000 | 2 | 1 | 2 | 25 % | `two`, 3 lines |" in markdown(result)


def test_the_graph_goes_from_plan_to_report() -> None:
    """One review per file between plan and merge, and a cap that grows with the tasks."""
    swarm = review_swarm((Path("/x/a b.py"), Path("/x/c.py")), concurrency=2)
    assert [(task.task_id, task.depends_on) for task in swarm.tasks] == [
        ("plan", ()),
        ("01-a-b.py", ("plan",)),
        ("02-c.py", ("plan",)),
        ("merge", ("01-a-b.py", "02-c.py")),
        ("report", ("merge",)),
    ]
    assert swarm.budget is not None
    assert swarm.budget.tokens == 200_000
