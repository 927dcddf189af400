"""What can be counted in a Python file. Text in, plain values out; nothing is read or executed."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

_DECISIONS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.With, ast.AsyncWith, ast.Assert, ast.IfExp)
_NO_CODE = frozenset((tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER))


def outline(source: str) -> dict[str, object]:
    """Imports, classes and functions by name. Raises `SyntaxError`."""
    tree = ast.parse(source)
    imports: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imports.add(node.module or ".")
    return {
        "imports": sorted(imports),
        "classes": [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)],
        "functions": [name for name, _ in functions(tree)],
    }


def measurements(source: str) -> dict[str, object]:
    """Sizes and the two functions that stand out. Raises `SyntaxError`, `tokenize.TokenError`."""
    tree = ast.parse(source)
    found = list(functions(tree))
    longest = max(found, key=lambda pair: length(pair[1]), default=None)
    hardest = max(found, key=lambda pair: complexity(pair[1]), default=None)
    public = [node for name, node in found if not name.rpartition(".")[2].startswith("_")]
    return {
        "lines": len(source.splitlines()),
        "code_lines": code_lines(source),
        "functions": len(found),
        "classes": sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree)),
        "longest_function": longest[0] if longest else None,
        "longest_function_lines": length(longest[1]) if longest else 0,
        "most_complex_function": hardest[0] if hardest else None,
        "complexity": complexity(hardest[1]) if hardest else 0,
        "without_docstring": sum(ast.get_docstring(node) is None for node in public),
    }


def functions(tree: ast.Module) -> Iterator[tuple[str, FunctionNode]]:
    """Every function with its dotted name, in the order of the file."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, FunctionNode]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, child
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    return walk(tree, "")


def length(node: FunctionNode) -> int:
    """Lines from `def` to the end of the body."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def complexity(node: FunctionNode) -> int:
    """Decisions plus one, functions inside included (after McCabe, 1976)."""
    decisions = 1
    for inner in ast.walk(node):
        if isinstance(inner, _DECISIONS):
            decisions += 1
        elif isinstance(inner, ast.BoolOp):
            decisions += len(inner.values) - 1
        elif isinstance(inner, ast.comprehension):
            decisions += 1 + len(inner.ifs)
        elif isinstance(inner, ast.match_case):
            decisions += 1
    return decisions


def code_lines(source: str) -> int:
    """Lines that hold more than blanks and comments; those of docstrings count."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)
