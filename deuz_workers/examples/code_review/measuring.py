"""What can be counted in a file. Pure; nothing here knows of agents."""

from __future__ import annotations

import ast
from collections.abc import Iterator

BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case, ast.comprehension)
"""Where one way through the code becomes two."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def measure_text(text: str) -> dict[str, object]:
    """Of any text: `lines`, `blank_lines`, `longest_line` in characters, `bytes`."""
    lines = text.splitlines()
    return {
        "lines": len(lines),
        "blank_lines": sum(not line.strip() for line in lines),
        "longest_line": max(map(len, lines), default=0),
        "bytes": len(text.encode("utf-8", "surrogatepass")),
    }


def measure_python(source: str) -> dict[str, object]:
    """Of Python: counts of `functions`, `classes` and `branches`; the longest and the most branched function; the share of
    public functions, classes and of the module that have a docstring, in percent (None where there is nothing to describe).

    Raises SyntaxError.
    """
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    described = [node for node in (tree, *functions, *classes) if not _name(node).startswith("_")]
    longest = max(functions, key=_lines, default=None)
    knottiest = max(functions, key=branches, default=None)
    return {
        "functions": len(functions),
        "classes": len(classes),
        "branches": branches(tree),
        "longest_function": None if longest is None else {"name": longest.name, "lines": _lines(longest), "at": longest.lineno},
        "knottiest_function": None
        if knottiest is None
        else {"name": knottiest.name, "branches": branches(knottiest), "at": knottiest.lineno},
        "docstring_percent": round(100 * sum(ast.get_docstring(node) is not None for node in described) / len(described)),
    }


def branches(tree: ast.AST) -> int:
    """Branches below `tree`, every further operand of `and` and `or` included."""
    return sum(_ways(node) for node in ast.walk(tree))


def _ways(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    return int(isinstance(node, BRANCHES))


def _lines(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _name(node: ast.Module | Function | ast.ClassDef) -> str:
    return "" if isinstance(node, ast.Module) else node.name


def remarks(numbers: dict[str, object]) -> Iterator[str]:
    """What somebody might want to look at, worst first, from what was measured."""
    knottiest, longest = numbers.get("knottiest_function"), numbers.get("longest_function")
    if isinstance(knottiest, dict) and int(knottiest["branches"]) >= 10:
        yield f"`{knottiest['name']}` (line {knottiest['at']}) branches {knottiest['branches']} times"
    if isinstance(longest, dict) and int(longest["lines"]) >= 50:
        yield f"`{longest['name']}` (line {longest['at']}) is {longest['lines']} lines long"
    share = numbers.get("docstring_percent")
    if isinstance(share, int) and share < 60:
        yield f"only {share} % of what is public has a docstring"
    longest_line = numbers.get("longest_line")
    if isinstance(longest_line, int) and longest_line > 140:
        yield f"its longest line has {longest_line} characters"
