"""Which files of those that a person names are reviewed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from deuz_workers import ConfigurationError

SKIPPED = frozenset({"__pycache__", "node_modules", "venv", "build", "dist"})
LARGEST_BYTES = 1_000_000
"""Beyond it a file is data rather than something that somebody wrote."""
SNIFFED_BYTES = 4_096


def select(paths: Iterable[Path], *, limit: int) -> tuple[Path, ...]:
    """The largest text files in and below `paths`, at most `limit`, largest first; hidden and generated ones left out.

    Raises ConfigurationError: a path that is not there, or nothing to review in all of them.
    """
    given = list(paths)
    sizes: dict[Path, int] = {}
    for path in given:
        if not path.exists():
            raise ConfigurationError(f"there is no {str(path)!r}; name files or folders to review")
        sizes |= {found.resolve(): found.stat().st_size for found in _texts_below(path)}
    if not sizes:
        raise ConfigurationError(f"no text file to review in {', '.join(map(str, given)) or 'nothing'}")
    return tuple(sorted(sizes, key=lambda path: (-sizes[path], str(path)))[:limit])


def _texts_below(path: Path) -> Iterator[Path]:
    if path.is_file():
        if _is_text(path):
            yield path
        return
    for child in sorted(path.iterdir()):
        if child.name.startswith(".") or child.name in SKIPPED or child.is_symlink():
            continue
        yield from _texts_below(child)


def _is_text(path: Path) -> bool:
    try:
        if not 0 < path.stat().st_size <= LARGEST_BYTES:
            return False
        with path.open("rb") as file:
            return b"\0" not in file.read(SNIFFED_BYTES)
    except OSError:
        return False
